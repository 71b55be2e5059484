"""The sending half of one connection: whole frames, one after the other.

Small replies are queued and sent together by one system call, from the task that made them: while the socket takes
them there is no task switch. Payloads of fetches go from file to socket with ``sendfile``. What is sent at once is
here, what waits for the peer in ``sending``.
"""

import math
from collections.abc import Sequence
from typing import Final

import trio

from seglog_broker.listeners.transport import Transport
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.runtime import budget
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.storage.segment.segment_log import LogSlice

SEND_STEP_BYTES: Final = 256 * 1024
"""Bytes sent, or read from the disk, in one step; other tasks run between two. It takes 0.25 ms at 1 GB/s."""

SLICES_A_STEP: Final = budget.items_of(cost=15)
"""Parts of files that are sent in one step: an answer from many partitions may have thousands of some bytes each."""

Chunk = Buffer | LogSlice
"""A part of a frame: bytes in memory, or a range of a file."""


class UnsentAnswer:
    """The answer to a fetch, of whose frame ``left`` bytes are not sent; None: nothing is, because another frame is."""

    __slots__ = ("answer", "chunks", "left")

    def __init__(self, answer: FetchAnswer, chunks: Sequence[Chunk], left: int | None) -> None:
        self.answer = answer
        self.chunks = chunks
        self.left = left


class Sender:
    """Sends frames on ``transport``, which the owner closes.

    Any number of tasks may use it; frames never mix. Errors of the socket are raised as OSError. After a frame was cut
    short, by an error or by cancellation, everything raises BrokenPipeError: the peer would take the next byte for the
    rest of that frame.
    """

    def __init__(self, transport: Transport, offload: Offload, transfers: Transfers, stall_seconds: float) -> None:
        self.transport = transport
        self.offload = offload
        self.transfers = transfers
        self.stall_seconds = stall_seconds
        self.outgoing: list[Buffer] = []
        """What is queued."""
        self.sending = trio.Semaphore(1, max_value=1)
        """Taken while a frame is under way across a checkpoint."""
        self.is_cut_short = False
        """Whether a frame was, so that the peer understands nothing more."""
        self.waits_since = math.inf
        """Since when it waits for the peer to read, by trio's clock; inf where it does not."""
        self.taken = 0
        """Bytes that the socket has taken while somebody waited for that, as for any large frame."""

    @property
    def is_free(self) -> bool:
        """Whether no other frame is queued or being sent."""
        return self.sending.value > 0 and not self.outgoing

    def queue(self, frame: Buffer) -> None:
        """Send ``frame`` with the next flush. The caller must flush before it waits for anything else."""
        self.outgoing.append(frame)

    def flush_now(self) -> bool:
        """Send what is queued, as far as the socket takes it. For callers that can neither wait nor handle an error.

        False: call ``sending.flush``, to send the rest or get the error.
        """
        try:
            return not self.outgoing or (self.sending.value > 0 and self.send_now())
        except OSError:
            return False

    def begin_answer(self, answer: FetchAnswer, chunks: Sequence[Chunk]) -> UnsentAnswer | None:
        """Send what the socket takes of a frame with the slices of ``answer`` now; None if that is all.

        Else ``sending.end_answer`` must follow. Closes the answer after an error, and when it is sent.
        """
        try:
            left = self.begin_frame(chunks)
        except BaseException:
            answer.close()
            raise
        if left == 0:
            answer.close()
            return None
        return UnsentAnswer(answer, chunks, left)

    def begin_frame(self, chunks: Sequence[Chunk]) -> int | None:
        """Send what the socket takes of a frame without waiting; the number of bytes left.

        None: another frame is queued or being sent, and nothing was sent. If bytes are left, ``sending.end_frame``
        must follow, and until then nothing else is sent. At most SEND_STEP_BYTES of SLICES_A_STEP files are sent here.
        """
        if not self.is_free:
            return None
        self.check()
        left = sum(map(len, chunks))
        room = SEND_STEP_BYTES
        slices = SLICES_A_STEP
        try:
            for chunk in chunks:
                if isinstance(chunk, bytes | bytearray | memoryview):
                    # Without a byte behind it the flag would keep it in the kernel for 200 ms.
                    sent = self.transport.send(chunk, more=left > len(chunk))
                elif room and slices:
                    slices -= 1
                    sent = self.transport.send_file(chunk.file, chunk.position, min(chunk.size, room)) or 0
                    room -= sent
                else:
                    break
                left -= sent
                if sent < len(chunk):
                    break
        except BlockingIOError:
            pass
        except BaseException:
            self.is_cut_short = True
            raise
        if left:
            self.sending.acquire_nowait()
        return left

    def send_now(self) -> bool:
        """Send without waiting; whether all was sent. If not, the rest is the head of the queue."""
        self.check()
        outgoing = self.outgoing
        data = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        try:
            sent = self.transport.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            outgoing.append(data)  # so that the next call raises the error, too
            raise
        if sent == len(data):
            return True
        outgoing.append(data[sent:])
        return False

    def check(self) -> None:
        """Raise BrokenPipeError if a frame was cut short."""
        if self.is_cut_short:
            raise BrokenPipeError("an earlier frame was cut short")
