"""Replies to appends of one connection, in the order in which the appends arrived, each when its ack is reached."""

from collections import Counter, deque
from typing import Final

import trio

from seglog_broker.listeners.broker_face import Pending
from seglog_broker.listeners.replies import as_seglog_error, count_errors, encode_reply
from seglog_broker.listeners.sender import Sender
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import AppendReply

APPENDS_IN_FLIGHT_MAX: Final = 1_000
"""Appends of one connection whose ack has not been sent. At the limit the connection is not read: the peer waits."""

APPEND_BYTES_IN_FLIGHT_MAX: Final = 64 * 1024 * 1024
"""Their payload together, so that one connection cannot put more than this in front of everybody's next fsync. The
first append is always let in, however large."""

REPLIES_A_TURN: Final = 64
"""Answered in a row and sent at once, before others get their turn."""


class AckQueue:
    """Filled by the task that reads the connection, emptied by the one that runs ``run``.

    An append that needs no waiting is answered without this queue while it is empty; behind a waiting one it queues.
    Errors are counted in ``error_counts``, by code.
    """

    def __init__(self, sender: Sender, error_counts: Counter[str]) -> None:
        self._sender = sender
        self._error_counts = error_counts
        self._queue: deque[tuple[int, Pending | AppendReply | SeglogError, int]] = deque()
        self._bytes = 0
        self._finished = False
        self._answered = 0
        self._filled = trio.Event()
        self._shortened = trio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether to stop reading."""
        return len(self._queue) >= APPENDS_IN_FLIGHT_MAX or self._bytes >= APPEND_BYTES_IN_FLIGHT_MAX

    def add(self, request_id: int, outcome: Pending | AppendReply | SeglogError, size: int) -> None:
        """Answer with ``outcome`` after all that were added before; ``size`` is that of the payload."""
        self._queue.append((request_id, outcome, size))
        self._bytes += size
        self._filled.set()

    def finish(self) -> None:
        """No more will be added: ``run`` returns when it has answered all."""
        self._finished = True
        self._filled.set()

    async def wait_shortened(self) -> None:
        """Return when the queue is not full."""
        while self.is_full:
            self._shortened = trio.Event()
            await self._shortened.wait()

    async def run(self) -> None:
        """Answer, until ``finish``. Raises OSError when the peer cannot be reached."""
        while True:
            while self._queue:
                await self._answer_first()
            await self._sender.flush()
            if self._finished:
                return
            self._filled = trio.Event()
            await self._filled.wait()

    async def _answer_first(self) -> None:
        request_id, outcome, size = self._queue[0]
        reply: AppendReply | SeglogError | None
        if isinstance(outcome, (AppendReply, SeglogError)):
            reply = outcome
        else:
            reply = outcome.reply  # one fsync reaches many, and their replies go out together
            if reply is None:
                await self._sender.flush()
                try:
                    reply = await outcome.wait()
                except Exception as error:  # noqa: BLE001 - it is answered and, unless it is the asker's fault, logged
                    reply = as_seglog_error(error, "append")
        count_errors(self._error_counts, reply)
        self._sender.queue(encode_reply(request_id, reply))
        # It stays first in the queue until here, so that nothing newer is answered around it meanwhile.
        self._queue.popleft()
        self._bytes -= size
        self._shortened.set()
        self._answered += 1
        if self._answered % REPLIES_A_TURN == 0:
            await self._sender.flush()
            await trio.lowlevel.checkpoint()
