"""Appends to a NATS JetStream stream through nats-py. ``python -m benchmarks.peers.nats_load``; jobs as in ``load``.

Messages are published with the subject of a subscription as their reply subject, on which JetStream acknowledges them;
counting them there costs a tenth of the client's ``publish_async``, which makes a future for each.
"""

import asyncio
import json
import sys
import time
from base64 import b64decode
from contextlib import AsyncExitStack
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import StorageType
from nats.js.errors import NotFoundError

from benchmarks.peers.load import REFILL_SHARE

STREAM: Final = "bench"
_SECONDS_MAX: Final = 60


class AppendError(Exception):
    """An append was refused, or what is stored is not what was acknowledged."""


class _Flow:
    """One connection with ``depth`` unacknowledged messages at most."""

    def __init__(self, client: Client, payload: bytes, depth: int) -> None:
        self._client = client
        self._payload = payload
        self._depth = depth
        self._refill = max(1, depth // REFILL_SHARE)
        self._owed = 0
        self._ends = 0.0
        self._sent_max = 0
        self._sent = 0
        self._inbox = client.new_inbox()
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.answered = 0

    async def run(self, ends: float, sent_max: int) -> int:
        """Publish until the time or the messages are over and all is acknowledged; how many."""
        self._ends, self._sent_max = ends, sent_max
        await self._client.subscribe(self._inbox, cb=self._acknowledged)
        await self._publish(self._depth)
        return await asyncio.wait_for(self._done, ends - time.perf_counter() + _SECONDS_MAX)

    async def _publish(self, count: int) -> None:
        self._sent += count
        for _ in range(count):
            await self._client.publish(STREAM, self._payload, reply=self._inbox)

    async def _acknowledged(self, message: Msg) -> None:
        if b'"error"' in message.data and not self._done.done():
            self._done.set_exception(AppendError(message.data.decode(errors="replace")))
        self.answered += 1
        self._owed += 1
        if self._owed >= self._refill and self._sent < self._sent_max and time.perf_counter() < self._ends:
            owed, self._owed = self._owed, 0
            await self._publish(owed)
        elif self.answered == self._sent and not self._done.done():
            self._done.set_result(self.answered)


async def run(job: dict[str, Any]) -> dict[str, Any]:
    """Append until the time or the bytes are over; raises where not all that was acknowledged is there."""
    payload, depth = b64decode(job["payload"]), job["depth"]
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(job["connections"]):
            client = await nats.connect(f"nats://127.0.0.1:{job['port']}", allow_reconnect=False)
            stack.push_async_callback(client.close)
            clients.append(client)
        admin = clients[0].jetstream(timeout=_SECONDS_MAX)
        await _delete(admin)
        await admin.add_stream(name=STREAM, subjects=[STREAM], storage=StorageType.FILE)
        sent_max = max(depth, job["bytes_max"] // len(payload) // len(clients))
        flows = [_Flow(client, payload, depth) for client in clients]
        cpu, began = time.process_time(), time.perf_counter()
        answered = sum(await asyncio.gather(*(flow.run(began + job["seconds"], sent_max) for flow in flows)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        stored = (await admin.stream_info(STREAM)).state.messages
        if stored != answered:
            raise AppendError(f"{answered} messages were acknowledged, the stream has {stored}")
        await _delete(admin)
    return {"answered": answered, "seconds": seconds, "client_cpu_seconds": cpu}


async def _delete(admin: JetStreamContext) -> None:
    try:
        await admin.delete_stream(STREAM)
    except NotFoundError:
        return


def main() -> None:
    """Until stdin ends. A job that fails is answered with the reason."""
    for line in sys.stdin:
        try:
            found = asyncio.run(run(json.loads(line)))
        except (Error, AppendError, OSError, TimeoutError) as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
