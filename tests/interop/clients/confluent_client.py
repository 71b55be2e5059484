"""confluent-kafka, which is librdkafka, as ``conversation`` has it."""

import functools
import sys
import time
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

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


def _consumer(group: str = "none", start: str = "error", isolation: str = "read_uncommitted") -> Any:
    """A consumer; librdkafka wants the name of a group even if there is none."""
    settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": start}
    return Consumer(SERVER | settings | {"isolation.level": isolation})


def consume(topic: str, partition: int, offset: int, count: int, isolation: str = "read_uncommitted") -> list[Consumed]:
    consumer = _consumer(isolation=isolation)
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        found: list[Consumed] = []
        while len(found) < count:
            message = consumer.poll(TIMEOUT_SECONDS)
            if message is None:
                break
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            kind, timestamp = message.timestamp()
            found.append(
                (
                    message.offset(),
                    message.key(),
                    message.value(),
                    message.headers() or [],
                    -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
                )
            )
        return found
    finally:
        consumer.close()


def offset_for_time(topic: str, partition: int, time: int) -> int | None:
    consumer = _consumer()
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, time)], TIMEOUT_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        return None if found.offset < 0 else int(found.offset)
    finally:
        consumer.close()


def ends(topic: str, partition: int, isolation: str = "read_uncommitted") -> list[int]:
    consumer = _consumer(isolation=isolation)
    try:
        return list(consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_SECONDS))
    finally:
        consumer.close()


def group(topic: str, group: str, count: int) -> list[tuple[int, int]]:
    consumer = _consumer(group, "earliest")
    try:
        consumer.subscribe([topic])
        found: list[tuple[int, int]] = []
        while len(found) < count:
            message = consumer.poll(TIMEOUT_SECONDS)
            if message is None:
                break
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append((message.partition(), message.offset()))
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


@functools.cache
def _admin() -> Any:
    return AdminClient(SERVER)


def create(topic: str, partitions: int, config: dict[str, str]) -> None:
    for future in _admin().create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        future.result(TIMEOUT_SECONDS)


def delete(topic: str) -> None:
    for future in _admin().delete_topics([topic]).values():
        future.result(TIMEOUT_SECONDS)


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


def main() -> None:
    serve(
        {
            "produce": produce,
            "consume": consume,
            "offset_for_time": offset_for_time,
            "ends": ends,
            "create": create,
            "describe": lambda topic: len(_admin().list_topics(topic, TIMEOUT_SECONDS).topics[topic].partitions),
            "topics": lambda: list(_admin().list_topics(timeout=TIMEOUT_SECONDS).topics),
            "delete": delete,
            "group": group,
            "login": login,
            "keep_on": keep_on,
        }
    )


if __name__ == "__main__":
    main()
