"""confluent-kafka, which is librdkafka, as ``conversation`` has it."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.interop.clients.conversation import SECURITY, TIMEOUT_SECONDS, Consumed, Record, serve

REFUSED: list[Any] = []
"""Errors of the whole client: librdkafka tries again after each, and the call in hand says that it took too long."""


def _settings() -> dict[str, Any]:
    names = {
        "protocol": "security.protocol",
        "authority": "ssl.ca.location",
        "chain": "ssl.certificate.location",
        "key": "ssl.key.location",
        "mechanism": "sasl.mechanisms",
        "user": "sasl.username",
        "password": "sasl.password",
    }
    found: dict[str, Any] = {name: SECURITY[key] for key, name in names.items() if key in SECURITY}
    if "token" in SECURITY:
        found["oauth_cb"] = lambda _: (SECURITY["token"], time.time() + 600)
    return {"bootstrap.servers": sys.argv[1], "error_cb": REFUSED.append, **found}


SERVER = _settings()


def produce(topic: str, partition: int, acks: str, codec: str, idempotent: bool, records: list[Record]) -> int | None:
    producer = Producer(
        SERVER
        | {"acks": acks, "compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 100}
        | {"message.timeout.ms": TIMEOUT_SECONDS * 1000}
    )
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        offsets.append(message.offset())

    for key, value, headers, timestamp in records:
        producer.produce(topic, value, key, partition, on_delivery=delivered, timestamp=timestamp, headers=headers)
    left = producer.flush(TIMEOUT_SECONDS)
    if left:
        raise TimeoutError(f"{left} records are not delivered")
    return None if acks == "0" else min(offsets)


def _consumer(group: str = "none", start: str = "error") -> Any:
    """A consumer; librdkafka wants the name of a group even if there is none."""
    return closing(Consumer(SERVER | {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": start}))


def _polled(consumer: Any, count: int) -> Iterator[Any]:
    for _ in range(count):
        message = consumer.poll(TIMEOUT_SECONDS)
        if message is None:
            return
        if message.error() is not None:
            raise KafkaException(message.error())
        yield message


def consume(topic: str, partition: int, offset: int, count: int) -> list[Consumed]:
    with _consumer() as consumer:
        consumer.assign([TopicPartition(topic, partition, offset)])
        return [
            (each.offset(), each.key(), each.value(), each.headers() or [], each.timestamp()[1])
            for each in _polled(consumer, count)
        ]


def group(topic: str, group: str, count: int) -> list[tuple[int, int]]:
    with _consumer(group, "earliest") as consumer:
        consumer.subscribe([topic])
        found = [(each.partition(), each.offset()) for each in _polled(consumer, count)]
        consumer.commit(asynchronous=False)
        return found


def login() -> None:
    producer = Producer(SERVER)
    end = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < end:
        producer.poll(0.1)
        for error in REFUSED:
            raise KafkaException(error)
        try:
            producer.list_topics(timeout=0.5)
        except KafkaException:
            continue
        return
    raise TimeoutError("no login")


def keep_on(topic: str, seconds: float) -> int:
    producer = Producer(SERVER | {"acks": "all", "message.timeout.ms": TIMEOUT_SECONDS * 1000})
    failed: list[Any] = []
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        producer.produce(topic, b"value", partition=0, on_delivery=lambda error, _: failed.append(error))
        left = producer.flush(TIMEOUT_SECONDS)
        if left or failed[-1] is not None:
            raise KafkaException(failed[-1])
        sent += 1
        time.sleep(0.1)
    return sent


if __name__ == "__main__":
    steps = (produce, consume, group, login, keep_on)
    serve({step.__name__: step for step in steps})
