"""The request of a connection that began in its turn and waits without a task, until what it decided is durable.

What else it waits for, it waits for in a task.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.connection import Connection, Job
from seglog_broker.listeners.connection_task import do
from seglog_broker.listeners.sending import flush
from seglog_broker.runtime.begun import Begun, ResultT, Signal

BEGUN_BYTES_MAX: Final = 4 * 1024
"""A larger request does not begin in a turn: its reply may be large."""


class BegunRequest:
    """At most one request of ``connection``, which holds up those behind it."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker = broker
        self._connection = connection
        self._waiting: Begun[Any] | None = None
        self._answered: Signal  # of the one that waits

    @property
    def is_waiting(self) -> bool:
        """True while a request waits."""
        return self._waiting is not None

    def begin(self, work: Awaitable[ResultT], answer: Callable[[Begun[ResultT]], None]) -> None:
        """Serve a request by ``work``; ``answer``, now or later, queues the reply."""
        connection = self._connection
        begun = Begun(work, self._carry_out)
        if begun.is_done:
            answer(begun)
        elif begun.wants_task:
            connection.job = partial(self._rest, begun, answer)
        else:
            self._waiting, self._answered = begun, Signal()
            begun.then = partial(self._go_on, begun, answer)
            connection.hold()

    async def finish(self) -> None:
        """Return when the request is answered: the connection serves nothing more."""
        if self._waiting is not None:
            await self._answered.wait()

    def drop(self) -> None:
        """Close the request where it waits: its connection ends without the reply."""
        if self._waiting is not None and not self._waiting.wants_task:  # else its task ends it
            self._waiting.close()

    def _carry_out(self) -> None:
        self._broker.write_decided(at_once=self._connection.ready.is_alone)

    def _go_on(self, begun: Begun[ResultT], answer: Callable[[Begun[ResultT]], None]) -> None:
        """Answer, and go on with the requests behind it."""
        connection = self._connection
        if begun.wants_task:
            connection.start_soon(partial(self._rest_apart, begun, answer))
            return
        job = self._answer_apart(begun, answer)
        if job is None and connection.sender.flush_now():
            self._release()
        else:
            connection.start_soon(partial(self._end, job))

    async def _rest(self, begun: Begun[ResultT], answer: Callable[[Begun[ResultT]], None]) -> None:
        await flush(self._connection.sender)
        await begun.rest()
        answer(begun)

    async def _rest_apart(self, begun: Begun[ResultT], answer: Callable[[Begun[ResultT]], None]) -> None:
        await flush(self._connection.sender)
        await begun.rest()
        await self._end(self._answer_apart(begun, answer))

    def _answer_apart(self, begun: Begun[ResultT], answer: Callable[[Begun[ResultT]], None]) -> Job | None:
        """Answer outside of a turn: the job that this leaves is returned, for the connection's task waits for bytes."""
        connection = self._connection
        was_over, before, connection.job = connection.is_over, connection.job, None
        try:
            answer(begun)
        except Exception as error:  # noqa: BLE001 - its own task raises it
            connection.fail(error)
        job, connection.job = connection.job, before
        if (connection.is_over or connection.failure is not None) and not was_over:
            connection.transport.stop_receiving()  # wakes the task
        return job

    async def _end(self, job: Job | None) -> None:
        if job is not None:
            await do(self._connection, job)
        await flush(self._connection.sender)
        self._release()

    def _release(self) -> None:
        self._waiting = None
        self._answered.set()
        self._connection.release()
