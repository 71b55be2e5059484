"""The request of a connection that began in its turn and waits without a task, until what it decided is durable."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.sending import flush
from seglog_broker.runtime.begun import Begun, ResultT, Signal

OFFSETS_AT_ONCE: Final = 40
"""A commit of more topics or partitions does not begin in a turn: others run while it is looked at."""


class BegunRequest:
    """At most one request of ``connection``, which holds up those behind it."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker = broker
        self._connection = connection
        self._waiting: Begun[Any] | None = None
        self._answered = Signal()

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits."""
        return self._waiting is not None

    def begin(self, work: Awaitable[ResultT], answer: Callable[[Begun[ResultT]], None]) -> None:
        """Serve a request by ``work``, which waits for signals alone; ``answer``, now or later, queues the reply."""
        connection = self._connection
        begun = Begun(work, self._carry_out)
        if begun.is_done:
            answer(begun)
        else:
            self._waiting, self._answered = begun, Signal()
            begun.then = partial(self._go_on, begun, answer)
            connection.hold()

    def finish(self) -> None:
        """Have the end of the connection, which serves nothing more, wait for the reply."""
        if self._waiting is not None:
            self._connection.start_soon(self._finish)

    async def _finish(self) -> None:
        try:
            await self._answered.wait()
        finally:
            if self._waiting is not None:
                self._waiting.close()

    def _carry_out(self) -> None:
        self._broker.write_decided(at_once=self._connection.ready.is_alone)

    def _go_on(self, begun: Begun[ResultT], answer: Callable[[Begun[ResultT]], None]) -> None:
        """Answer, and go on with the requests behind it."""
        connection, self._waiting = self._connection, None
        answer(begun)
        if connection.sender.flush_now():
            connection.release()
        else:
            connection.start_soon(self._send)
        self._answered.set()

    async def _send(self) -> None:
        await flush(self._connection.sender)
        self._connection.release()
