"""The four steps of ``client_versions`` by a client in Python. Arguments: SERVER NAME LIBRARY."""

import asyncio
import functools
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

SERVER, NAME, LIBRARY = sys.argv[1:]
SECONDS = 30


class AbsentFeatureError(Exception):
    """The client has nothing of the kind."""


def kafka_python() -> dict[str, Callable[[], object]]:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import NewTopic

    def admin() -> None:
        client = KafkaAdminClient(bootstrap_servers=SERVER)
        client.create_topics([NewTopic(NAME, 1, 1)])
        client.close()

    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=SERVER, acks="all")
        for _ in range(3):
            producer.send(NAME, b"v", b"k").get(SECONDS)
        producer.close()

    def group() -> None:
        consumer = KafkaConsumer(
            NAME,
            bootstrap_servers=SERVER,
            group_id=NAME,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=SECONDS * 1000,
        )
        found = sum(1 for _, _ in zip(range(3), consumer, strict=False))
        assert found == 3, f"{found} of 3 records in {SECONDS} s"
        consumer.commit()
        consumer.close()

    def transaction() -> None:
        if not hasattr(KafkaProducer, "begin_transaction"):
            raise AbsentFeatureError
        producer = KafkaProducer(bootstrap_servers=SERVER, transactional_id=NAME)
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            producer.send(NAME, b"v", b"k").get(SECONDS)
            producer.abort_transaction() if number == 1 else producer.commit_transaction()
        producer.close()

    return {"admin": admin, "produce": produce, "group": group, "transaction": transaction}


def aiokafka() -> dict[str, Callable[[], object]]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    async def admin() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=SERVER)
        await client.start()
        await client.create_topics([NewTopic(NAME, 1, 1)])
        await client.close()

    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=SERVER, acks="all") as producer:
            for _ in range(3):
                await producer.send_and_wait(NAME, b"v", b"k")

    async def group() -> None:
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with AIOKafkaConsumer(NAME, bootstrap_servers=SERVER, group_id=NAME, **settings) as consumer:
            for _ in range(3):
                await asyncio.wait_for(consumer.getone(), SECONDS)
            await consumer.commit()

    async def transaction() -> None:
        async with AIOKafkaProducer(bootstrap_servers=SERVER, transactional_id=NAME) as producer:
            for number in range(3):
                await producer.begin_transaction()
                await producer.send_and_wait(NAME, b"v", b"k")
                await (producer.abort_transaction() if number == 1 else producer.commit_transaction())

    def ended(step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(asyncio.wait_for(step(), 2 * SECONDS))

    steps = {"admin": admin, "produce": produce, "group": group, "transaction": transaction}
    return {name: functools.partial(ended, step) for name, step in steps.items()}


def confluent_kafka() -> dict[str, Callable[[], object]]:
    from confluent_kafka import Consumer, KafkaException, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    def admin() -> None:
        client = AdminClient({"bootstrap.servers": SERVER})
        client.create_topics([NewTopic(NAME, 1, 1)])[NAME].result(SECONDS)

    def send(producer: Any) -> None:
        failed: list[Any] = []
        producer.produce(NAME, b"v", b"k", callback=lambda error, _: failed.append(error) if error else None)
        left = producer.flush(SECONDS)
        if failed or left:
            raise KafkaException(*failed or ("not delivered",))

    def produce() -> None:
        producer = Producer({"bootstrap.servers": SERVER, "message.timeout.ms": SECONDS * 1000})
        for _ in range(3):
            send(producer)

    def group() -> None:
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": SERVER, "group.id": NAME, **settings})
        consumer.subscribe([NAME])
        end, found = time.monotonic() + SECONDS, 0
        while found < 3 and time.monotonic() < end:
            message = consumer.poll(1)
            found += message is not None and message.error() is None
        assert found == 3, f"{found} of 3 records in {SECONDS} s"
        consumer.commit(asynchronous=False)
        consumer.close()

    def transaction() -> None:
        producer = Producer({"bootstrap.servers": SERVER, "transactional.id": NAME})
        producer.init_transactions(SECONDS)
        for number in range(3):
            producer.begin_transaction()
            send(producer)
            producer.abort_transaction(SECONDS) if number == 1 else producer.commit_transaction(SECONDS)

    return {"admin": admin, "produce": produce, "group": group, "transaction": transaction}


def main() -> None:
    for name, step in {"kafka-python": kafka_python, "aiokafka": aiokafka, "confluent-kafka": confluent_kafka}[
        LIBRARY
    ]().items():
        try:
            step()
            outcome = ""
        except AbsentFeatureError:
            outcome = "-"
        except Exception as error:  # noqa: BLE001 - whatever the client says
            outcome = " ".join(f"{type(error).__name__} {error}".split())
        print(f"{name}\t{outcome}", flush=True)


if __name__ == "__main__":
    main()
