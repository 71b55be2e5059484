"""Steps of ``client_programs.steps_told`` by a client in Python. Arguments: SERVER NAME LIBRARY."""

import asyncio
import functools
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

SERVER, NAME, LIBRARY = sys.argv[1:]
SECONDS = 30
STEPS = os.environ.get("INTEROP_STEPS", "admin produce group transaction").split()
CODECS = os.environ.get("INTEROP_CODECS", "none").split()
RECORDS = int(os.environ.get("INTEROP_RECORDS", "3"))
VALUE = b"v" * 1000


class AbsentFeatureError(Exception):
    """The client has nothing of the kind."""


def security(**names: str) -> dict[str, Any]:
    """What the environment says about the connection, by the client's names for it."""
    return {
        name: os.environ[f"INTEROP_{key.upper()}"]
        for key, name in names.items()
        if f"INTEROP_{key.upper()}" in os.environ
    }


def kafka_python() -> dict[str, Callable[[], object]]:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import NewTopic

    server: dict[str, Any] = {"bootstrap_servers": SERVER} | security(
        protocol="security_protocol", authority="ssl_cafile", chain="ssl_certfile", key="ssl_keyfile",
        mechanism="sasl_mechanism", user="sasl_plain_username", password="sasl_plain_password",
    )  # fmt: skip
    if "INTEROP_TOKEN" in os.environ:
        from kafka.net.sasl.oauth import AbstractTokenProvider

        server["sasl_oauth_token_provider"] = type("_", (AbstractTokenProvider,), {"token": _token})()

    def admin() -> None:
        client = KafkaAdminClient(**server)
        client.create_topics([NewTopic(NAME, 1, 1)])
        client.close()

    def produce() -> None:
        for codec in CODECS:
            producer = KafkaProducer(**server, acks="all", compression_type=None if codec == "none" else codec)
            for _ in range(3):
                producer.send(NAME, VALUE, b"k").get(SECONDS)
            producer.close()

    def group() -> None:
        consumer = KafkaConsumer(
            NAME,
            **server,
            group_id=NAME,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=SECONDS * 1000,
        )
        check([(record.key, record.value) for _, record in zip(range(RECORDS), consumer, strict=False)])
        consumer.commit()
        consumer.close()

    def transaction() -> None:
        if not hasattr(KafkaProducer, "begin_transaction"):
            raise AbsentFeatureError
        producer = KafkaProducer(**server, transactional_id=NAME)
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            producer.send(NAME, b"v", b"k").get(SECONDS)
            producer.abort_transaction() if number == 1 else producer.commit_transaction()
        producer.close()

    return {step.__name__: step for step in (admin, produce, group, transaction)}


def aiokafka() -> dict[str, Callable[[], object]]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    def server() -> dict[str, Any]:
        """For a loop that runs: the provider of tokens looks for one."""
        found = {"bootstrap_servers": SERVER} | security(
            protocol="security_protocol", mechanism="sasl_mechanism",
            user="sasl_plain_username", password="sasl_plain_password",
        )  # fmt: skip
        files = security(authority="cafile", chain="certfile", key="keyfile")
        if files:
            from aiokafka.helpers import create_ssl_context

            found["ssl_context"] = create_ssl_context(**files)
        if "INTEROP_TOKEN" in os.environ:
            from aiokafka.abc import AbstractTokenProvider

            async def token(_: object) -> str:
                return _token()

            found["sasl_oauth_token_provider"] = type("_", (AbstractTokenProvider,), {"token": token})()
        return found

    async def admin() -> None:
        client = AIOKafkaAdminClient(**server())
        await client.start()
        await client.create_topics([NewTopic(NAME, 1, 1)])
        await client.close()

    async def produce() -> None:
        for codec in CODECS:
            chosen = {} if codec == "none" else {"compression_type": codec}
            async with AIOKafkaProducer(**server(), acks="all", **chosen) as producer:
                for _ in range(3):
                    await producer.send_and_wait(NAME, VALUE, b"k")

    async def group() -> None:
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with AIOKafkaConsumer(NAME, **server(), group_id=NAME, **settings) as consumer:
            found = [await asyncio.wait_for(consumer.getone(), SECONDS) for _ in range(RECORDS)]
            check([(record.key, record.value) for record in found])
            await consumer.commit()

    async def transaction() -> None:
        async with AIOKafkaProducer(**server(), transactional_id=NAME) as producer:
            for number in range(3):
                await producer.begin_transaction()
                await producer.send_and_wait(NAME, b"v", b"k")
                await (producer.abort_transaction() if number == 1 else producer.commit_transaction())

    def ended(step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(asyncio.wait_for(step(), 2 * SECONDS))

    steps = (admin, produce, group, transaction)
    return {step.__name__: functools.partial(ended, step) for step in steps}


def confluent_kafka() -> dict[str, Callable[[], object]]:
    from confluent_kafka import Consumer, KafkaException, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    server: dict[str, Any] = {"bootstrap.servers": SERVER} | security(
        protocol="security.protocol", authority="ssl.ca.location", chain="ssl.certificate.location",
        key="ssl.key.location", mechanism="sasl.mechanisms", user="sasl.username", password="sasl.password",
    )  # fmt: skip
    if "INTEROP_TOKEN" in os.environ:
        server["oauth_cb"] = lambda _: (_token(), time.time() + 600)

    def admin() -> None:
        client = AdminClient(server)
        client.create_topics([NewTopic(NAME, 1, 1)])[NAME].result(SECONDS)

    def send(producer: Any) -> None:
        failed: list[Any] = []
        producer.produce(NAME, VALUE, b"k", callback=lambda error, _: failed.append(error) if error else None)
        left = producer.flush(SECONDS)
        if failed or left:
            raise KafkaException(*failed or ("not delivered",))

    def produce() -> None:
        for codec in CODECS:
            producer = Producer(server | {"compression.type": codec, "message.timeout.ms": SECONDS * 1000})
            for _ in range(3):
                send(producer)

    def group() -> None:
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer(server | {"group.id": NAME, **settings})
        consumer.subscribe([NAME])
        found: list[Any] = []
        end = time.monotonic() + SECONDS
        while len(found) < RECORDS and time.monotonic() < end:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append((message.key(), message.value()))
        check(found)
        consumer.commit(asynchronous=False)
        consumer.close()

    def transaction() -> None:
        producer = Producer(server | {"transactional.id": NAME})
        producer.init_transactions(SECONDS)
        for number in range(3):
            producer.begin_transaction()
            send(producer)
            producer.abort_transaction(SECONDS) if number == 1 else producer.commit_transaction(SECONDS)

    return {step.__name__: step for step in (admin, produce, group, transaction)}


def _token(_: object = None) -> str:
    return os.environ["INTEROP_TOKEN"]


def check(found: list[tuple[bytes, bytes]]) -> None:
    """The records that were read are those that were produced."""
    assert len(found) == RECORDS, f"{len(found)} of {RECORDS} records in {SECONDS} s"
    assert set(found) == {(b"k", VALUE)}


def main() -> None:
    steps = {"kafka-python": kafka_python, "aiokafka": aiokafka, "confluent-kafka": confluent_kafka}[LIBRARY]()
    for name in STEPS:
        try:
            steps[name]()
            outcome = ""
        except AbsentFeatureError:
            outcome = "-"
        except Exception as error:  # noqa: BLE001 - whatever the client says
            outcome = " ".join(f"{type(error).__name__} {error}".split())
        print(f"{name}\t{outcome}", flush=True)


if __name__ == "__main__":
    main()
