"""The sending half of one native connection: whole frames, one after the other, the quick way where there is one.

Small replies are queued and go out together with one system call, straight from the task that made them: as long as
the socket takes them there is no task switch. Payloads of fetches go from file to socket with ``sendfile``.
"""

import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

import trio

from seglog_broker.listeners.broker_api import Slice
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.slow_readers import CutError, Transfers
from seglog_broker.storage.io.filesystem import Buffer, File
from seglog_protocol.errors import StorageError

SEND_STEP_BYTES: Final = 256 * 1024
"""Sent, or read in, at a time: the loop serves others between two steps, each a quarter of a millisecond at 1 GB/s."""

READ_AHEAD_BYTES: Final = 2 * 1024 * 1024
"""Asked for from the disk ahead of a reader whose bytes have to be read in, so that the disk has no pauses."""

_MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)
"""Header and payload share packets where the system knows how."""

_HAS_SENDFILE: Final = sys.platform == "linux"
"""macOS cannot tell whether a page is in memory: everything is read on a thread there, and nothing is left to gain."""


class FileShrankError(StorageError):
    """A file ended before the bytes that a frame had announced; the connection cannot be brought back in step."""


class Sender:
    """Sends frames on a non-blocking ``sock``, which stays the owner's to close.

    Any number of tasks may call ``queue``, ``flush`` and ``send_frame``; frames never mix. Socket trouble is raised as
    OSError, and CutError when the peer took nothing for ``stall_seconds`` or holds up what must go. After a frame was
    cut short, by an error or by cancellation, everything raises BrokenPipeError: the next byte would be taken for the
    rest of that frame.
    """

    def __init__(self, sock: socket.socket, offload: Offload, transfers: Transfers, stall_seconds: float) -> None:
        self._sock = sock
        self._offload = offload
        self._transfers = transfers
        self._stall_seconds = stall_seconds
        self._outgoing: list[bytes] = []
        self._sending = trio.Semaphore(1, max_value=1)  # taken while a frame is under way across a checkpoint
        self._cut_short = False

    @property
    def is_free(self) -> bool:
        """Whether a frame would go out at once, as far as it is for this side to say."""
        return self._sending.value > 0 and not self._outgoing

    def queue(self, frame: bytes) -> None:
        """Send ``frame`` with the next ``flush``; whoever queues must flush before it waits for anything else."""
        self._outgoing.append(frame)

    async def flush(self) -> None:
        """Return when the socket has taken all that was queued. A checkpoint only when it has to wait."""
        if not self._outgoing or (self._sending.value and self._send_now()):
            return
        async with self._sending:
            await self._send_outgoing()

    def flush_now(self) -> bool:
        """Send what was queued as far as the socket takes it. False: ``flush`` is to go on, or to raise what failed.

        For whoever can neither wait nor do anything about an error.
        """
        try:
            return not self._outgoing or (self._sending.value > 0 and self._send_now())
        except OSError:
            return False

    async def send_frame(self, prefix: bytes, slices: Sequence[Slice]) -> None:
        """Send a frame whose payload lies in files; the caller holds their leases. What was queued goes first.

        Raises FileShrankError when a file is shorter than its slice.
        """
        left = self.begin_frame(prefix, slices)
        if left is None:
            with self._transfers.track(slices):
                await self._sending.acquire()
            try:
                await self._send_outgoing()
            except BaseException:
                self._sending.release()
                raise
            left = _frame_size(prefix, slices)
        if left:
            await self.end_frame(prefix, slices, left)

    def begin_frame(self, prefix: bytes, slices: Sequence[Slice]) -> int | None:
        """Send what the socket takes of such a frame without waiting; how many bytes are left.

        None: another frame is under way, or there are others to be sent first. If any are left, ``end_frame`` must
        follow, and until then nothing else is sent. Of a frame with several slices only the prefix is tried.
        """
        if not self.is_free:
            return None
        self._check()
        sent = 0
        try:
            # Without a payload behind it, a header marked so would lie in the kernel for 200 ms, waiting for more.
            sent = self._sock.send(prefix, _MSG_MORE if slices else 0)
            if sent == len(prefix) and len(slices) == 1 and slices[0].size <= SEND_STEP_BYTES:
                sent += _send_file(self._sock, slices[0].file, slices[0].position, slices[0].size) or 0
        except BlockingIOError:
            pass
        except BaseException:
            self._cut_short = True
            raise
        left = _frame_size(prefix, slices) - sent
        if left:
            self._sending.acquire_nowait()
        return left

    async def end_frame(self, prefix: bytes, slices: Sequence[Slice], left: int) -> None:
        """Send the last ``left`` bytes of a frame."""
        sent = _frame_size(prefix, slices) - left
        try:
            with self._transfers.track(slices):
                await self._send_all(memoryview(prefix)[sent:], _MSG_MORE if slices else 0)
                sent = max(0, sent - len(prefix))
                for piece in slices:
                    await self._send_slice(piece, sent)
                    sent = 0
        except BaseException:
            self._cut_short = True
            raise
        finally:
            self._sending.release()

    def _send_now(self) -> bool:
        """Try without waiting; False leaves the rest at the head of the queue."""
        self._check()
        outgoing = self._outgoing
        data = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            outgoing.append(data)  # so that whoever tries again meets it too
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

    async def _send_all(self, data: Buffer, flags: int = 0) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._sock.send(left, flags) :]
            except BlockingIOError:
                await self._wait_writable()

    async def _wait_writable(self) -> None:
        with trio.move_on_after(self._stall_seconds) as scope:
            await trio.lowlevel.wait_writable(self._sock)
        if scope.cancelled_caught:
            raise CutError(f"it took nothing of what was sent to it for {self._stall_seconds:g} s")

    async def _send_slice(self, piece: Slice, sent: int) -> None:
        """Send what follows the first ``sent`` bytes of it."""
        file, position, end = piece.file, piece.position + sent, piece.position + piece.size
        while position < end:
            step = min(end - position, SEND_STEP_BYTES)
            try:
                count = _send_file(self._sock, file, position, step)
            except BlockingIOError:
                await self._wait_writable()
                continue
            if count is None:
                # What was read is sent as it is: by the time sendfile came for the pages they might be gone again.
                data = await self._offload.cold_read(_read_in, file, step, position)
                if len(data) < step:
                    raise _shrank(file, position + len(data), end)
                await self._send_all(data)
                position += step
                continue
            if count == 0:
                raise _shrank(file, position, end)
            position += count
            if count == step and position < end:
                await trio.lowlevel.checkpoint()  # a fast reader must not keep the loop for a whole answer

    def _check(self) -> None:
        if self._cut_short:
            raise BrokenPipeError("an earlier frame was cut short")


def _frame_size(prefix: bytes, slices: Sequence[Slice]) -> int:
    return len(prefix) + sum([piece.size for piece in slices])


def _send_file(sock: socket.socket, file: File, position: int, size: int) -> int | None:
    """Send from the file as much as the socket takes, 0 behind its end; None when the bytes have to be read first."""
    if not _HAS_SENDFILE:
        return None
    try:
        descriptor = file.fileno()
    except OSError:  # a file in memory
        return None
    return os.sendfile(sock.fileno(), descriptor, position, size) if file.is_cached(position, size) else None


def _read_in(file: File, size: int, position: int) -> bytes:
    """Bytes from the disk, and what follows them on its way; on a thread."""
    file.bring_in(position, READ_AHEAD_BYTES)
    return file.pread(size, position)


def _shrank(file: File, position: int, end: int) -> FileShrankError:
    return FileShrankError(
        f"{file.path} ends at or before {position}, although bytes up to {end} were to be sent: someone cut it"
    )
