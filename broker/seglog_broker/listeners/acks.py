"""Replies to the appends of one connection, in order of arrival, each sent when its ack is reached.

The task that ends a round of the group commit sends the replies of all connections in a row, as long as none has to
wait: waking one task for each connection took longer than the sending. What has to wait is left to a task of the
connection, ``ack_task``.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import trio

from seglog_broker.engine.pending_appends import Acknowledged
from seglog_broker.listeners.request_errors import AppendOutcome
from seglog_broker.listeners.sender import Sender
from seglog_broker.listeners.wire import Wire
from seglog_broker.runtime import budget
from seglog_protocol.frame_receiver import Buffer

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
        self.unanswered: deque[Unanswered] = deque()
        """In their order."""
        self._count = 0
        self._bytes = 0
        self.is_finished = False
        self.is_listening = False
        """For the ack of the first; else the task answers it, or is about to."""
        self.filled = trio.Event()
        """Wakes the task."""
        self.shortened = trio.Event()
        """Set when some were answered."""

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
            self.filled.set()

    def listen(self) -> bool:
        """Listen for the ack of the first appends in the queue; False when the task has to wait for it instead."""
        outcome = self.unanswered[0].outcome
        self.is_listening = not isinstance(outcome, list) and outcome.listen(self._reached)
        return self.is_listening

    def finish(self) -> None:
        """End the queue: nothing is added any more, and the task ends when all is answered."""
        self.is_finished = True
        self.filled.set()

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
            self.filled.set()

    def reply_to_first(self, frames: Buffer) -> int:
        """Send ``frames``, the replies to the first in the queue; their number."""
        first = self.unanswered.popleft()
        self.sender.queue(frames)
        count = len(first.request_ids)
        self._count -= count
        self._bytes -= first.size
        self.shortened.set()
        return count
