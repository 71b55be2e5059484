"""The fake broker without sockets and threads: tests of the trio face run on an autojump clock against it.

``async with memory_broker() as broker`` and then ``broker.connect()``: what the fake broker answers, and its scripts,
are the same. ``slow`` makes every write of a client go out byte by byte, each in a turn of its own.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_one_way_pair, wait_all_tasks_blocked

import seglog.trio
from seglog.core.dialing import Address
from seglog.trio import Client
from seglog_protocol.frames import Frame, FrameReader
from seglog_protocol.messages import FetchReply, FetchRequest, Message
from tests.support import request_of
from tests.unit.clients.fake_broker import CLOSE, FakeBroker, encoded


class MemoryTransport:
    """A client's end of two one-way pipes."""

    def __init__(self, sending: MemorySendStream, receiving: MemoryReceiveStream, *, slow: bool) -> None:
        self._sending = sending
        self._receiving = receiving
        self._slow = slow

    async def send_some(self, buffers: Sequence[memoryview]) -> int:
        data = b"".join(buffers)[: 7 if self._slow else None]
        try:
            await self._sending.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise BrokenPipeError("broken pipe") from error
        return len(data)

    async def receive_into(self, buffer: memoryview) -> int:
        try:
            data = await self._receiving.receive_some(len(buffer))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionResetError("reset") from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._sending.close()
        self._receiving.close()


class _Peer:
    """The broker's end."""

    def __init__(self, receiving: MemoryReceiveStream, sending: MemorySendStream) -> None:
        self.receiving = receiving
        self.sending = sending
        self.writing = trio.Lock()

    def close(self) -> None:
        self.receiving.close()
        self.sending.close()


class MemoryBroker(FakeBroker):
    def __init__(self, nursery: trio.Nursery, *, slow: bool = False, **options: Any) -> None:
        self._nursery = nursery
        self._slow = slow
        self._peers: set[_Peer] = set()
        self._touched = trio.Event()
        self.is_up = True
        super().__init__(**options)

    # --- Life ---

    def start(self) -> None:
        self.is_up = True

    def stop(self) -> None:
        self.is_up = False
        self.drop_connections()

    def drop_connections(self) -> None:
        for peer in list(self._peers):
            peer.close()
        self._peers.clear()
        self.touch()

    def touch(self) -> None:
        """Wake the fetches that wait for records."""
        self._touched.set()
        self._touched = trio.Event()

    async def connections(self) -> int:
        """How many are open, when everything that was closed has been noticed."""
        await wait_all_tasks_blocked()
        return len(self._peers)

    def connect(self, **options: Any) -> Client:
        return seglog.trio.connect("memory", opener=self.open, **options)

    async def open(self, _address: Address) -> MemoryTransport:
        await trio.lowlevel.checkpoint()
        if not self.is_up:
            raise ConnectionRefusedError(111, "Connection refused")
        sending, receiving = memory_stream_one_way_pair()
        answering, answered = memory_stream_one_way_pair()
        peer = _Peer(receiving, answering)
        self._peers.add(peer)
        self._nursery.start_soon(self._serve_peer, peer)
        return MemoryTransport(sending, answered, slow=self._slow)

    # --- Answers ---

    async def _serve_peer(self, peer: _Peer) -> None:
        frames = FrameReader()
        try:
            while data := await peer.receiving.receive_some():
                frames.receive_data(data)
                while (frame := frames.next_frame()) is not None:
                    if frame.header["api"] == "fetch" and frame.header["max_wait_ms"]:
                        self._nursery.start_soon(self._fetch_later, peer, frame)
                    elif not await self._answer_peer(peer, frame):
                        return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            peer.close()
            self._peers.discard(peer)
            self.touch()

    async def _fetch_later(self, peer: _Peer, frame: Frame) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._answer_peer(peer, frame)

    async def _fetch(self, peer: _Peer, request: FetchRequest) -> tuple[FetchReply, bytes]:
        with trio.move_on_after(request.max_wait_ms / 1000):
            while peer in self._peers and not any(r.size or r.error for r in self._read(request)[0].partitions):
                await self._touched.wait()
        return self._read(request)

    async def _answer_peer(self, peer: _Peer, frame: Frame) -> bool:
        request = request_of(frame.header)
        self.requests.append(request)
        self.touch()
        answer = self.script(request, frame.payload)
        if answer is None and isinstance(request, FetchRequest):
            answer = await self._fetch(peer, request)
        if answer is None:
            answer = self._usual(request, frame.payload, None)  # type: ignore[arg-type]
        self.touch()
        if answer is CLOSE:
            peer.close()
            return False
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with peer.writing:
                await peer.sending.send_all(encoded(frame, request, answer))
        return True

    # --- For tests ---

    async def heard(self, kind: type[Message], count: int = 1) -> None:
        """Wait until so many requests of a kind have come."""
        while sum(isinstance(request, kind) for request in self.requests) < count:
            await self._touched.wait()

    def fill(self, count: int, *, partition: int = 0, per_batch: int = 3, first: int = 0) -> None:
        super().fill(count, partition=partition, per_batch=per_batch, first=first)
        self.touch()


@asynccontextmanager
async def memory_broker(**options: Any) -> AsyncGenerator[MemoryBroker, None]:
    async with trio.open_nursery() as nursery:
        yield MemoryBroker(nursery, **options)
        nursery.cancel_scope.cancel()
