"""The listeners: connections that speak the protocol of docs/PROTOCOL.md, Kafka's wire, and HTTP (health, metrics).

Each ``serve_...`` serves connections from ``listeners``, which it closes, until cancelled; it is started with their
addresses. Cancel it to stop it: it stops accepting at once, gives requests under way a few seconds, and returns.
``ready`` has to run until then. ``kind`` is what it asks of its clients, by default nothing. ``faults`` interfere, in
tests. Raises OSError when accepting fails for good. Without listeners those for Kafka and HTTP return at once.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, advertised_listener, http_listener, served_listeners
from seglog_broker.listeners.acceptor import Acceptor, Place, no_refusal, own_limit
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.faults import Faults
from seglog_broker.listeners.http.scrapes import Scrapes
from seglog_broker.listeners.kafka.context import Endpoint
from seglog_broker.listeners.kafka.wire import LEAVES, KafkaWire
from seglog_broker.listeners.native.replies import encode_last_error
from seglog_broker.listeners.native.wire import NativeWire
from seglog_broker.listeners.ready_sockets import ReadySockets
from seglog_broker.listeners.session import WITHOUT_AUTHENTICATION, Listener
from seglog_broker.listeners.transport import Transport
from seglog_broker.runtime.lasting import Recurring
from seglog_protocol.errors import SeglogError

PLAIN: Final = Listener("PLAINTEXT")
"""A listener that asks its clients for nothing, under the name that Kafka's default has."""

CONNECTIONS_MAX: Final = 400
"""Connections for HTTP, so that whoever may ask for pages leaves room for those of records."""

PROBE_PLACES: Final = 20
"""Of these, so many are kept for /livez and /readyz: no page of metrics is made, or waits, on all of the others. They
are there also when all connections of the broker are taken, or its probes would have it killed for having clients.
Where HTTP has fewer connections, a twentieth, but one."""

_HTTP_KEY: Final = "seglog.http.listen"


def kafka_places(config: BrokerConfig) -> list[Place]:
    """Where to listen for Kafka's clients."""
    origin = config.origin("listeners")
    return [Place(listener.address, "listeners", "--kafka", origin) for listener in served_listeners(config)]


def http_places(config: BrokerConfig) -> list[Place]:
    """Where to listen for HTTP: one place, or none."""
    listener = http_listener(config)
    return [] if listener is None else [Place(listener.address, _HTTP_KEY, "--http", config.origin(_HTTP_KEY))]


async def serve_native(
    broker: Broker,
    listeners: Sequence[trio.SocketListener],
    ready: ReadySockets,
    *,
    kafka: Sequence[str] = (),
    faults: Faults | None = None,
    kind: Listener = WITHOUT_AUTHENTICATION,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve seglog's clients. ``kafka`` are the addresses for Kafka's, logged where one of them comes here."""
    run = AppendRun(broker, ready)

    def connect(transport: Transport) -> Connection:
        wire = partial(NativeWire, broker, kafka)
        return Connection(broker, kind.transport(transport, broker), wire, ready, run, faults, kind)

    refusal = encode_last_error if kind.tls is None else no_refusal
    await Acceptor(broker, connect, refusal, faults, kind_of=lambda _: kind).run(listeners, task_status)


def advertised(config: BrokerConfig, place: int) -> Endpoint | None:
    """What the listener at ``place`` advertises; None for the address that each client has reached."""
    found = advertised_listener(config, place)
    return None if found is None else Endpoint(found.host, found.port)


async def serve_kafka(
    broker: Broker,
    listeners: Sequence[trio.SocketListener],
    ready: ReadySockets,
    *,
    places: Sequence[int] = (),
    kinds: Sequence[Listener] = (PLAIN,),
    native_port: int = -1,
    faults: Faults | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve Kafka's clients; a seglog client is told the ``native_port``.

    ``places`` says of each listener which of ``kafka_places`` it is; without, all are the first. ``kinds`` are
    those of these places.
    """
    if not listeners:
        task_status.started([])
        return
    run = AppendRun(broker, ready)
    leavers = Recurring(LEAVES)
    bound = {listener.socket.getsockname()[:2]: place for listener, place in zip(listeners, places, strict=False)}
    by_port = {port: place for (_, port), place in bound.items()}  # a socket for all addresses has clients at any

    def place_of(transport: Transport) -> int:
        return bound.get(transport.local, by_port.get(transport.local[1], 0))

    def connect(transport: Transport) -> Connection:
        place = place_of(transport)
        endpoint = advertised(broker.config, place) or Endpoint(*transport.local)
        kind = kinds[place]
        wire = partial(KafkaWire, broker, endpoint, native_port, leavers)
        return Connection(broker, kind.transport(transport, broker), wire, ready, run, faults, kind)

    accepting = Acceptor(broker, connect, no_refusal, faults, kind_of=lambda transport: kinds[place_of(transport)])
    await accepting.run(listeners, task_status)


async def serve_http(
    broker: Broker,
    listeners: Sequence[trio.SocketListener],
    ready: ReadySockets,
    *,
    kind: Listener,
    native_port: int = -1,
    faults: Faults | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve pages; ``native_port`` is that of seglog's own protocol. ``faults`` are asked about connections alone."""
    if not listeners:
        task_status.started([])
        return
    from seglog_broker.listeners.http.wire import HttpWire  # noqa: PLC0415 - h11 and more: where there are pages

    run = AppendRun(broker, ready)
    connections = own_limit(broker.config, CONNECTIONS_MAX)
    kept = min(PROBE_PLACES, max(1, connections // (CONNECTIONS_MAX // PROBE_PLACES)))
    scrapes = Scrapes(max(1, connections - kept))

    def connect(transport: Transport) -> Connection:
        wire = partial(HttpWire, broker, scrapes, native_port)
        return Connection(broker, kind.transport(transport, broker), wire, ready, run, None, kind)

    refuse = _refusal if kind.tls is None else no_refusal
    accepting = Acceptor(broker, connect, refuse, faults, CONNECTIONS_MAX, kept, has_fence=False)
    await accepting.run(listeners, task_status)


def _refusal(error: SeglogError) -> bytes:
    """The answer to a connection beyond the limit, of which no request is read."""
    body = f"{error.message}\n".encode()
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Retry-After: 5",
        "Connection: close",
    )
    return "".join(f"{line}\r\n" for line in (*head, "")).encode() + body
