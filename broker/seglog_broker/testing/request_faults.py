"""Faults of requests and connections, by name: what retries, idempotence and rebalances of clients have to bear.

``serve`` of ``seglog_broker.server`` takes a ``RequestFaults``. Its methods are called on the loop of the broker; from
another thread by ``trio.from_thread.run_sync``. Faults that wait for the same requests are met in the order in which
they were asked for. Nothing is random: the same requests meet the same faults.
"""

import difflib
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.listeners import ack_task
from seglog_broker.listeners.connection import Connection, State
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.faults import Faults
from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.kafka.errors import error_code
from seglog_broker.listeners.ready_sockets import Served
from seglog_broker.listeners.sending import flush
from seglog_broker.listeners.transport import Transport
from seglog_broker.storage.io.filesystem import Buffer, File
from seglog_broker.testing.client_requests import ClientRequest, open_frame
from seglog_protocol.errors import BY_CODE, SeglogError, UnknownMemberError
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import REQUESTS, AuthenticateRequest, KafkaRequest
from seglog_protocol.texts import first_of

FaultT = TypeVar("FaultT", bound="Fault")


class Fault:
    """A fault that was asked for: ``met`` counts how often it was met."""

    def __init__(
        self,
        call: str,
        times: int | None,
        is_for: Callable[[ClientRequest], bool] | None = None,
        error: ErrorCode | SeglogError | None = None,
    ) -> None:
        """``call`` is how it was asked for; ``times`` None: until it is ended; ``is_for`` None: no request meets it."""
        self.call = call
        self.times = times
        self.error = error
        """What requests fail with; None for other faults."""
        self.met = 0
        self._is_for = is_for

    @property
    def is_pending(self) -> bool:
        """Whether it was not met as often as was asked for, or not at all where it was asked for without a number."""
        return self.met < (1 if self.times is None else self.times)

    def takes(self, request: ClientRequest) -> bool:
        """Whether a request meets it; it counts then."""
        if self._is_for is None or self.met == self.times or not self._is_for(request):
            return False
        self.met += 1
        return True

    def end(self) -> None:
        """Let go on what is held up by it."""

    def __repr__(self) -> str:
        of = "" if self.times is None else f" of {self.times}"
        return f"<{self.call}: met {self.met}{of}>"


class _Delay(Fault):
    """Requests are served later."""

    def __init__(self, seconds: float, api: str | None, times: int | None) -> None:
        call = f"delay({seconds:g}{'' if api is None else f', {api!r}'})"
        super().__init__(call, times, lambda request: api is None or request.api == api)
        self.api = api
        self.seconds = seconds
        self._ended = trio.Event()

    def end(self) -> None:
        self._ended.set()

    async def wait(self, connection: Connection, came: float) -> None:
        """Hold up a request that ``came`` at that moment, and those behind it, until the connection is to end."""
        if connection.state is State.OPEN:
            with trio.move_on_at(came + self.seconds) as connection.until_stop:
                await self._ended.wait()
            connection.until_stop = None


class _Connected:
    """A connection that is open."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self.scope = scope
        self.client_id: str | None = None
        """None before its first request, but for logins on the native wire."""
        self.came = 0.0
        """When the latest request came, and what has been received with it."""
        self._held = 0

    def note_frame(self, held: int) -> None:
        """A frame was taken, behind which so many bytes are left: fewer than before, unless more were received."""
        if held >= self._held:
            self.came = trio.current_time()
        self._held = held


class RequestFaults(Faults):
    """The faults of one broker. At first there are none."""

    def __init__(self) -> None:
        self._broker: Broker | None = None
        self._faults: list[Fault] = []
        self._refusal: Fault | None = None
        self._connected: dict[Served, _Connected] = {}
        self._exempt: set[str] = set()

    # --- What is asked for --------------------------------------------------------------------------------------------

    def fail_next(
        self, api: str, error: str | int | SeglogError | type[SeglogError], times: int = 1, *, topic: str | None = None
    ) -> Fault:
        """Answer the next requests of an api with an error, and do not serve them; ``topic``: those that name it.

        ``api`` is Kafka's name (``"Produce"``), and ``error`` a name or number of Kafka's; or ``api`` is one of the
        native protocol (``"append"``), and ``error`` a code, a class or an error of ``seglog_protocol.errors``. A
        request without a reply, at acks 0, ends its connection. Raises ValueError for an unknown api or error, and
        TypeError for what is no name or number.
        """
        _check_api(api)
        _check_times(times)
        if topic is not None:
            _check_name("topic", topic)
        found = _kafka_error(api, error) if api in _KAFKA_APIS else _native_error(api, error)
        code = found.name if isinstance(found, ErrorCode) else found.code
        call = f"fail_next({api!r}, {code!r}{'' if topic is None else f', topic={topic!r}'})"

        def is_for(request: ClientRequest) -> bool:
            return request.api == api and (topic is None or request.names(topic, self._topic_name))

        return self._add(Fault(call, times, is_for, found))

    def delay(self, seconds: float, api: str | None = None, times: int | None = None) -> Fault | None:
        """Serve requests, of an api or all, so much later than they came; those of a connection in their order.

        A connection is not read while a request of it is late: what its client sends then comes afterwards. The last
        call for an api counts. 0 ends delays: that of the api, or all, and what they hold up is served.
        """
        if api is not None:
            _check_api(api)
        check_seconds("a delay is", seconds)
        if times is not None:
            _check_times(times)
        for fault in [fault for fault in self._faults if isinstance(fault, _Delay)]:
            if fault.api == api or (api is None and not seconds):
                self._end(fault)
        return self._add(_Delay(seconds, api, times)) if seconds else None

    def lose_next_ack(self, topic: str) -> Fault:
        """Make the next append to a topic, with the ack that it asks for; but cut the connection in place of the reply.

        Other replies that its client waits for are lost with it. An append at ack none (acks 0) does not meet it.
        """
        _check_name("topic", topic)

        def is_for(request: ClientRequest) -> bool:
            return request.is_append and not request.is_silent and request.names(topic, self._topic_name)

        return self._add(Fault(f"lose_next_ack({topic!r})", 1, is_for))

    def cut_connections(self, client_id: str | None = None) -> int:
        """Reset the open connections now, all or those of a client; returns how many. The broker goes on.

        The ``client_id`` is that of Kafka's clients, or the name in the hello of a native one.
        """
        count = 0
        for connection, connected in self._connected.items():
            if client_id is None or connected.client_id == client_id:
                assert isinstance(connection, Connection)
                connection.transport.reset_at_close()
                connected.scope.cancel()
                count += 1
        return count

    def refuse(self, wanted: bool = True, *, cut: bool = False) -> Fault | None:
        """Reset new connections at once, until ``refuse(False)``; with ``cut`` those that are open, too."""
        if self._refusal is not None:
            self._end(self._refusal)
            self._refusal = None
        if wanted:
            self._refusal = self._add(Fault("refuse()", None))
        if cut:
            self.cut_connections()
        return self._refusal

    def expire_session(self, group: str, member: str) -> None:
        """End the session of a member now, as if its heartbeats had not come.

        ``member`` is its member id, its instance id, or the client id of one member alone. Raises UnknownGroupError or
        UnknownMemberError, which name those that there are.
        """
        groups = self._running().groups
        groups.with_members(group)
        known = groups.describe(group)[0].members
        ids = [each.member_id for each in known if member in {each.member_id, each.instance_id}]
        ids = ids or [each.member_id for each in known if each.client_id == member]
        if len(ids) != 1:
            those = first_of((f"{each.member_id!r} (client {each.client_id!r})" for each in known), len(known))
            how = f"has {len(ids)} members" if ids else "has no member"
            raise UnknownMemberError(f"group {group!r} {how} {member!r}; its members: {those}", group=group)
        groups.end_session(group, ids[0])

    def rebalance(self, group: str) -> None:
        """Have the members of a group rebalance, as if another one had joined.

        Members of the classic protocol get REBALANCE_IN_PROGRESS and rejoin; those of the consumer protocol get another
        epoch. Raises UnknownGroupError, which names the groups with members.
        """
        self._running().groups.rebalance(group)

    def exempt(self, peer: str) -> None:
        """The next connection from ``peer``, ``HOST:PORT``, meets no faults: a test prepares and looks at things by it.

        To be called from any thread, before it connects.
        """
        self._exempt.add(peer)

    def heal(self) -> None:
        """End all faults. What they hold up is served."""
        for fault in list(self._faults):
            self._end(fault)
        self._refusal = None

    @property
    def pending(self) -> list[Fault]:
        """The faults that were asked for, and not met as often as that; in their order."""
        return [fault for fault in self._faults if fault.is_pending]

    def _add(self, fault: FaultT) -> FaultT:
        self._faults = [known for known in self._faults if known.met != known.times]
        self._faults.append(fault)
        return fault

    def _end(self, fault: Fault) -> None:
        self._faults.remove(fault)
        fault.end()

    def _running(self) -> Broker:
        if self._broker is None:
            raise ValueError("no broker was started with these faults")
        return self._broker

    # --- What the broker asks -----------------------------------------------------------------------------------------

    def begin(self, broker: Broker) -> None:
        """As ``Faults.begin``."""
        self._broker = broker

    def accepts(self, transport: Transport) -> bool:
        """As ``Faults.accepts``."""
        if self._refusal is None or transport.peer in self._exempt:
            return True
        self._refusal.met += 1
        return False

    @contextmanager
    def serving(self, connection: Served) -> Iterator[None]:
        """As ``Faults.serving``."""
        assert isinstance(connection, Connection)
        peer = connection.transport.peer
        if peer in self._exempt:
            self._exempt.remove(peer)
            yield
            return
        with trio.CancelScope() as scope:
            self._connected[connection] = _Connected(scope)
            try:
                yield
            finally:
                del self._connected[connection]

    def take(self, connection: Served, frame: Any) -> Callable[[], Awaitable[None]] | None:
        """As ``Faults.take``."""
        assert isinstance(connection, Connection)
        connected = self._connected.get(connection)
        if connected is None:
            return None
        connected.note_frame(connection.wire.reader.held)
        if connected.client_id is not None and not self._faults:
            return None
        request = open_frame(frame)
        if request is None:
            return None
        if connected.client_id is None and not isinstance(request.request, AuthenticateRequest):  # hello says it
            connected.client_id = request.client_id
        delay = next((each for each in self._faults if isinstance(each, _Delay) and each.takes(request)), None)
        fault = next((each for each in self._faults if not isinstance(each, _Delay) and each.takes(request)), None)
        if delay is None and fault is None:
            return None
        return partial(_meet, connection, connection.wire.kept(frame), connected.came, delay, fault)

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self._running().directory.registry.topics.with_id(id_text(topic_id))
        return None if topic is None else topic.name


# --- Names ------------------------------------------------------------------------------------------------------------

_KAFKA_APIS: Final = frozenset(api.name for api in APIS.values())
_NATIVE_APIS: Final = REQUESTS.keys() - {KafkaRequest.api}
"""What is carried by that one is called as on Kafka's wire."""


def check_seconds(what: str, seconds: object, least: float = 0.0) -> None:
    """Raises TypeError, ValueError; ``what`` begins the sentence."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{what} a number of seconds, not {seconds!r}")
    if not (math.isfinite(seconds) and seconds >= least):
        raise ValueError(f"{what} a number of seconds{', 0 or more' if not least else ''}, not {seconds!r}")


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{what} is a name, a str, not {name!r}")


def _check_times(times: object) -> None:
    if isinstance(times, bool) or not isinstance(times, int):
        raise TypeError(f"times is a whole number, not {times!r}")
    if times < 1:
        raise ValueError(f"a fault is to be met at least once, not {times} times")


def _check_api(api: str) -> None:
    _check_name("api", api)
    if api not in _KAFKA_APIS and api not in _NATIVE_APIS:
        raise ValueError(f"no api is called {api!r}{_nearest(api, [*_KAFKA_APIS, *_NATIVE_APIS])}")


def _kafka_error(api: str, error: object) -> ErrorCode:
    try:
        found = ErrorCode(error) if isinstance(error, int) else ErrorCode[str(error)]
    except (KeyError, ValueError):
        native = _native_class(error)
        if native is None:
            hint = _nearest(str(error), [name for name in ErrorCode.__members__ if name != ErrorCode.NONE.name])
            raise ValueError(f"Kafka has no error {error!r}{hint}") from None
        seen = error_code(native("")).name
        raise ValueError(
            f"{native.code} is an error of the native protocol, and {api} an api of Kafka, whose clients see it as "
            f"{seen}: fail_next({api!r}, {seen!r})"
        ) from None
    if found is ErrorCode.NONE:
        raise ValueError("NONE is no error")
    return found


def _native_error(api: str, error: object) -> SeglogError:
    if isinstance(error, SeglogError):
        return error
    found = _native_class(error)
    if found is not None:
        return found(f"{api} fails because a test asked for it")
    name = error.name if isinstance(error, ErrorCode) else str(error)
    if name in ErrorCode.__members__ and name != ErrorCode.NONE.name:
        same = [code for code, native in BY_CODE.items() if error_code(native("")) is ErrorCode[name]]
        hint = f", which has for it {first_of(map(repr, same), len(same))}" if same else ""
        raise ValueError(f"{name} is an error of Kafka's protocol, and {api} an api of the native one{hint}")
    raise ValueError(f"the native protocol has no error {error!r}{_nearest(str(error), BY_CODE)}")


def _native_class(error: object) -> type[SeglogError] | None:
    """The class of a native error, which may be given as an error, a class or a code."""
    found = type(error) if isinstance(error, SeglogError) else error if isinstance(error, type) else None
    found = BY_CODE.get(str(error)) if found is None else found
    return found if found is not None and issubclass(found, SeglogError) and found.code in BY_CODE else None


def _nearest(name: str, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, 1, 0.5)
    return f": did you mean {by_lower[near[0]]!r}?" if near else ""


# --- How faults are met -----------------------------------------------------------------------------------------------


async def _meet(connection: Connection, frame: Any, came: float, delay: _Delay | None, fault: Fault | None) -> None:
    """Do what faults do with a request that was kept; then it is served, unless it fails."""
    if delay is not None:
        await delay.wait(connection, came)
    request = open_frame(frame)
    assert request is not None, "it was opened before"
    if fault is not None and fault.error is not None:
        await _fail(connection, request, fault.error)
        return
    if fault is not None:
        await _answer_earlier(connection)
        async with connection.sender.sending:  # a frame under way
            connection.sender.transport = _Losing(connection.transport, request)
    connection.wire.serve_later(frame)


async def _fail(connection: Connection, request: ClientRequest, error: ErrorCode | SeglogError) -> None:
    if connection.wire.is_ordered or request.is_append:
        await _answer_earlier(connection)
    connection.counts.errors[error.name if isinstance(error, ErrorCode) else error.code] += 1
    if request.is_silent:
        connection.log.warning("append_failed", ack="none", error="a test asked for it")
        connection.end(EndReason.APPEND_FAILED)
    else:
        connection.sender.queue(request.refusal(error))
        await flush(connection.sender)


async def _answer_earlier(connection: Connection) -> None:
    """Wait until the appends before are answered."""
    await flush(connection.sender)
    await ack_task.wait_while(connection.acks, lambda: connection.acks.unanswered)
    await flush(connection.sender)


class _Losing(Transport):
    """Sends nothing, and breaks in place of the reply to ``request``."""

    def __init__(self, broken: Transport, request: ClientRequest) -> None:
        self._broken = broken
        self._request = request
        self._reader: Any = request.reader()
        self._is_lost = False

    def send(self, data: Buffer, *, more: bool = False) -> int:
        """As ``Transport.send``. Raises ConnectionResetError from the reply on."""
        del more
        if not self._is_lost:
            self._reader.receive_data(data)
            while (frame := self._reader.next_frame()) is not None:
                if self._request.is_answered_by(frame):
                    self._is_lost = True
                    self._broken.reset_at_close()
        if self._is_lost:
            raise ConnectionResetError("a test asked for it: the reply is lost")
        return len(data)

    def send_file(self, file: File, position: int, size: int) -> int | None:
        """As ``Transport.send_file``."""
        del file, position
        return self.send(bytes(size))
