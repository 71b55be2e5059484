"""Accepts connections, limits their number, ends those that are idle, and closes all of them in order."""

import errno
import math
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, Origin, split_address
from seglog_broker.config.keys import DEFAULT_ORIGIN
from seglog_broker.listeners import connection_task, hangup
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.faults import Faults
from seglog_broker.listeners.session import Listener
from seglog_broker.listeners.transport import Transport, address_of, limit_receive_buffers
from seglog_broker.logger import get_logger
from seglog_broker.runtime.descriptors import connections_max
from seglog_broker.runtime.lasting import Lasting
from seglog_protocol.errors import PolicyViolationError, SeglogError

DRAIN_SECONDS: Final = 5
"""Seconds that requests under way may take when the broker stops; then their connections are cut."""

ACCEPT_RETRY_SECONDS: Final = 0.1
ACCEPT_CAPACITY_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Errors of accept(2) on an overloaded machine, and the pause before the next try; as in trio."""

WATCH_SECONDS_MIN: Final = 0.01
WATCH_SECONDS_MAX: Final = 5.0
"""Limits of the pause between two checks for idle connections, which is a tenth of the idle time allowed."""

OWN_SHARE: Final = 4
"""A protocol with a limit of its own has at most this part of all connections."""

UNREAD_SECONDS: Final = 1.0
"""A peer that has read nothing for so long, of a protocol with a limit of its own, gives its place to another."""

REFUSALS_MAX: Final = 100
"""Connections beyond the limit that get an error reply at a time; further ones are closed without one."""

log = get_logger()


class ListenError(SeglogError):
    """The broker cannot listen on the address. Never on the wire: the daemon does not start."""


class Place(NamedTuple):
    """Where to listen, and what says so: ``HOST:PORT``, its configuration key, the flag for that, and its origin."""

    address: str
    key: str = "seglog.listen"
    flag: str = "--listen"
    origin: Origin = DEFAULT_ORIGIN


async def open_listeners(place: Place) -> list[trio.SocketListener]:
    """Listening sockets for a place, one for each address of the host name; port 0 is any free one.

    Raises ListenError with a sentence for the operator.
    """
    host, port = split_address(place.address)
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = f"another program, perhaps a second seglogd, uses it; stop that, or choose another by {place.flag}"
        elif error.errno in {errno.EACCES, errno.EPERM}:
            why = f"it is not permitted; choose a port above 1023 by {place.flag}"
        else:
            why = error.strerror or str(error)
        said_by = place.origin.where or f"the default of {place.key}"
        raise ListenError(f"Cannot listen on {place.address} ({said_by}): {why}.") from error


async def open_all_listeners(places: Sequence[Place]) -> list[list[trio.SocketListener]]:
    """The listeners of each place; none stays open where one cannot be opened. Raises as ``open_listeners``."""
    opened: list[list[trio.SocketListener]] = []
    try:
        for place in places:
            opened.append(await open_listeners(place))  # noqa: PERF401 - those before are closed where one fails
    except BaseException:
        for listeners in opened:
            for listener in listeners:
                listener.socket.close()
        raise
    return opened


def addresses_of(listeners: Sequence[trio.SocketListener]) -> list[str]:
    """``HOST:PORT`` of each, with the port that the system chose where 0 was asked for."""
    return [address_of(listener.socket.getsockname()) for listener in listeners]


def own_limit(config: BrokerConfig, own_max: int) -> int:
    """The most connections of a protocol that may have ``own_max``: no more than a part of all."""
    return min(own_max, max(1, connections_max(config) // OWN_SHARE))


def no_refusal(_error: SeglogError) -> bytes:
    """For a protocol that has no words for one connection too many, as Kafka's: it is closed."""
    return b""


class Acceptor:
    """Owns the connections of one protocol."""

    def __init__(
        self,
        broker: Broker,
        connect: Callable[[Transport], Connection],
        encode_refusal: Callable[[SeglogError], bytes],
        faults: Faults | None = None,
        own_max: int | None = None,
        own_min: int = 0,
        kind_of: Callable[[Transport], Listener] | None = None,
        has_fence: bool = True,
    ) -> None:
        """``connect`` makes the connection of an accepted stream, ``encode_refusal`` the error for one too many.

        ``faults`` are asked about each connection, in tests. ``own_max`` is the most connections of this protocol,
        beside the limit of all together, of which it is also given no more than a part (``own_limit``). At a limit,
        such a protocol takes one more in place of the one that has been idle the longest, else of one whose peer does
        not read; it is refused where there is none. ``own_min`` connections it has also beyond the limit of all.
        ``kind_of`` an accepted stream says which listener's limits hold (``ConnectionLimits``); None: none of them.
        Without ``has_fence`` its answers promise nothing, and go out also where the broker does not hold its lease.
        """
        self._broker = broker
        self._connect = connect
        self._encode_refusal = encode_refusal
        self._faults = Faults() if faults is None else faults
        self._own_max = own_max
        self._own_min = own_min
        self._kind_of = kind_of
        self._fence = broker.fence if has_fence else None
        self._connections: dict[Connection, trio.CancelScope] = {}
        self._refusals = 0
        self._ready = trio.Event()
        self._closing = trio.Event()
        self._handlers: trio.Nursery | None = None

    async def run(self, listeners: Sequence[trio.SocketListener], task_status: trio.TaskStatus[list[str]]) -> None:
        """Serve connections from ``listeners``, which it closes, until cancelled; started with their addresses.

        A connection's failure ends that connection, as the deletion of its account does. Raises OSError when accepting
        fails for good.
        """
        accounts = self._broker.directory.accounts
        accounts.on_deleted.append(self.end_sessions)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_connections)
                nursery.start_soon(self._watch_connections)
                try:
                    await self._ready.wait()
                    async with trio.open_nursery() as acceptors:
                        for listener in listeners:
                            limit_receive_buffers(listener, self._broker.config.socket_receive_buffer_bytes)
                            acceptors.start_soon(self._accept, listener)
                        task_status.started(addresses_of(listeners))
                finally:
                    # In this order: accept no more, then stop the open connections.
                    for listener in listeners:
                        listener.socket.close()
                    self._closing.set()
        finally:
            accounts.on_deleted.remove(self.end_sessions)
            for listener in listeners:
                listener.socket.close()  # also when cancelled before the first step; a second close does nothing

    async def _keep_connections(self) -> None:
        """Own the connections, shielded: a cancellation from outside stops them in order and does not cut them."""
        # Not by nursery.start: it would wait for ever for a shielded child whose start is cancelled.
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as self._handlers:
                self._ready.set()
                await self._closing.wait()
                scope.deadline = trio.current_time() + DRAIN_SECONDS
                for connection in self._connections:
                    connection.stop()
        if scope.cancelled_caught:
            log.warning("connections_cut", after_seconds=DRAIN_SECONDS)

    async def _watch_connections(self) -> None:
        """End connections that are idle or stalled, until accepting ends."""
        config = self._broker.config
        idle_ms, stall_ms = config.connections_max_idle_ms, config.seglog_connections_max_stall_ms
        idle_seconds = math.inf if idle_ms < 0 else idle_ms / 1000
        pause = min(WATCH_SECONDS_MAX, idle_seconds / 10, stall_ms / 10_000)
        while True:
            await trio.sleep(max(WATCH_SECONDS_MIN, pause))
            for connection in list(self._connections):
                connection.stop_if_quiet(idle_seconds, stall_ms / 1000)

    async def _accept(self, listener: trio.SocketListener) -> None:
        """Accept connections of one socket for ever; those beyond the limit get an error."""
        assert self._handlers is not None
        limit = connections_max(self._broker.config)
        own = limit if self._own_max is None else own_limit(self._broker.config, self._own_max)
        problem = Lasting()
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in ACCEPT_CAPACITY_ERRNOS:
                    raise
                if problem.begins("accept", reason := os.strerror(error.errno)):
                    log.warning("accept_failed", reason=reason, retry_seconds=ACCEPT_RETRY_SECONDS)
                await trio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            if problem.ends("accept"):
                log.info("accept_resumed")
            transport = Transport.of_stream(stream, self._broker.config.socket_send_buffer_bytes)
            transport.fence = self._fence
            host = transport.host
            if not self._faults.accepts(transport):
                transport.reset_at_close()
                transport.close()
            elif not await self._is_admitted(transport, host):
                continue
            elif self._has_room(limit, own) or self._makes_room():
                try:
                    connection = self._connect(transport)
                except OSError:  # it has left already
                    transport.close()
                    continue
                self._connections[connection] = scope = trio.CancelScope()
                connection.counts.connections_accepted += 1
                connection.counts.connections += 1
                if self._kind_of is not None:
                    self._broker.connection_limits.note_begun(host)
                self._handlers.start_soon(self._serve, connection, scope, host)
            elif self._refusals < REFUSALS_MAX:
                self._refusals += 1
                self._handlers.start_soon(self._refuse, transport, limit, own)
            else:
                self._broker.metrics.connections_ended[EndReason.TOO_MANY.value] += 1
                transport.close()

    async def _is_admitted(self, transport: Transport, host: str) -> bool:
        """Wait as the limits of its listener want; False for a connection that its address may not have."""
        if self._kind_of is None:
            return True
        limits, kind, seconds = self._broker.connection_limits, self._kind_of(transport), 0.0
        try:
            if wait := limits.wait(kind.name, kind.label, trio.current_time()):
                await trio.sleep(wait)
            await limits.take_place(kind.name, kind.label)
            seconds = limits.throttle(host, trio.current_time())
            reason = "its address opens connections too fast" if seconds else limits.why_too_many(host)
        except BaseException:
            transport.close()
            raise
        if reason is None:
            return True
        if not seconds:  # else the quota has its own line in the log
            log.warning("connection_refused", peer=transport.peer, reason=reason)
        self._broker.metrics.connections_ended[EndReason.TOO_MANY.value] += 1
        if seconds and self._refusals < REFUSALS_MAX:
            assert self._handlers is not None
            self._refusals += 1
            self._handlers.start_soon(self._close_later, transport, seconds)
        else:
            transport.close()
        return False

    async def _close_later(self, transport: Transport, seconds: float) -> None:
        """Close a connection when its client may try again, and not before: else it would try at once."""
        try:
            with trio.move_on_after(seconds):
                await self._closing.wait()
        finally:
            transport.close()
            self._refusals -= 1

    def _has_room(self, limit: int, own: int) -> bool:
        """Whether there may be one more beside ``limit`` connections of all and ``own`` of this protocol."""
        count = len(self._connections)
        return count < own and (self._broker.metrics.connections_open < limit or count < self._own_min)

    def _makes_room(self) -> bool:
        """Cut the connection that has been idle the longest, if this protocol does that; else one that does not read.

        So clients that only open connections, or read no answers, cannot keep others out.
        """
        if self._own_max is None or not self._connections:
            return False
        cut, why = min(self._connections, key=lambda connection: connection.idle_since), "asked for"
        if cut.idle_since == math.inf:
            cut, why = min(self._connections, key=lambda connection: connection.sender.waits_since), "read"
            if trio.current_time() - cut.sender.waits_since < UNREAD_SECONDS:
                return False
        cut.note_reason(EndReason.TOO_MANY)
        cut.log.warning("connection_cut", reason=f"it {why} nothing, and another needed its place")
        self._connections.pop(cut).cancel()
        return True

    def end_sessions(self, user: str) -> None:
        """Begin to end the connections of an account that is no more."""
        for connection in list(self._connections):
            if connection.session.is_of(user):
                connection.note_reason(EndReason.ACCOUNT_DELETED)
                connection.stop(f"this connection is closed: the account {user} was deleted")

    async def _serve(self, connection: Connection, scope: trio.CancelScope, host: str) -> None:
        try:
            with scope, self._faults.serving(connection):
                await connection_task.run(connection)
        finally:
            self._connections.pop(connection, None)
            connection.counts.connections -= 1
            if self._kind_of is not None:
                self._broker.connection_limits.note_ended(host)

    async def _refuse(self, transport: Transport, limit: int, own: int) -> None:
        """Send a retriable error to a connection beyond one of the limits, and close it."""
        sentence = f"the broker has {limit} connections, which is its limit (seglog.connections.max); try again later"
        if len(self._connections) >= own < limit:
            limit = own
            sentence = f"there are {limit} connections to this listener, which is its limit; try again later"
        error = PolicyViolationError(sentence, limit=limit)
        error.retriable = True
        log.warning("connection_refused", peer=transport.peer, reason="too many connections", limit=limit)
        self._broker.metrics.connections_ended[EndReason.TOO_MANY.value] += 1
        try:
            transport.send(self._encode_refusal(error))
            await hangup.finish(transport)
        except OSError:
            pass  # the peer has closed
        finally:
            transport.close()
            self._refusals -= 1
