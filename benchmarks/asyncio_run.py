"""A client on asyncio in a process of its own: what it produces and consumes, as JSON.

Run by a Python that has the client: seglog, aiokafka, or confluent-kafka (its asyncio interface).
"""

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

_TIMEOUT: Final = 60

Measured = dict[str, float]


async def _seglog(address: str, topic: str, count: int, value: bytes) -> Measured:
    seglog = importlib.import_module("seglog.asyncio")
    measured: Measured = {}
    async with seglog.connect(address) as client:
        began = _now()
        async with client.producer(topic, ack="os", linger_ms=5) as producer:
            for _ in range(count):
                await producer.send(value)
        _note(measured, "produce", began)
        began = _now()
        found = 0
        async with client.consumer(topic, start="earliest") as consumer:
            async for _ in consumer:
                found += 1
        _note(measured, "consume", began)
    return _checked(measured, found, count)


async def _aiokafka(address: str, topic: str, count: int, value: bytes) -> Measured:
    aiokafka = importlib.import_module("aiokafka")
    measured: Measured = {}
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, acks=1, linger_ms=5, max_batch_size=64 * 1024)
    await producer.start()
    began = _now()
    for _ in range(count):
        await producer.send(topic, value, partition=0)
    await producer.flush()
    _note(measured, "produce", began)
    await producer.stop()
    place = aiokafka.TopicPartition(topic, 0)
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([place])
    consumer.seek(place, 0)
    began = _now()
    found = 0
    async for _ in consumer:
        found += 1
        if found == count:
            break
    _note(measured, "consume", began)
    await consumer.stop()
    return _checked(measured, found, count)


async def _confluent(address: str, topic: str, count: int, value: bytes) -> Measured:
    kafka, aio = importlib.import_module("confluent_kafka"), importlib.import_module("confluent_kafka.aio")
    measured: Measured = {}
    producer = aio.AIOProducer({"bootstrap.servers": address, "acks": 1, "linger.ms": 5})
    began = _now()
    sent = [await producer.produce(topic, value, partition=0) for _ in range(count)]
    await producer.flush()
    await asyncio.gather(*sent)
    _note(measured, "produce", began)
    await producer.close()
    settings = {"group.id": "none", "enable.auto.commit": False, "queued.min.messages": count}
    consumer = aio.AIOConsumer({"bootstrap.servers": address} | settings)
    await consumer.assign([kafka.TopicPartition(topic, 0, 0)])
    began = _now()
    found = 0
    while found < count:
        found += len(await consumer.consume(min(10_000, count - found), timeout=_TIMEOUT))
    _note(measured, "consume", began)
    await consumer.close()
    return _checked(measured, found, count)


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _note(measured: Measured, what: str, began: tuple[float, float]) -> None:
    measured[what] = time.perf_counter() - began[0]
    measured[f"{what}, processor time"] = time.process_time() - began[1]


def _checked(measured: Measured, found: int, count: int) -> Measured:
    if found != count:
        raise SystemExit(f"{count} records were acknowledged, {found} came back")
    return measured


CLIENTS: Final[dict[str, Callable[[str, str, int, bytes], Coroutine[Any, Any, Measured]]]] = {
    "seglog.asyncio": _seglog,
    "seglog.asyncio on uvloop": _seglog,
    "aiokafka": _aiokafka,
    "confluent-kafka": _confluent,
}


def main(name: str, address: str, topic: str, count: str, size: str) -> None:
    """Print the seconds, and those of processor time, to produce ``count`` records until the last ack, and consume."""
    loop = importlib.import_module("uvloop") if name.endswith("uvloop") else asyncio
    print(json.dumps(loop.run(CLIENTS[name](address, topic, int(count), b"x" * int(size)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
