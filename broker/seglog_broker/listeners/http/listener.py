"""The listener for HTTP: health and metrics."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, http_listener
from seglog_broker.listeners.acceptor import Acceptor, Place, no_refusal, own_limit
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.faults import Faults
from seglog_broker.listeners.http.scrapes import Scrapes
from seglog_broker.listeners.ready_sockets import ReadySockets
from seglog_broker.listeners.session import Listener
from seglog_broker.listeners.transport import Transport
from seglog_protocol.errors import SeglogError

CONNECTIONS_MAX: Final = 400
"""Connections for HTTP, so that whoever may ask for pages leaves room for those of records."""

PROBE_PLACES: Final = 20
"""Of these, so many are kept for /livez and /readyz: no page of metrics is made, or waits, on all of the others. They
are there also when all connections of the broker are taken, or its probes would have it killed for having clients.
Where HTTP has fewer connections, a twentieth, but one."""

_KEY: Final = "seglog.http.listen"


def http_places(config: BrokerConfig) -> list[Place]:
    """Where to listen for HTTP: one place, or none."""
    listener = http_listener(config)
    if listener is None:
        return []
    return [Place(listener.address, _KEY, "--http", config.origin(_KEY))]


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
    """Serve connections from ``listeners``, which it closes, until cancelled; started with their addresses.

    As ``serve_native``. Without listeners it returns at once. ``kind`` is what it asks of its clients, ``native_port``
    that of seglog's own. ``faults`` are asked about connections alone.
    """
    if not listeners:
        task_status.started([])
        return
    run = AppendRun(broker, ready)
    connections = own_limit(broker.config, CONNECTIONS_MAX)
    kept = min(PROBE_PLACES, max(1, connections // (CONNECTIONS_MAX // PROBE_PLACES)))
    scrapes = Scrapes(max(1, connections - kept))

    def connect(transport: Transport) -> Connection:
        from seglog_broker.listeners.http.wire import HttpWire  # noqa: PLC0415 - h11 and more: after the start

        wire = partial(HttpWire, broker, scrapes, native_port)
        return Connection(broker, kind.transport(transport, broker), wire, ready, run, None, kind, listener="http")

    refuse = _refusal if kind.tls is None else no_refusal
    await Acceptor(broker, connect, refuse, faults, CONNECTIONS_MAX, kept).run(listeners, task_status)


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
