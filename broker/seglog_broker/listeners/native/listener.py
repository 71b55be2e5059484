"""The native listener: connections that speak the protocol of docs/PROTOCOL.md."""

from collections.abc import Sequence
from functools import partial

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.acceptor import Acceptor, no_refusal
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.faults import Faults
from seglog_broker.listeners.native.replies import encode_last_error
from seglog_broker.listeners.native.wire import NativeWire
from seglog_broker.listeners.ready_sockets import ReadySockets
from seglog_broker.listeners.session import WITHOUT_AUTHENTICATION, Listener
from seglog_broker.listeners.transport import Transport


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
    """Serve connections from ``listeners``, which it closes, until cancelled; started with their addresses.

    Cancel it to stop it: it stops accepting at once, gives requests under way a few seconds, and returns. ``ready``
    has to run until then. ``kafka`` are the addresses for Kafka's clients, logged where one of them comes here.
    ``kind`` is what it asks of its clients, by default nothing. ``faults`` interfere, in tests. Raises OSError when
    accepting fails for good.
    """
    run = AppendRun(broker, ready)

    def connect(transport: Transport) -> Connection:
        wire = partial(NativeWire, broker, kafka)
        return Connection(broker, kind.transport(transport, broker), wire, ready, run, faults, kind)

    refusal = encode_last_error if kind.tls is None else no_refusal
    await Acceptor(broker, connect, refusal, faults).run(listeners, task_status)
