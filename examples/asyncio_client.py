"""On asyncio: a producer and a follower in one loop, side by side.

    python examples/asyncio_client.py

`seglog.asyncio` has the names of `seglog`; what waits is awaited. Its tasks are cancelled and given time as any of
asyncio's, and it runs as well on other loops with that interface, such as uvloop's: `uvloop.run(main())`.

The broker and the account are those of the command line, SEGLOG_SERVER and SEGLOG_USER or a profile.
"""

import asyncio

import seglog.asyncio

TOPIC = "readings"


async def produce(client: seglog.asyncio.Client, count: int) -> None:
    """Send records; leaving the block waits for their acknowledgements."""
    async with client.producer(TOPIC) as producer:
        for number in range(count):
            # It waits only while 32 MiB are on their way. What it returns may be awaited, for the receipt.
            await producer.send(str(number), key=f"sensor-{number % 10}")


async def consume(client: seglog.asyncio.Client, count: int) -> int:
    """Follow the topic until so many records have come; their sum."""
    total = seen = 0
    async with client.consumer(TOPIC, start="earliest", follow=True) as consumer:
        async for record in consumer:
            total += int(record.value or b"0")
            seen += 1
            if seen == count:
                break
    return total


async def main() -> None:
    """Both with one client, for a minute at most."""
    async with seglog.asyncio.connect() as client:
        await client.create_topic(TOPIC, partitions=3, exist_ok=True)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            consuming = tasks.create_task(consume(client, 1000))
            tasks.create_task(produce(client, 1000))
        print("the sum of 1,000 records is", consuming.result())


if __name__ == "__main__":
    asyncio.run(main())
