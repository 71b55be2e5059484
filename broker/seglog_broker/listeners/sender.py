"""The sending half of one connection: whole frames, one after the other, and the replies to its appends.

Small replies are queued and sent together by one system call, from the task that made them: while the socket takes
them there is no task switch. Payloads of fetches go from file to socket with ``sendfile``. What is sent at once is
here, what waits for the peer in ``sending``.

Replies to appends are sent in order of arrival, each when its ack is reached. The task that ends a round of the group
commit sends the replies of all connections in a row, as long as none has to wait: waking one task for each connection
took longer than the sending. What has to wait is left to a task of the connection, ``ack_task``.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import trio

from seglog_broker.engine.pending_appends import Acknowledged
from seglog_broker.listeners.request_errors import AppendOutcome
from seglog_broker.listeners.transport import Transport
from seglog_broker.listeners.wire import Wire
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.runtime import budget
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.storage.segment.segment_log import LogSlice
from seglog_protocol.frame_receiver import Buffer

SEND_STEP_BYTES: Final = 1024 * 1024
"""Bytes of files sent in one step; other tasks run between two. It takes 0.1 to 0.3 ms."""

SLICE_COST_BYTES: Final = 8 * 1024
"""So many bytes as it costs to begin a part of a file: an answer from many partitions may have thousands of them."""

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
        must follow, and until then nothing else is sent. At most SEND_STEP_BYTES of files are sent here.
        """
        if not self.is_free:
            return None
        self.check()
        left = sum(map(len, chunks))
        room = SEND_STEP_BYTES
        try:
            for chunk in chunks:
                sent = 0
                if isinstance(chunk, bytes | bytearray | memoryview):
                    # Without a byte behind it the flag would keep it in the kernel for 200 ms.
                    sent = self.transport.send(chunk, more=left > len(chunk))
                    left -= sent
                else:
                    # Each call fills the send buffer of the socket; a fast peer has emptied it by the next one.
                    while (step := min(chunk.size - sent, room)) > 0 and (
                        count := self.transport.send_file(chunk.file, chunk.position + sent, step)
                    ):
                        sent, left, room = sent + count, left - count, room - count
                    room -= SLICE_COST_BYTES
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


APPENDS_IN_FLIGHT_MAX: Final = 1_000
"""Appends of one connection that are not acknowledged yet. At the limit the connection is not read: the peer waits."""

APPEND_BYTES_IN_FLIGHT_MAX: Final = 64 * 1024 * 1024
"""Bytes of their payloads together, so that one connection cannot put more than this before the fsync that all wait
for. The first append is always accepted, however large."""

REPLIES_A_TURN: Final = budget.items_of(cost=30)
"""Replies sent in a row before other tasks run, or those to appends that were served together."""


class Unanswered:
    """Appends that were served together, ``began`` by ``time.perf_counter``; ``size`` is their payloads' in bytes."""

    __slots__ = ("began", "outcome", "request_ids", "size")

    def __init__(
        self, request_ids: Sequence[Any], outcome: Acknowledged | list[AppendOutcome], size: int, began: float
    ) -> None:
        self.request_ids = request_ids
        self.outcome = outcome
        self.size = size
        self.began = began

    @property
    def replies(self) -> list[AppendOutcome] | None:
        """The replies to them; None while they are not known."""
        return self.outcome if isinstance(self.outcome, list) else self.outcome.replies


class AckQueue:
    """Filled as the connection's appends are served, and emptied as their acks are reached, or by ``ack_task``.

    While the queue is empty, an append that need not wait is answered without it. Behind a waiting append it queues,
    and so does one whose reply is long: that is encoded in parts, and others run in between. ``wire`` encodes.
    """

    def __init__(self, sender: Sender, wire: Wire) -> None:
        self.appends_max = APPENDS_IN_FLIGHT_MAX
        self.bytes_max = APPEND_BYTES_IN_FLIGHT_MAX
        self.sender = sender
        self.wire = wire
        self.unanswered: list[Unanswered] = []
        """In their order."""
        self._count = 0
        self._bytes = 0
        self.is_finished = False
        self.is_listening = False
        """For the ack of the first; else the task answers it, or is about to."""
        self.filled: trio.Event | None = None
        """Wakes the task, where it waits."""
        self.shortened: trio.Event | None = None
        """Set when some were answered, where something waits for that."""

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether the connection is not to be read."""
        return self._count >= self.appends_max or self._bytes >= self.bytes_max

    @property
    def room(self) -> tuple[int, int]:
        """How many more appends it takes until it is full, and of how many bytes together."""
        return self.appends_max - self._count, self.bytes_max - self._bytes

    def add(
        self, request_ids: Sequence[Any], outcome: Acknowledged | list[AppendOutcome], size: int, began: float
    ) -> None:
        """Queue the replies to appends that were served together; the arguments are those of ``Unanswered``."""
        self.unanswered.append(Unanswered(request_ids, outcome, size, began))
        self._count += len(request_ids)
        self._bytes += size
        if not self.is_listening and (len(self.unanswered) > 1 or not self.listen()):
            self.wake()

    def wake(self) -> None:
        """Wake the task."""
        if self.filled is not None:
            self.filled.set()

    def listen(self) -> bool:
        """Listen for the ack of the first appends in the queue; False when the task has to wait for it instead."""
        outcome = self.unanswered[0].outcome
        self.is_listening = not isinstance(outcome, list) and outcome.listen(self._reached)
        return self.is_listening

    def finish(self) -> None:
        """End the queue: nothing is added any more, and the task ends when all is answered."""
        self.is_finished = True
        self.wake()

    def _reached(self) -> None:
        """Send the replies that are known, without waiting; the task does the rest."""
        if not self.is_listening:
            return
        self.is_listening = False
        answered = 0
        takes_turns = False
        while self.unanswered and answered < REPLIES_A_TURN and (replies := self.unanswered[0].replies) is not None:
            first = self.unanswered[0]
            frames = self.wire.encode_appended(first.request_ids, replies, first.began)
            if frames is None:
                takes_turns = True
                break
            answered += self.reply_to_first(frames)
        is_done = self.sender.flush_now() and not takes_turns
        if self.unanswered:  # where listening gave no reply, the task waits for it, which raises the error
            is_done = is_done and 0 < answered < REPLIES_A_TURN and self.listen()
        if not is_done:
            self.wake()

    def reply_to_first(self, frames: Buffer) -> int:
        """Send ``frames``, the replies to the first in the queue; their number."""
        first = self.unanswered.pop(0)
        self.sender.queue(frames)
        count = len(first.request_ids)
        self._count -= count
        self._bytes -= first.size
        if self.shortened is not None:
            self.shortened.set()
        return count
