"""Replies to the appends of one connection, in order of arrival, each sent when its ack is reached.

The task that ends a round of the group commit sends the replies of all connections in a row, as long as none has to
wait: waking one task for each connection took longer than the sending.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import trio

from seglog_broker.api.pending_appends import Acknowledged
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error
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


class _Waiting(NamedTuple):
    """Appends that were served together; ``size`` is that of their payloads in bytes."""

    request_ids: Sequence[Any]
    outcome: Acknowledged | list[AppendOutcome]
    size: int

    @property
    def replies(self) -> list[AppendOutcome] | None:
        """The replies to them; None while they are not known."""
        return self.outcome if isinstance(self.outcome, list) else self.outcome.replies


class AckQueue:
    """Filled by the task that reads the connection, emptied by the one that runs ``run``.

    While the queue is empty, an append that need not wait is answered without it. Behind a waiting append it queues,
    and so does one whose reply is long: that is encoded in parts, and others run in between. ``wire`` encodes.
    """

    def __init__(self, sender: Sender, wire: Wire) -> None:
        self.appends_max = APPENDS_IN_FLIGHT_MAX
        self.bytes_max = APPEND_BYTES_IN_FLIGHT_MAX
        self._sender = sender
        self._wire = wire
        self._queue: deque[_Waiting] = deque()
        self._count = 0
        self._bytes = 0
        self._finished = False
        self._is_listening = False  # for the first in the queue; else ``run`` answers it, or is about to
        self._answered = 0
        self._filled = trio.Event()
        self._shortened = trio.Event()

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

    def add(self, request_ids: Sequence[Any], outcome: Acknowledged | list[AppendOutcome], size: int) -> None:
        """Queue the replies to appends that were served together; ``size`` is that of their payloads in bytes."""
        self._queue.append(_Waiting(request_ids, outcome, size))
        self._count += len(request_ids)
        self._bytes += size
        if not self._is_listening and (len(self._queue) > 1 or not self._listen()):
            self._filled.set()

    def _listen(self) -> bool:
        """Listen for the ack of the first appends in the queue; False when ``run`` has to wait for it instead."""
        outcome = self._queue[0].outcome
        self._is_listening = not isinstance(outcome, list) and outcome.listen(self._reached)
        return self._is_listening

    def finish(self) -> None:
        """End the queue: nothing is added any more, and ``run`` returns when all is answered."""
        self._finished = True
        self._filled.set()

    async def wait_shortened(self) -> None:
        """Return when the queue is not full."""
        while self.is_full:
            self._shortened = trio.Event()
            await self._shortened.wait()

    async def wait_empty(self) -> None:
        """Return when all is answered."""
        while self._queue:
            self._shortened = trio.Event()
            await self._shortened.wait()

    async def run(self) -> None:
        """Send the replies until ``finish``. Raises OSError when the peer cannot be reached."""
        while True:
            self._filled = trio.Event()  # first, so that an append added during a wait below is seen
            self._is_listening = False
            while self._queue and (self._finished or self._queue[0].replies is not None or not self._listen()):
                await self._answer_first()
            await self._sender.flush()
            if self._finished and not self._queue:
                return
            await self._filled.wait()

    def _reached(self) -> None:
        """Send the replies that are known, without waiting; ``run`` does the rest."""
        if not self._is_listening:
            return
        self._is_listening = False
        answered = 0
        takes_turns = False
        while self._queue and answered < REPLIES_A_TURN and (replies := self._queue[0].replies) is not None:
            frames = self._wire.encode_appended(self._queue[0].request_ids, replies)
            if frames is None:
                takes_turns = True
                break
            answered += self._reply_to_first(frames)
        is_done = self._sender.flush_now() and not takes_turns
        if self._queue:  # where listening gave no reply, ``run`` waits for it, which raises the error
            is_done = is_done and 0 < answered < REPLIES_A_TURN and self._listen()
        if not is_done:
            self._filled.set()

    async def _answer_first(self) -> None:
        self._is_listening = False  # else it would be answered twice
        first = self._queue[0]
        replies = first.replies  # one fsync reaches many, and their replies go out together
        if replies is None:
            await self._sender.flush()
            assert not isinstance(first.outcome, list)
            try:
                replies = await first.outcome.wait()
            except Exception as error:  # noqa: BLE001 - answered and, unless the client is at fault, logged
                replies = [as_seglog_error(error, "append")] * len(first.request_ids)
        frames = self._wire.encode_appended(first.request_ids, replies)
        if frames is None:
            frames = await self._wire.encode_long_appended(first.request_ids, replies)
        # They stay in the queue until here, so that no later append is answered before them.
        self._answered += self._reply_to_first(frames)
        if self._answered >= REPLIES_A_TURN:
            self._answered = 0
            await self._sender.flush()
            await trio.lowlevel.checkpoint()

    def _reply_to_first(self, frames: Buffer) -> int:
        """Send ``frames``, the replies to the first in the queue; their number."""
        request_ids, _, size = self._queue.popleft()
        self._sender.queue(frames)
        self._count -= len(request_ids)
        self._bytes -= size
        self._shortened.set()
        return len(request_ids)
