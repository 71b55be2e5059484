"""Sending that waits for the peer to read: what a ``Sender`` has begun, queued frames, and files.

CutError is raised when the peer took nothing for the sender's ``stall_seconds``, or reads so slowly that it holds up a
deletion; errors of the socket as OSError.
"""

import math
from collections.abc import Sequence
from typing import Final

import trio

from seglog_broker.listeners.sender import SEND_STEP_BYTES, SLICE_COST_BYTES, Chunk, Sender, UnsentAnswer
from seglog_broker.runtime.response_memory import Room
from seglog_broker.runtime.slow_readers import CutError
from seglog_broker.storage.io.filesystem import Buffer, File
from seglog_broker.storage.segment.segment_log import LogSlice
from seglog_protocol.errors import StorageError

COLD_STEP_BYTES: Final = 256 * 1024
"""Bytes read from the disk at a time; an answer keeps them in memory until its peer has taken them."""

READ_AHEAD_BYTES: Final = 2 * 1024 * 1024
"""Bytes read ahead where pages are not in memory, so that the disk has no pauses."""


class FileShrankError(StorageError):
    """A file ended before the bytes that a frame had announced; the connection cannot be used any more."""


async def flush(sender: Sender) -> None:
    """Return when the socket has taken all that was queued. A checkpoint only when it has to wait."""
    if not sender.outgoing or (sender.sending.value and sender.send_now()):
        return
    async with sender.sending:
        await _send_outgoing(sender)


async def send_frame(sender: Sender, chunks: Sequence[Chunk]) -> None:
    """Send a frame that lies in memory and in files; the caller holds their leases. What was queued goes first.

    Raises FileShrankError when a file is shorter than its slice.
    """
    left = sender.begin_frame(chunks)
    if left is None:
        with sender.transfers.track(_slices(chunks)):
            await sender.sending.acquire()
        try:
            await _send_outgoing(sender)
        except BaseException:
            sender.sending.release()
            raise
        left = sum(map(len, chunks))
    if left:
        await end_frame(sender, chunks, left)


async def send_within(room: Room, sender: Sender, chunks: Sequence[Chunk]) -> None:
    """Send a frame whose memory is counted in ``room``: its peer is cut off if it is too slow while others wait."""
    with room.sending(lambda: sender.taken) as scope:
        await send_frame(sender, chunks)
    if scope.cancelled_caught:
        raise CutError("others wait for the memory of a response that it takes too slowly")


async def end_answer(sender: Sender, unsent: UnsentAnswer) -> None:
    """Send the rest of an answer, and close it."""
    with unsent.answer:
        if unsent.left is None:
            await send_frame(sender, unsent.chunks)
        else:
            await end_frame(sender, unsent.chunks, unsent.left)


async def end_frame(sender: Sender, chunks: Sequence[Chunk], left: int) -> None:
    """Send the last ``left`` bytes of a frame that ``Sender.begin_frame`` has begun."""
    sent, room = sum(map(len, chunks)) - left, SEND_STEP_BYTES
    try:
        with sender.transfers.track(_slices(chunks)):
            for chunk in chunks:
                if sent >= len(chunk):
                    sent -= len(chunk)
                    continue
                left -= len(chunk) - sent
                if isinstance(chunk, bytes | bytearray | memoryview):
                    await _send_all(sender, memoryview(chunk)[sent:], more=left > 0)
                else:
                    room = await _send_slice(sender, chunk, sent, room)
                sent = 0
    except BaseException:
        sender.is_cut_short = True
        raise
    finally:
        sender.sending.release()


async def _send_outgoing(sender: Sender) -> None:
    while sender.outgoing:  # more may come while this waits
        data = b"".join(sender.outgoing)
        sender.outgoing.clear()
        sender.check()
        try:
            await _send_all(sender, data)
        except BaseException:
            sender.is_cut_short = True
            raise
    sender.check()


async def _send_all(sender: Sender, data: Buffer, *, more: bool = False) -> None:
    left = memoryview(data)
    while left:
        try:
            sent = sender.transport.send(left, more=more)
            sender.taken += sent
            left = left[sent:]
            if left:
                await trio.lowlevel.checkpoint()  # encrypting all of a large frame would hold the loop
        except BlockingIOError:
            await _wait_writable(sender)


async def _wait_writable(sender: Sender) -> None:
    sender.transfers.waiting += 1
    sender.waits_since = trio.current_time()
    try:
        with trio.move_on_after(sender.stall_seconds) as scope:
            await sender.transport.wait_writable()
    finally:
        sender.transfers.waiting -= 1
        sender.waits_since = math.inf
    if scope.cancelled_caught:
        raise CutError(f"it read nothing for {sender.stall_seconds:g} s")


async def _send_slice(sender: Sender, piece: LogSlice, sent: int, room: int) -> int:
    """Send the slice without its first ``sent`` bytes, ``room`` bytes before others run; what is left of these."""
    file, position, end = piece.file, piece.position + sent, piece.position + piece.size
    while position < end:
        if room <= 0:
            await trio.lowlevel.checkpoint()  # a fast reader must not hold the loop for a whole answer
            room = SEND_STEP_BYTES
        step = min(end - position, room)
        try:
            count = sender.transport.send_file(file, position, step)
        except BlockingIOError:
            await _wait_writable(sender)
            continue
        if count is None:
            # Sent from memory: the pages might be evicted again before sendfile reads them.
            data = await sender.offload.cold_read(_read_in, file, min(step, COLD_STEP_BYTES), position)
            await _send_all(sender, data)
            count = len(data)
        else:
            sender.taken += count
        if not count:
            raise _shrank(file, position, end)
        position, room = position + count, room - count
    return room - SLICE_COST_BYTES


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
