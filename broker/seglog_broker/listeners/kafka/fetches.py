"""The Fetch requests of one connection, one at a time: answered now, or when there are records for them.

A fetch that waits for records has no task (``fetch_purgatory``). What cannot be done at once is left to a task of the
connection (``slow_requests``), which also handles errors.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.kafka.context import RequestContext
from seglog_broker.listeners.kafka.handlers.fetch import PARTITIONS_MAX, Fetch
from seglog_broker.listeners.kafka.slow_requests import Responses, SlowFetches, fail, then
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.listeners.sending import end_answer
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.runtime import budget
from seglog_protocol.errors import RemoteProtocolError
from seglog_protocol.kafka import RequestHeader, messages
from seglog_protocol.steps import finished


class Fetches:
    """Serves the fetches of ``connection``."""

    def __init__(self, broker: Broker, connection: Connection, responses: Responses) -> None:
        self._broker = broker
        self._connection = connection
        self._responses = responses
        self._slow = SlowFetches(broker, connection, responses)
        self._waiter: Waiter | None = None  # of the fetch that waits for records

    @property
    def is_waiting(self) -> bool:
        """Whether a fetch waits."""
        return self._waiter is not None

    def stop(self) -> None:
        """Answer the one that waits at once."""
        if self._waiter is not None:
            self._waiter.end()

    def drop(self) -> None:
        """Drop the one that waits."""
        if self._waiter is not None:
            self._waiter.unwatch()  # else it would be answered
            self._waiter.end()
            self._waiter = None

    def serve(self, context: RequestContext, header: RequestHeader, request: messages.FetchRequest) -> None:
        """Answer a fetch now, let it wait without a task, or leave it to a job."""
        connection = self._connection
        if sum([len(topic.partitions) for topic in request.topics]) > PARTITIONS_MAX:
            raise RemoteProtocolError(f"a Fetch request for more than {PARTITIONS_MAX} partitions")
        asked = Fetch(context, request)
        connection.spent += asked.count * 2 * budget.BATCH
        if asked.is_large:
            self._leave_to_task(partial(self._slow.serve_in_turns, header, asked))
            return
        finished(asked.read())
        if asked.has_only_errors:
            connection.job = partial(self._slow.send_errors, header, asked)
            return
        try:
            answer = self._broker.fetch_now(asked.request)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            connection.spent = budget.TURN
            self._responses.queue(header, asked.failed_response(as_seglog_error(error, "Fetch")))
            return
        if answer is not None:
            connection.job = self._begin_answer(header, asked, answer)
            return
        waiter = Waiter(partial(connection.usage.during, self._retry, header, asked))
        if self._responses.stop_reason is None and self._broker.wait_for(asked.request, waiter):
            self._waiter = waiter
            connection.hold()
            return
        self._leave_to_task(partial(self._slow.serve, header, asked))

    def _leave_to_task(self, serve: Callable[[Waiter], Awaitable[None]]) -> None:
        self._waiter = waiter = Waiter()
        if self._responses.stop_reason is not None:
            waiter.end()
        self._connection.job = partial(then, partial(serve, waiter), self._end_wait)

    def _begin_answer(
        self, header: RequestHeader, asked: Fetch, answer: FetchAnswer
    ) -> Callable[[], Awaitable[None]] | None:
        """Send what the socket takes of an answer now; what a task has to do to end it, None if nothing.

        Closes the answer after an error, and when it is sent.
        """
        try:
            finished(asked.found(answer))
            if asked.has_only_errors:
                answer.close()
                return partial(self._slow.send_errors, header, asked)
            chunks = self._responses.write(header, asked.response)
        except BaseException:
            answer.close()
            raise
        sender = self._connection.sender
        unsent = sender.begin_answer(answer, chunks)
        return None if unsent is None else partial(end_answer, sender, unsent)

    def _retry(self, header: RequestHeader, asked: Fetch, waiter: Waiter) -> None:
        """Answer a fetch that has waited, and go on with the requests behind it."""
        answer: FetchAnswer | None = None
        rest: Callable[[], Awaitable[None]] | None = None
        try:
            if not waiter.is_ended and self._connection.sender.is_free:
                answer = self._broker.fetch_now(asked.request, waiter)
        except Exception:  # noqa: BLE001 - the task gets the same one
            answer = None
        if answer is None:
            rest = partial(self._slow.serve_waiting, header, asked, waiter)
        else:
            try:
                rest = self._begin_answer(header, asked, answer)
            except Exception as error:  # noqa: BLE001 - one connection must not end the others
                rest = partial(fail, error)
        if rest is None:
            self._end_wait()
        else:
            self._connection.start_soon(partial(then, rest, self._end_wait))

    def _end_wait(self) -> None:
        self._waiter = None
        self._connection.release()
