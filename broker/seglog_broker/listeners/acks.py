"""Replies to the appends of one connection, in order of arrival, each sent when its ack is reached.

The task that ends a round of the group commit sends the replies of all connections in a row, as long as none has to
wait: waking one task for each connection took longer than the sending.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from seglog_broker.listeners.broker_api import Pending
from seglog_broker.listeners.replies import as_seglog_error, count_errors, encode_long_reply, encode_reply, is_long
from seglog_broker.listeners.sender import Sender
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import AppendReply

APPENDS_IN_FLIGHT_MAX: Final = 1_000
"""Appends of one connection that are not acknowledged yet. At the limit the connection is not read: the peer waits."""

APPEND_BYTES_IN_FLIGHT_MAX: Final = 64 * 1024 * 1024
"""Bytes of their payloads together, so that one connection cannot put more than this before the fsync that all wait
for. The first append is always accepted, however large."""

REPLIES_A_TURN: Final = 64
"""Replies sent in a row before other tasks run."""


class AckQueue:
    """Filled by the task that reads the connection, emptied by the one that runs ``run``.

    While the queue is empty, an append that need not wait is answered without it. Behind a waiting append it queues,
    and so does one whose reply is long: that is encoded in parts, a ``turn`` between two. Errors are counted in
    ``error_counts``, by code.
    """

    def __init__(
        self,
        sender: Sender,
        error_counts: Counter[str],
        turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        self._sender = sender
        self._error_counts = error_counts
        self._turn = turn
        self._queue: deque[tuple[int, Pending | AppendReply | SeglogError, int]] = deque()
        self._bytes = 0
        self._finished = False
        self._is_listening = False  # for the first in the queue; else ``run`` answers it, or is about to
        self._answered = 0
        self._filled = trio.Event()
        self._shortened = trio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether the connection is not to be read."""
        return len(self._queue) >= APPENDS_IN_FLIGHT_MAX or self._bytes >= APPEND_BYTES_IN_FLIGHT_MAX

    def add(self, request_id: int, outcome: Pending | AppendReply | SeglogError, size: int) -> None:
        """Queue the reply to an append; ``size`` is that of its payload in bytes."""
        self._queue.append((request_id, outcome, size))
        self._bytes += size
        if not self._is_listening and (len(self._queue) > 1 or not self._listen()):
            self._filled.set()

    def _listen(self) -> bool:
        """Listen for the ack of the first append in the queue; False when ``run`` has to wait for it instead."""
        outcome = self._queue[0][1]
        self._is_listening = not isinstance(outcome, (AppendReply, SeglogError)) and outcome.listen(self._reached)
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

    async def run(self) -> None:
        """Send the replies until ``finish``. Raises OSError when the peer cannot be reached."""
        while True:
            self._filled = trio.Event()  # first, so that an append added during a wait below is seen
            self._is_listening = False
            while self._queue and (self._finished or self._first_reply() is not None or not self._listen()):
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
        while self._queue and answered < REPLIES_A_TURN and (reply := self._first_reply()) is not None:
            takes_turns = is_long(reply)
            if takes_turns:
                break
            self._reply_to_first(reply)
            answered += 1
        is_done = self._sender.flush_now() and not takes_turns
        if self._queue:  # where listening gave no reply, ``run`` waits for it, which raises the error
            is_done = is_done and 0 < answered < REPLIES_A_TURN and self._listen()
        if not is_done:
            self._filled.set()

    async def _answer_first(self) -> None:
        reply = self._first_reply()  # one fsync reaches many, and their replies go out together
        if reply is None:
            await self._sender.flush()
            outcome = self._queue[0][1]
            assert not isinstance(outcome, (AppendReply, SeglogError))
            try:
                reply = await outcome.wait()
            except Exception as error:  # noqa: BLE001 - answered and, unless the client is at fault, logged
                reply = as_seglog_error(error, "append")
        frame = await self._encode_long(reply)
        # It stays in the queue until here, so that no later append is answered before it.
        self._reply_to_first(reply, frame)
        self._answered += 1
        if self._answered % REPLIES_A_TURN == 0:
            await self._sender.flush()
            await trio.lowlevel.checkpoint()

    def _first_reply(self) -> AppendReply | SeglogError | None:
        """The reply to the first append in the queue; None while it is not known."""
        outcome = self._queue[0][1]
        return outcome if isinstance(outcome, (AppendReply, SeglogError)) else outcome.reply

    async def _encode_long(self, reply: AppendReply | SeglogError) -> bytes | None:
        """The frame of the reply to the first append, if it is a long one."""
        if isinstance(reply, SeglogError):
            return None
        request_id = self._queue[0][0]
        try:
            return await encode_long_reply(request_id, reply, 0, self._turn)
        except SeglogError as error:  # too long for a frame
            return encode_reply(request_id, error)

    def _reply_to_first(self, reply: AppendReply | SeglogError, frame: bytes | None = None) -> None:
        """Send ``reply``; ``frame`` holds it encoded, where that was done before."""
        request_id, _, size = self._queue.popleft()
        count_errors(self._error_counts, reply)
        self._sender.queue(frame or encode_reply(request_id, reply))
        self._bytes -= size
        self._shortened.set()
