"""The fetches of one connection: answered at once, or when there are records for them.

Nearly all that wait do so without a task (``fetch_purgatory``). One that waits for something else, or fails, gets a
task of its own in the connection's nursery.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.native.replies import encode_fetch_prefix, encode_long_reply, encode_reply
from seglog_broker.listeners.request_errors import as_seglog_error, count_errors
from seglog_broker.listeners.sender import Sender
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_protocol.errors import BrokerStoppingError, InvalidRequestError, RequestCancelledError, SeglogError
from seglog_protocol.messages import FetchRequest

FETCHES_IN_FLIGHT_MAX: Final = 100
"""Fetches of one connection that wait for records or to be sent. One more is refused: not reading the connection would
hold up all other requests behind a long poll."""

Sending = Callable[[], Awaitable[None]]
"""Sends the rest of an answer, and closes it."""

PARTITIONS_WAITING_MAX: Final = 20_000
"""Partitions in all waiting fetches of one connection; each takes memory while it waits."""


class Outcome(NamedTuple):
    """The result of ``answer``; ``rest`` is what a task must do to finish the answer, None if there is nothing."""

    rest: Sending | None
    has_errors: bool


_DONE: Final = Outcome(None, has_errors=False)
_FAILED: Final = Outcome(None, has_errors=True)


class Fetches:
    """Answers fetches with ``sender``. Its length is the number of those that wait."""

    def __init__(self, broker: Broker, sender: Sender) -> None:
        self._broker = broker
        self._sender = sender
        self._count = 0
        self._partitions = 0
        self._waiting: dict[int, Waiter] = {}  # of each fetch that waits for records, by request id
        self._cancelled: set[int] = set()  # ids of fetches that the client cancelled
        self._stop_reason: str | None = None

    def __len__(self) -> int:
        return self._count

    def answer(self, request_id: int, request: FetchRequest, nursery: trio.Nursery) -> Outcome:
        """Answer a fetch now, or let it wait. Raises OSError when the connection is lost."""
        try:
            answer = self._broker.fetch_now(request)
            if answer is None:
                self._start(request_id, request, nursery)
                return _DONE
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self._queue_error(request_id, as_seglog_error(error, FetchRequest.api))
            return _FAILED
        try:
            rest = self._begin(request_id, answer)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing is sent yet, so it can be answered
            self._queue_error(request_id, as_seglog_error(error, FetchRequest.api))
            return _FAILED
        return Outcome(rest, any(result.error is not None for result in answer.reply.partitions))

    def _begin(self, request_id: int, answer: FetchAnswer) -> Sending | None:
        """Send what the socket takes of an answer now; what a task has to do to end it, None if nothing.

        Closes the answer after an error, and when it is sent.
        """
        try:
            prefix = self._encode_answer(request_id, answer)
        except BaseException:
            answer.close()
            raise
        return self._sender.begin_answer(answer, [prefix, *answer.slices])

    def _start(self, request_id: int, request: FetchRequest, nursery: trio.Nursery) -> None:
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
        if request_id in self._waiting:
            raise InvalidRequestError(f"a fetch with id {request_id} is waiting already", field="id")
        self._count += 1
        self._partitions += len(request.partitions)
        # Registered here, because `stop` may come before a task has run.
        waiter = Waiter(partial(self._retry_fetch, request_id, request, nursery))
        self._waiting[request_id] = waiter
        if self._stop_reason is not None:
            waiter.end()
        if waiter.is_ended or not self._broker.wait_for(request, waiter):
            nursery.start_soon(self._fetch, request_id, request, waiter)

    def _retry_fetch(self, request_id: int, request: FetchRequest, nursery: trio.Nursery, waiter: Waiter) -> None:
        """Answer a fetch that has waited; if that fails here, a task does it, which also handles the errors."""
        if not waiter.is_ended and self._answer_waiting(request_id, request, nursery, waiter):
            del self._waiting[request_id]
            self._end_fetch(request)
        else:
            nursery.start_soon(self._fetch, request_id, request, waiter)

    def _answer_waiting(self, request_id: int, request: FetchRequest, nursery: trio.Nursery, waiter: Waiter) -> bool:
        """Send the answer to a waiting fetch, if it is known; whether it is sent or being sent."""
        if not self._sender.is_free:
            return False
        try:
            answer = self._broker.fetch_now(request, waiter)
        except Exception:  # noqa: BLE001 - see above
            return False
        if answer is None:
            return False
        try:
            rest = self._begin(request_id, answer)
        except Exception:  # noqa: BLE001 - see above
            return False
        if rest is not None:
            nursery.start_soon(rest)
        return True

    async def _fetch(self, request_id: int, request: FetchRequest, waiter: Waiter) -> None:
        """Wait for the answer to a fetch and send it."""
        answer: FetchAnswer | None = None
        failure: SeglogError | None = None
        try:
            try:
                answer = await self._broker.fetch(request, waiter)
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                if not (waiter.is_ended and isinstance(error, RequestCancelledError)):
                    failure = as_seglog_error(error, FetchRequest.api)
            self._waiting.pop(request_id, None)
            if request_id in self._cancelled:  # even if an answer came just now: the cancel reply says it is ended
                self._cancelled.discard(request_id)
                failure = RequestCancelledError("the fetch was cancelled, as asked")
                if answer is not None:
                    with answer:
                        answer = None
            if answer is not None:
                await self._send_answer(request_id, answer)
                return
            if failure is None and self._stop_reason is not None:
                failure = BrokerStoppingError(f"{self._stop_reason}; connect again")
            if failure is not None:  # else the peer has left
                self._queue_error(request_id, failure)
                await self._sender.flush()
        finally:
            self._end_fetch(request)

    def _end_fetch(self, request: FetchRequest) -> None:
        self._count -= 1
        self._partitions -= len(request.partitions)

    def cancel(self, target: int) -> bool:
        """End the fetch with this id, as its client asks; whether it was waiting."""
        waiter = self._waiting.get(target)
        if waiter is None:
            return False
        self._cancelled.add(target)
        waiter.end()
        return True

    def stop(self, reason: str) -> None:
        """End all that wait, with an error that gives the reason."""
        self._stop_reason = reason
        for waiter in self._waiting.values():
            waiter.end()

    def drop(self) -> None:
        """End all that wait; they get no reply."""
        for waiter in self._waiting.values():
            waiter.unwatch()  # else those without a task would get one
            waiter.end()
        self._waiting.clear()

    # --- Sending ------------------------------------------------------------------------------------------------------

    async def _send_answer(self, request_id: int, answer: FetchAnswer) -> None:
        """Send the answer to a fetch and close it."""
        with answer:
            try:
                prefix = await encode_long_reply(request_id, answer.reply, answer.size, self._broker.turn)
                prefix = self._encode_answer(request_id, answer, prefix)
            except Exception as error:  # noqa: BLE001 - nothing is sent yet, so it can be answered
                self._queue_error(request_id, as_seglog_error(error, FetchRequest.api))
                await self._sender.flush()
            else:
                await self._sender.send_frame([prefix, *answer.slices])

    def _encode_answer(self, request_id: int, answer: FetchAnswer, prefix: bytes | None = None) -> bytes:
        """The frame of an answer without its slices of files, added to the metrics.

        ``prefix`` is the frame up to the payload, where it is encoded already.
        """
        self._broker.metrics.fetch_bytes += answer.size
        count_errors(self._broker.metrics.request_errors, answer.reply)
        return (prefix or encode_fetch_prefix(request_id, answer.reply, answer.size)) + answer.payload

    def _queue_error(self, request_id: int, error: SeglogError) -> None:
        count_errors(self._broker.metrics.request_errors, error)
        self._sender.queue(encode_reply(request_id, error))
