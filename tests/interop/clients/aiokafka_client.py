"""aiokafka, as ``conversation`` has it."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.helpers import create_ssl_context

from tests.interop.clients.conversation import SECURITY, TIMEOUT_SECONDS, Consumed, Record, logged_errors, serve


class _Token(AbstractTokenProvider):  # type: ignore[misc] # it has no types
    async def token(self) -> str:
        return SECURITY["token"]


def settings() -> dict[str, Any]:
    names = {
        "protocol": "security_protocol",
        "mechanism": "sasl_mechanism",
        "user": "sasl_plain_username",
        "password": "sasl_plain_password",
    }
    found: dict[str, Any] = {name: SECURITY[key] for key, name in names.items() if key in SECURITY}
    if "authority" in SECURITY:
        found["ssl_context"] = create_ssl_context(
            cafile=SECURITY["authority"], certfile=SECURITY.get("chain"), keyfile=SECURITY.get("key")
        )
    if "token" in SECURITY:
        found["sasl_oauth_token_provider"] = _Token()
    return {"bootstrap_servers": sys.argv[1], **found}


async def produce(
    topic: str, partition: int, acks: str, codec: str, idempotent: bool, records: list[Record]
) -> int | None:
    producer = AIOKafkaProducer(
        **settings(),
        acks=acks if acks == "all" else int(acks),
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        linger_ms=100,
    )
    async with producer:
        sent = [
            await producer.send(topic, value, key, partition, timestamp, headers)
            for key, value, headers, timestamp in records
        ]
        await producer.flush()
        first = await sent[0]
        return None if acks == "0" else int(first.offset)


async def consume(topic: str, partition: int, offset: int, count: int) -> list[Consumed]:
    async with AIOKafkaConsumer(**settings()) as consumer:
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek(place, offset)
        found = [await consumer.getone() for _ in range(count)]
        return [(each.offset, each.key, each.value, list(each.headers), each.timestamp) for each in found]


async def group(topic: str, group: str, count: int) -> list[tuple[int, int]]:
    own = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with AIOKafkaConsumer(topic, **settings(), group_id=group, **own) as consumer:
        records = [await consumer.getone() for _ in range(count)]
        await consumer.commit()
        return [(record.partition, record.offset) for record in records]


async def keep_on(topic: str, seconds: float) -> int:
    sent, end = 0, time.monotonic() + seconds
    async with AIOKafkaProducer(**settings(), acks="all") as producer:
        while time.monotonic() < end:
            await producer.send_and_wait(topic, b"value", partition=0)
            sent += 1
            await asyncio.sleep(0.1)
    return sent


async def login() -> None:
    with logged_errors("aiokafka"):
        async with AIOKafkaProducer(**settings()):
            pass


def _waited(step: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    def run(**arguments: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(step(**arguments), TIMEOUT_SECONDS)

        return asyncio.run(bounded())

    return run


if __name__ == "__main__":
    steps = (produce, consume, group, login, keep_on)
    serve({step.__name__: _waited(step) for step in steps})
