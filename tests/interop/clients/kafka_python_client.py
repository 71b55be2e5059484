"""kafka-python, as ``conversation`` has it."""

import sys
import time
from contextlib import closing
from itertools import islice
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.interop.clients.conversation import SECURITY, TIMEOUT_SECONDS, Consumed, Record, logged_errors, serve


class _Token(AbstractTokenProvider):  # type: ignore[misc] # it has no types
    def token(self) -> str:
        return SECURITY["token"]


def _settings() -> dict[str, Any]:
    names = {
        "protocol": "security_protocol",
        "authority": "ssl_cafile",
        "chain": "ssl_certfile",
        "key": "ssl_keyfile",
        "mechanism": "sasl_mechanism",
        "user": "sasl_plain_username",
        "password": "sasl_plain_password",
    }
    found: dict[str, Any] = {name: SECURITY[key] for key, name in names.items() if key in SECURITY}
    if "token" in SECURITY:
        found["sasl_oauth_token_provider"] = _Token()
    return {"bootstrap_servers": sys.argv[1], **found}


SERVER = _settings()


def produce(topic: str, partition: int, acks: str, codec: str, idempotent: bool, records: list[Record]) -> int | None:
    with closing(
        KafkaProducer(
            **SERVER,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=100,
        )
    ) as producer:
        sent = [
            producer.send(topic, value, key, headers, partition, timestamp)
            for key, value, headers, timestamp in records
        ]
        producer.flush(TIMEOUT_SECONDS)
        first = sent[0].get(TIMEOUT_SECONDS)
        return None if acks == "0" else int(first.offset)


def _consumer(*topics: str, **more: Any) -> Any:
    return closing(KafkaConsumer(*topics, **SERVER, consumer_timeout_ms=TIMEOUT_SECONDS * 1000, **more))


def consume(topic: str, partition: int, offset: int, count: int) -> list[Consumed]:
    with _consumer() as consumer:
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek(place, offset)
        return [
            (record.offset, record.key, record.value, list(record.headers), record.timestamp)
            for record in islice(consumer, count)
        ]


def group(topic: str, group: str, count: int) -> list[tuple[int, int]]:
    own = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 1}
    with _consumer(topic, group_id=group, **own) as consumer:
        found = [(record.partition, record.offset) for record in islice(consumer, count)]
        consumer.commit()
        return found


def login() -> None:
    """Several times: an answer that comes with the end of the connection is lost on it every so often."""
    for left in reversed(range(10)):
        try:
            with logged_errors("kafka"):
                KafkaAdminClient(**SERVER, bootstrap_timeout_ms=4000).close()
        except RuntimeError as error:
            if not left or "AuthenticationFailed" in str(error):
                raise
        else:
            return


def keep_on(topic: str, seconds: float) -> int:
    sent, end = 0, time.monotonic() + seconds
    with closing(KafkaProducer(**SERVER, acks="all")) as producer:
        while time.monotonic() < end:
            producer.send(topic, b"value", partition=0).get(TIMEOUT_SECONDS)
            sent += 1
            time.sleep(0.1)
    return sent


if __name__ == "__main__":
    steps = (produce, consume, group, login, keep_on)
    serve({step.__name__: step for step in steps})
