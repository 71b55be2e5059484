"""The Kafka listener: connections that speak Kafka's wire protocol."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, advertised_listener, served_listeners
from seglog_broker.listeners.acceptor import Acceptor, Place, no_refusal
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.faults import Faults
from seglog_broker.listeners.kafka.context import Endpoint
from seglog_broker.listeners.kafka.wire import LEAVES, KafkaWire
from seglog_broker.listeners.ready_sockets import ReadySockets
from seglog_broker.listeners.session import Listener
from seglog_broker.listeners.transport import Transport
from seglog_broker.runtime.lasting import Recurring

PLAIN: Final = Listener("PLAINTEXT")
"""A listener that asks its clients for nothing, under the name that Kafka's default has."""


def kafka_places(config: BrokerConfig) -> list[Place]:
    """Where to listen for Kafka's clients."""
    origin = config.origin("listeners")
    return [Place(listener.address, "listeners", "--kafka", origin) for listener in served_listeners(config)]


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
    """Serve connections from ``listeners``, which it closes, until cancelled; started with their addresses.

    As ``serve_native``. Without listeners it returns at once. ``places`` says of each which of ``kafka_places`` it is;
    without, all are the first. ``kinds`` are what these ask of their clients. A seglog client is told the
    ``native_port``.
    """
    if not listeners:
        task_status.started([])
        return
    run = AppendRun(broker, ready)
    leavers = Recurring(LEAVES)
    bound = {listener.socket.getsockname()[:2]: place for listener, place in zip(listeners, places, strict=False)}
    by_port = {port: place for (_, port), place in bound.items()}  # a socket for all addresses has clients at any

    def connect(transport: Transport) -> Connection:
        place = bound.get(transport.local, by_port.get(transport.local[1], 0))
        endpoint = advertised(broker.config, place) or Endpoint(*transport.local)
        kind = kinds[place]
        wire = partial(KafkaWire, broker, endpoint, native_port, leavers)
        return Connection(broker, kind.transport(transport, broker), wire, ready, run, faults, kind, listener=kind.name)

    await Acceptor(broker, connect, no_refusal, faults).run(listeners, task_status)
