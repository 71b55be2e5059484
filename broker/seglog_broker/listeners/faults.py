"""What goes wrong on purpose with connections and requests: the one place at which a test may interfere with them."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.ready_sockets import Served
from seglog_broker.listeners.transport import Transport


class Faults:
    """Asked about each connection that is accepted, and about each request before it is served. Here all goes well.

    A broker has none but in tests, whose faults are a subclass. It is called on the loop, and must not raise.
    """

    def begin(self, broker: Broker) -> None:
        """The broker is open, and will listen."""

    def accepts(self, transport: Transport) -> bool:
        """Whether a connection that comes is served. If not, it is reset."""
        del transport
        return True

    def serving(self, connection: Served) -> AbstractContextManager[object]:
        """To be entered by the connection's task while it is served, its first bytes included."""
        del connection
        return nullcontext()

    def take(self, connection: Served, frame: Any) -> Callable[[], Awaitable[None]] | None:
        """What is to be awaited in place of a request that has come. None: it is served.

        The frame lies in the connection's buffer, which is used again after the turn: see ``Wire.kept``.
        """
        del connection, frame
        return None
