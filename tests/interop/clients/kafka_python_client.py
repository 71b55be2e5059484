"""kafka-python, as ``conversation`` has it."""

import functools
import sys
import time
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
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
    producer = KafkaProducer(
        **SERVER,
        acks=acks if acks == "all" else int(acks),
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        linger_ms=100,
    )
    try:
        sent = [
            producer.send(topic, value, key, headers, partition, timestamp)
            for key, value, headers, timestamp in records
        ]
        producer.flush(TIMEOUT_SECONDS)
        first = sent[0].get(TIMEOUT_SECONDS)
        return None if acks == "0" else int(first.offset)
    finally:
        producer.close()


def _consumer(isolation: str = "read_uncommitted") -> Any:
    return KafkaConsumer(**SERVER, consumer_timeout_ms=TIMEOUT_SECONDS * 1000, isolation_level=isolation)


def consume(topic: str, partition: int, offset: int, count: int, isolation: str = "read_uncommitted") -> list[Consumed]:
    consumer = _consumer(isolation)
    try:
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek(place, offset)
        found: list[Consumed] = []
        for record in consumer:
            found.append((record.offset, record.key, record.value, list(record.headers), record.timestamp))
            if len(found) == count:
                break
        return found
    finally:
        consumer.close()


def offset_for_time(topic: str, partition: int, time: int) -> int | None:
    consumer = _consumer()
    try:
        place = TopicPartition(topic, partition)
        found = consumer.offsets_for_times({place: time})[place]
        return None if found is None else int(found.offset)
    finally:
        consumer.close()


def ends(topic: str, partition: int, isolation: str = "read_uncommitted") -> list[int]:
    consumer = _consumer(isolation)
    try:
        place = TopicPartition(topic, partition)
        return [consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]]
    finally:
        consumer.close()


def group(topic: str, group: str, count: int) -> list[tuple[int, int]]:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = KafkaConsumer(
        topic,
        **SERVER,
        group_id=group,
        max_poll_records=1,
        consumer_timeout_ms=TIMEOUT_SECONDS * 1000,
        **settings,
    )
    try:
        found: list[tuple[int, int]] = []
        for record in consumer:
            found.append((record.partition, record.offset))
            if len(found) == count:
                break
        consumer.commit()
        return found
    finally:
        consumer.close()


@functools.cache
def _admin() -> Any:
    return KafkaAdminClient(**SERVER)


def create(topic: str, partitions: int, config: dict[str, str]) -> None:
    _admin().create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])


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
    producer = KafkaProducer(**SERVER, acks="all")
    sent, end = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            producer.send(topic, b"value", partition=0).get(TIMEOUT_SECONDS)
            sent += 1
            time.sleep(0.1)
    finally:
        producer.close()
    return sent


def main() -> None:
    serve(
        {
            "produce": produce,
            "consume": consume,
            "offset_for_time": offset_for_time,
            "ends": ends,
            "create": create,
            "describe": lambda topic: len(_admin().describe_topics([topic])[0]["partitions"]),
            "topics": lambda: list(_admin().list_topics()),
            "delete": lambda topic: print(_admin().delete_topics([topic]), file=sys.stderr),
            "group": group,
            "login": login,
            "keep_on": keep_on,
        }
    )


if __name__ == "__main__":
    main()
