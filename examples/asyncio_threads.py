"""Beside asyncio: the blocking client in threads.

    python examples/asyncio_threads.py

The client has no asyncio interface. Its calls block, and any thread may make them, so each call that may wait goes to
`asyncio.to_thread`. `asyncio_trio.py` is the other way: the client of trio, as a guest of asyncio's loop.

The broker is the one that SEGLOG_SERVER names, or localhost:9192.
"""

import asyncio
import os
from collections.abc import AsyncIterator

import seglog

SERVER = os.environ.get("SEGLOG_SERVER", "localhost:9192")
TOPIC = "readings"


async def records(consumer: seglog.Consumer) -> AsyncIterator[seglog.Record]:
    """The consumer's records for `async for`; one batch at a time is fetched by a thread, when it is wanted."""
    batches = consumer.batches()
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        for record in batch.records():
            yield record


async def produce(client: seglog.Client, count: int) -> None:
    """Send records, and wait for their acknowledgements without holding up the loop."""
    producer = await asyncio.to_thread(client.producer, TOPIC)
    try:
        for number in range(count):
            # It returns at once, unless 32 MiB are on their way. Where speed counts, send many records in one call.
            await asyncio.to_thread(producer.send, str(number), key=f"sensor-{number % 10}")
        await asyncio.to_thread(producer.flush, 30)
    finally:
        await asyncio.to_thread(producer.close, 30)


async def consume(client: seglog.Client, count: int) -> int:
    """Follow the topic until so many records have come; their sum."""
    consumer = await asyncio.to_thread(client.consumer, TOPIC, start="earliest", follow=True)
    total = seen = 0
    try:
        async for record in records(consumer):
            total += int(record.value or b"0")
            seen += 1
            if seen == count:
                break
    finally:
        # Also when this task is cancelled: a thread that still waits for records ends with ClientClosedError.
        consumer.close()
    return total


async def main() -> None:
    """A producer and a follower, side by side."""
    client = await asyncio.to_thread(seglog.connect, SERVER)
    try:
        await asyncio.to_thread(client.create_topic, TOPIC, partitions=3, exist_ok=True)
        async with asyncio.TaskGroup() as tasks:
            consuming = tasks.create_task(consume(client, 1000))
            tasks.create_task(produce(client, 1000))
        print("the sum of 1,000 records is", consuming.result())
    finally:
        await asyncio.to_thread(client.close)


if __name__ == "__main__":
    asyncio.run(main())
