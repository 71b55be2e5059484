"""The sending half of one connection: whole frames, one after the other.

Small replies are queued and sent together by one system call, from the task that made them: while the socket takes
them there is no task switch. Payloads of fetches go from file to socket with ``sendfile``.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio

from seglog_broker.listeners.transport import Transport
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.runtime import budget
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.slow_readers import CutError, Transfers
from seglog_broker.storage.io.filesystem import Buffer, File
from seglog_broker.storage.segment.segment_log import LogSlice
from seglog_protocol.errors import StorageError

SEND_STEP_BYTES: Final = 256 * 1024
"""Bytes sent, or read from the disk, in one step; other tasks run between two. It takes 0.25 ms at 1 GB/s."""

SLICES_A_STEP: Final = budget.items_of(cost=15)
"""Parts of files that are sent in one step: an answer from many partitions may have thousands of some bytes each."""

READ_AHEAD_BYTES: Final = 2 * 1024 * 1024
"""Bytes read ahead where pages are not in memory, so that the disk has no pauses."""

Chunk = Buffer | LogSlice
"""A part of a frame: bytes in memory, or a range of a file."""


class FileShrankError(StorageError):
    """A file ended before the bytes that a frame had announced; the connection cannot be used any more."""


class Sender:
    """Sends frames on ``transport``, which the owner closes.

    Any number of tasks may call ``queue``, ``flush`` and ``send_frame``; frames never mix. Errors of the socket are
    raised as OSError, and CutError when the peer took nothing for ``stall_seconds``, or reads so slowly that it holds
    up a deletion. After a frame was cut short, by an error or by cancellation, everything raises BrokenPipeError: the
    peer would take the next byte for the rest of that frame.
    """

    def __init__(self, transport: Transport, offload: Offload, transfers: Transfers, stall_seconds: float) -> None:
        self._transport = transport
        self._offload = offload
        self._transfers = transfers
        self._stall_seconds = stall_seconds
        self._outgoing: list[Buffer] = []
        self._sending = trio.Semaphore(1, max_value=1)  # taken while a frame is under way across a checkpoint
        self._cut_short = False
        self.taken = 0
        """Bytes that the socket has taken while somebody waited for that, as for any large frame."""

    @property
    def is_free(self) -> bool:
        """Whether no other frame is queued or being sent."""
        return self._sending.value > 0 and not self._outgoing

    def queue(self, frame: Buffer) -> None:
        """Send ``frame`` with the next ``flush``. The caller must flush before it waits for anything else."""
        self._outgoing.append(frame)

    async def flush(self) -> None:
        """Return when the socket has taken all that was queued. A checkpoint only when it has to wait."""
        if not self._outgoing or (self._sending.value and self._send_now()):
            return
        async with self._sending:
            await self._send_outgoing()

    def flush_now(self) -> bool:
        """Send what is queued, as far as the socket takes it. False: call ``flush``, to send the rest or get the error.

        For callers that can neither wait nor handle an error.
        """
        try:
            return not self._outgoing or (self._sending.value > 0 and self._send_now())
        except OSError:
            return False

    async def send_frame(self, chunks: Sequence[Chunk]) -> None:
        """Send a frame that lies in memory and in files; the caller holds their leases. What was queued goes first.

        Raises FileShrankError when a file is shorter than its slice.
        """
        left = self.begin_frame(chunks)
        if left is None:
            with self._transfers.track(_slices(chunks)):
                await self._sending.acquire()
            try:
                await self._send_outgoing()
            except BaseException:
                self._sending.release()
                raise
            left = sum(map(len, chunks))
        if left:
            await self.end_frame(chunks, left)

    def begin_answer(self, answer: FetchAnswer, chunks: Sequence[Chunk]) -> Callable[[], Awaitable[None]] | None:
        """Send what the socket takes of a frame with the slices of ``answer`` now.

        Returns what a task has to do to end it, None if nothing. Closes the answer after an error, and when it is sent.
        """
        try:
            left = self.begin_frame(chunks)
        except BaseException:
            answer.close()
            raise
        if left == 0:
            answer.close()
            return None
        return partial(self._end_answer, answer, chunks, left)

    async def _end_answer(self, answer: FetchAnswer, chunks: Sequence[Chunk], left: int | None) -> None:
        with answer:
            if left is None:
                await self.send_frame(chunks)
            else:
                await self.end_frame(chunks, left)

    def begin_frame(self, chunks: Sequence[Chunk]) -> int | None:
        """Send what the socket takes of a frame without waiting; the number of bytes left.

        None: another frame is queued or being sent, and nothing was sent. If bytes are left, ``end_frame`` must
        follow, and until then nothing else is sent. At most SEND_STEP_BYTES of SLICES_A_STEP files are sent here.
        """
        if not self.is_free:
            return None
        self._check()
        left = sum(map(len, chunks))
        room = SEND_STEP_BYTES
        slices = SLICES_A_STEP
        last = len(chunks) - 1
        try:
            for number, chunk in enumerate(chunks):
                if isinstance(chunk, bytes | bytearray | memoryview):
                    # Without anything behind it the flag would keep it in the kernel for 200 ms.
                    sent = self._transport.send(chunk, more=number < last)
                elif room and slices:
                    slices -= 1
                    sent = self._transport.send_file(chunk.file, chunk.position, min(chunk.size, room)) or 0
                    room -= sent
                else:
                    break
                left -= sent
                if sent < len(chunk):
                    break
        except BlockingIOError:
            pass
        except BaseException:
            self._cut_short = True
            raise
        if left:
            self._sending.acquire_nowait()
        return left

    async def end_frame(self, chunks: Sequence[Chunk], left: int) -> None:
        """Send the last ``left`` bytes of a frame."""
        sent = sum(map(len, chunks)) - left
        slices = 0
        last = len(chunks) - 1
        try:
            with self._transfers.track(_slices(chunks)):
                for number, chunk in enumerate(chunks):
                    if sent >= len(chunk):
                        sent -= len(chunk)
                    elif isinstance(chunk, bytes | bytearray | memoryview):
                        await self._send_all(memoryview(chunk)[sent:], more=number < last)
                        sent = 0
                    else:
                        await self._send_slice(chunk, sent)
                        sent = 0
                        slices += 1
                        if slices % SLICES_A_STEP == 0:
                            await trio.lowlevel.checkpoint()
        except BaseException:
            self._cut_short = True
            raise
        finally:
            self._sending.release()

    def _send_now(self) -> bool:
        """Send without waiting; whether all was sent. If not, the rest is the head of the queue."""
        self._check()
        outgoing = self._outgoing
        data = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        try:
            sent = self._transport.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            outgoing.append(data)  # so that the next call raises the error, too
            raise
        if sent == len(data):
            return True
        outgoing.append(data[sent:])
        return False

    async def _send_outgoing(self) -> None:
        while self._outgoing:  # more may come while this waits
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            self._check()
            try:
                await self._send_all(data)
            except BaseException:
                self._cut_short = True
                raise
        self._check()

    async def _send_all(self, data: Buffer, *, more: bool = False) -> None:
        left = memoryview(data)
        while left:
            try:
                sent = self._transport.send(left, more=more)
                self.taken += sent
                left = left[sent:]
            except BlockingIOError:
                await self._wait_writable()

    async def _wait_writable(self) -> None:
        with trio.move_on_after(self._stall_seconds) as scope:
            await self._transport.wait_writable()
        if scope.cancelled_caught:
            raise CutError(f"it read nothing for {self._stall_seconds:g} s")

    async def _send_slice(self, piece: LogSlice, sent: int) -> None:
        """Send the slice without its first ``sent`` bytes."""
        file, position, end = piece.file, piece.position + sent, piece.position + piece.size
        while position < end:
            step = min(end - position, SEND_STEP_BYTES)
            try:
                count = self._transport.send_file(file, position, step)
            except BlockingIOError:
                await self._wait_writable()
                continue
            if count is None:
                # Sent from memory: the pages might be evicted again before sendfile reads them.
                data = await self._offload.cold_read(_read_in, file, step, position)
                if len(data) < step:
                    raise _shrank(file, position + len(data), end)
                await self._send_all(data)
                position += step
                continue
            if count == 0:
                raise _shrank(file, position, end)
            position += count
            self.taken += count
            if count == step and position < end:
                await trio.lowlevel.checkpoint()  # a fast reader must not hold the loop for a whole answer

    def _check(self) -> None:
        if self._cut_short:
            raise BrokenPipeError("an earlier frame was cut short")


def _slices(chunks: Sequence[Chunk]) -> list[LogSlice]:
    return [chunk for chunk in chunks if not isinstance(chunk, bytes | bytearray | memoryview)]


def _read_in(file: File, size: int, position: int) -> bytes:
    """Read bytes from the disk and start reading ahead; runs on a thread."""
    file.bring_in(position, READ_AHEAD_BYTES)
    return file.pread(size, position)


def _shrank(file: File, position: int, end: int) -> FileShrankError:
    return FileShrankError(
        f"{file.path} ends at or before {position}, although bytes up to {end} were to be sent: it was truncated"
    )
