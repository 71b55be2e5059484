"""Replies of the native protocol as bytes, and those to the fetches of one connection, when there are records for them.

Nearly all fetches that wait do so without a task (``fetch_purgatory``). One that waits for something else, or fails,
gets a task of its own in the connection's nursery (``slow_requests``).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.native.permissions import Refused
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error, count_errors
from seglog_broker.listeners.sender import Sender, UnsentAnswer
from seglog_broker.listeners.sending import end_answer
from seglog_broker.listeners.usage import Usage
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.runtime import budget
from seglog_broker.runtime.metrics import ApiMetrics
from seglog_protocol.errors import InvalidRequestError, SeglogError
from seglog_protocol.frame_receiver import LENGTH_SIZE, Buffer
from seglog_protocol.frames import PREFIX, encode_frame, encode_packed_prefix
from seglog_protocol.messages import (
    AppendReply,
    AppendRequest,
    FetchReply,
    FetchRequest,
    Message,
    pack_fields,
    pack_reply,
    pack_reply_header,
    pack_reply_into,
    reply_header,
)

NO_ID: Final = None
"""The id in a reply to no request: the peer's bytes could not be decoded, and the connection ends."""


def encode_reply(request_id: int, reply: Message | SeglogError) -> bytes:
    """The frame of a reply. A reply that cannot be encoded becomes an error reply."""
    try:
        return encode_packed_prefix(pack_reply(request_id, reply), 0)
    except Exception as error:  # noqa: BLE001 - a bug in one reply must not end the others
        return encode_packed_prefix(pack_reply(request_id, as_seglog_error(error, type(reply).__name__)), 0)


def queue_reply(
    sender: Sender, counts: ApiMetrics, began: float, request_id: int, reply: Message | SeglogError
) -> None:
    """Send a reply with the next flush, and count it; its request was taken up at ``began``."""
    count_errors(counts.errors, reply)
    frame = encode_reply(request_id, reply)
    counts.note_answers(1, len(frame), began)
    sender.queue(frame)


def encode_append_replies(
    request_ids: Sequence[int], replies: Sequence[AppendOutcome], counts: ApiMetrics, began: float
) -> Buffer | None:
    """The frames of replies to appends, None if one is long; they and their errors are counted.

    Their requests were taken up at ``began``.
    """
    if any(map(is_long, replies)):
        return None
    frames = bytearray()
    for request_id, reply in zip(request_ids, replies):
        count_errors(counts.errors, reply)
        begin = len(frames)
        try:
            frames += _NO_PREFIX
            pack_reply_into(frames, request_id, reply)
        except Exception as error:  # noqa: BLE001 - a bug in one reply must not end the others
            del frames[begin:]
            frames += encode_reply(request_id, as_seglog_error(error, AppendRequest.api))
            continue
        size = len(frames) - begin
        PREFIX.pack_into(frames, begin, size - LENGTH_SIZE, size - PREFIX.size)
    counts.note_answers(len(request_ids), len(frames), began)
    return frames


_NO_PREFIX: Final = bytes(PREFIX.size)

RESULTS_A_TURN: Final = budget.items_of(cost=8)
"""Items of the lists of a long reply that are encoded before other tasks run."""


def is_long(reply: Message | SeglogError) -> bool:
    """Whether the reply has a list of more items than are encoded at once."""
    if isinstance(reply, AppendReply):  # nearly always
        return len(reply.partitions) > RESULTS_A_TURN
    if isinstance(reply, SeglogError):
        return False
    lists = (value for name in reply.__struct_fields__ if isinstance(value := getattr(reply, name), list))
    return any(len(items) > RESULTS_A_TURN for items in lists)


_latest_fields: tuple[FetchReply | None, bytes] = None, b""
"""The fetch reply that was encoded last: one append often wakes many fetches that get the same reply."""


def encode_fetch_prefix(request_id: int, reply: FetchReply, payload_size: int) -> bytes:
    """The frame of a reply to a fetch, up to its payload."""
    global _latest_fields
    latest, fields = _latest_fields
    if latest is not reply:
        fields = pack_fields(reply)
        _latest_fields = reply, fields
    return encode_packed_prefix(pack_reply_header(request_id, fields), payload_size)


def encode_last_error(error: SeglogError) -> bytes:
    """The last frame of a connection: an error without a request id."""
    return encode_frame(reply_header(0, error) | {"id": NO_ID})


FETCHES_IN_FLIGHT_MAX: Final = 100
"""Fetches of one connection that wait for records or to be sent. One more is refused: not reading the connection would
hold up all other requests behind a long poll."""

PARTITIONS_WAITING_MAX: Final = 20_000
"""Partitions in all waiting fetches of one connection; each takes memory while it waits."""


class Outcome(NamedTuple):
    """The result of ``answer``; a task must send the ``rest`` of it (``sending.end_answer``), if there is one."""

    rest: UnsentAnswer | None
    has_errors: bool


_DONE: Final = Outcome(None, has_errors=False)
_FAILED: Final = Outcome(None, has_errors=True)


@dataclass(eq=False, repr=False)
class Fetches:
    """Answers fetches with ``sender``, adding them to ``counts``. Its length is the number of those that wait."""

    broker: Broker
    sender: Sender
    counts: ApiMetrics
    usage: Usage
    _wait: "Callable[[Fetches, int, FetchRequest, Waiter, float, Refused | None], Awaitable[None]]"
    """What the task of a fetch does that needs one: it gets these, the fetch, when it began, and what is refused."""

    def __post_init__(self) -> None:
        self.waiting: dict[int, Waiter] = {}
        """That of each fetch that waits for records, by request id."""
        self.cancelled: dict[int, None] = {}
        """The ids of fetches that the client cancelled."""
        self.stop_reason: str | None = None
        self._count = 0
        self._partitions = 0

    def __len__(self) -> int:
        return self._count

    def answer(
        self, request_id: int, request: FetchRequest, nursery: trio.Nursery, began: float, refused: Refused | None
    ) -> Outcome:
        """Answer a fetch that ``began`` now, or let it wait. Raises OSError when the connection is lost.

        With ``refused`` parts it does not wait for records.
        """
        try:
            answer = self.broker.fetch_now(request)
            if answer is None:
                self._start(request_id, request, nursery, began, refused)
                return _DONE
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self.queue_error(request_id, as_seglog_error(error, FetchRequest.api), began)
            return _FAILED
        if refused is not None:
            answer.reply = refused.whole(answer.reply)
        try:
            rest = self._begin(request_id, answer, began)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing is sent yet, so it can be answered
            self.queue_error(request_id, as_seglog_error(error, FetchRequest.api), began)
            return _FAILED
        return Outcome(rest, any(result.error is not None for result in answer.reply.partitions))

    def _begin(self, request_id: int, answer: FetchAnswer, began: float) -> UnsentAnswer | None:
        """Send what the socket takes of an answer now, and close it if that is all, or after an error."""
        try:
            prefix = self.encode_answer(request_id, answer, began)
        except BaseException:
            answer.close()
            raise
        return self.sender.begin_answer(answer, [prefix, *answer.slices])

    def _start(
        self, request_id: int, request: FetchRequest, nursery: trio.Nursery, began: float, refused: Refused | None
    ) -> None:
        if self._count >= FETCHES_IN_FLIGHT_MAX:
            raise InvalidRequestError(
                f"{self._count} fetches are waiting on this connection already, which is the limit", field=""
            )
        if self._count and self._partitions + len(request.partitions) > PARTITIONS_WAITING_MAX:
            raise InvalidRequestError(
                f"fetches for {self._partitions} partitions are waiting on this connection already, with more "
                f"they would be above the limit of {PARTITIONS_WAITING_MAX}",
                field="partitions",
            )
        if request_id in self.waiting:
            raise InvalidRequestError(f"a fetch with id {request_id} is waiting already", field="id")
        self._count += 1
        self._partitions += len(request.partitions)
        # Registered here, because `stop` may come before a task has run.
        waiter = Waiter(partial(self.usage.during, self._retry_fetch, request_id, request, nursery, began))
        self.waiting[request_id] = waiter
        if self.stop_reason is not None:
            waiter.end()
        if waiter.is_ended or refused is not None or not self.broker.wait_for(request, waiter):
            nursery.start_soon(self._wait, self, request_id, request, waiter, began, refused)

    def _retry_fetch(
        self, request_id: int, request: FetchRequest, nursery: trio.Nursery, began: float, waiter: Waiter
    ) -> None:
        """Answer a fetch that has waited; if that fails here, a task does it, which also handles the errors."""
        if not waiter.is_ended and self._answer_waiting(request_id, request, nursery, began, waiter):
            del self.waiting[request_id]
            self.end_fetch(request)
        else:
            nursery.start_soon(self._wait, self, request_id, request, waiter, began, None)

    def _answer_waiting(
        self, request_id: int, request: FetchRequest, nursery: trio.Nursery, began: float, waiter: Waiter
    ) -> bool:
        """Send the answer to a waiting fetch, if it is known; whether it is sent or being sent."""
        if not self.sender.is_free:
            return False
        try:
            answer = self.broker.fetch_now(request, waiter)
        except Exception:  # noqa: BLE001 - see above
            return False
        if answer is None:
            return False
        try:
            rest = self._begin(request_id, answer, began)
        except Exception:  # noqa: BLE001 - see above
            return False
        if rest is not None:
            nursery.start_soon(end_answer, self.sender, rest)
        return True

    def end_fetch(self, request: FetchRequest) -> None:
        """A fetch that was counted is answered, or dropped."""
        self._count -= 1
        self._partitions -= len(request.partitions)

    def cancel(self, target: int) -> bool:
        """End the fetch with this id, as its client asks; whether it was waiting."""
        waiter = self.waiting.get(target)
        if waiter is None:
            return False
        self.cancelled[target] = None
        waiter.end()
        return True

    def stop(self, reason: str) -> None:
        """End all that wait, with an error that gives the reason."""
        self.stop_reason = reason
        for waiter in self.waiting.values():
            waiter.end()

    def drop(self) -> None:
        """End all that wait; they get no reply."""
        for waiter in self.waiting.values():
            waiter.unwatch()  # else those without a task would get one
            waiter.end()
        self.waiting.clear()

    def encode_answer(self, request_id: int, answer: FetchAnswer, began: float, prefix: bytes | None = None) -> bytes:
        """The frame of an answer without its slices of files, added to the metrics.

        ``prefix`` is the frame up to the payload, where it is encoded already.
        """
        counts = self.counts
        self.usage.note_fetched(answer.size)
        count_errors(counts.errors, answer.reply)
        prefix = prefix or encode_fetch_prefix(request_id, answer.reply, answer.size)
        counts.note_answers(1, len(prefix) + answer.size, began)
        return prefix + answer.payload

    def queue_error(self, request_id: int, error: SeglogError, began: float) -> None:
        """Answer a fetch with an error, which is added to the metrics."""
        queue_reply(self.sender, self.counts, began, request_id, error)
