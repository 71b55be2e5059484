"""Beside asyncio: the client of trio, as a guest of asyncio's loop.

    pip install '.[trio]'
    python examples/asyncio_trio.py

trio can run inside another loop, in the same thread ("guest mode"). Then `seglog.trio` works as it does on trio, its
tasks can be cancelled, and no thread waits for records. Both sides may call plain functions of asyncio, such as
`queue.put_nowait`; the other way leads through `token.run_sync_soon`. There is one guest at a time in a thread.

The broker is the one that SEGLOG_SERVER names, or localhost:9192.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import outcome
import trio

import seglog.trio

SERVER = os.environ.get("SEGLOG_SERVER", "localhost:9192")
TOPIC = "readings"

ResultT = TypeVar("ResultT")


async def on_trio(function: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run a trio function as a guest of this asyncio loop; cancelled from here, it is cancelled there."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[outcome.Outcome[ResultT]] = loop.create_future()
    scope = trio.CancelScope()

    async def guest() -> ResultT:
        with scope:
            return await function()
        raise asyncio.CancelledError

    trio.lowlevel.start_guest_run(
        guest,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=ended.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    token = trio.lowlevel.current_trio_token()
    try:
        return (await asyncio.shield(ended)).unwrap()
    except asyncio.CancelledError:
        if not ended.done():
            token.run_sync_soon(scope.cancel)
            await asyncio.wait([ended])
        raise


async def main() -> None:
    """Tasks of trio produce and follow; an asyncio queue takes the values to an asyncio task."""
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def produce_and_follow() -> None:
        async with seglog.trio.connect(SERVER) as client:
            await client.create_topic(TOPIC, partitions=3, exist_ok=True)
            async with client.producer(TOPIC) as producer:
                for number in range(1000):
                    await producer.send(str(number), key=f"sensor-{number % 10}")
            async with client.consumer(TOPIC, start="earliest", follow=True) as consumer:
                async for record in consumer:
                    queue.put_nowait(int(record.value or b"0"))

    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(on_trio(produce_and_follow))
        print("the sum of 1,000 records is", sum([await queue.get() for _ in range(1000)]))
        following.cancel()


if __name__ == "__main__":
    asyncio.run(main())
