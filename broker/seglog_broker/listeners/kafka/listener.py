"""The Kafka listener: connections that speak Kafka's wire protocol."""

from collections.abc import Sequence
from functools import partial

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, join_address, split_listener
from seglog_broker.listeners.acceptor import Acceptor, Place
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.kafka.context import Endpoint
from seglog_broker.listeners.kafka.wire import KafkaWire
from seglog_broker.listeners.ready_sockets import ReadySockets
from seglog_broker.listeners.transport import Transport
from seglog_protocol.errors import SeglogError


def kafka_places(config: BrokerConfig) -> list[Place]:
    """Where to listen for Kafka's clients."""
    origin = config.origin("listeners")
    return [
        Place(join_address(*split_listener(listener)), "listeners", "--kafka", origin) for listener in config.listeners
    ]


def advertised(config: BrokerConfig, port: int) -> Endpoint | None:
    """The advertised listener of our ``port``; None for the address that each client has reached."""
    addresses = config.advertised_listeners
    if not addresses:
        return None
    ports = [split_listener(listener)[1] for listener in config.listeners]
    place = ports.index(port) if len(addresses) > 1 and port in ports else 0
    return Endpoint(*split_listener(addresses[min(place, len(addresses) - 1)]))


async def serve_kafka(
    broker: Broker,
    listeners: Sequence[trio.SocketListener],
    ready: ReadySockets,
    *,
    native_port: int = -1,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve connections from ``listeners``, which it closes, until cancelled; started with their addresses.

    As ``serve_native``. Without listeners it returns at once. A seglog client is told the ``native_port``.
    """
    if not listeners:
        task_status.started([])
        return
    run = AppendRun(broker, ready)

    def connect(transport: Transport) -> Connection:
        endpoint = advertised(broker.config, transport.local[1]) or Endpoint(*transport.local)
        return Connection(
            broker, transport, partial(KafkaWire, broker, endpoint, native_port), ready, run, listener="kafka"
        )

    await Acceptor(lambda: broker.config, broker.metrics, connect, _no_refusal).run(listeners, task_status)


def _no_refusal(_error: SeglogError) -> bytes:
    """Kafka's protocol has no words for one connection too many: it is closed."""
    return b""
