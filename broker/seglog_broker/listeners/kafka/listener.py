"""The Kafka listener: connections that speak Kafka's wire protocol."""

import socket
from collections.abc import Sequence

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, join_address, split_listener
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.kafka.connection import KafkaConnection
from seglog_broker.listeners.kafka.context import Endpoint
from seglog_broker.listeners.serving.acceptor import Acceptor
from seglog_broker.listeners.serving.ready_sockets import ReadySockets
from seglog_protocol.errors import SeglogError


def kafka_addresses(config: BrokerConfig) -> list[tuple[str, str]]:
    """``HOST:PORT`` of each of ``listeners``, with that key."""
    return [(join_address(*split_listener(listener)), "listeners") for listener in config.listeners]


def advertised(config: BrokerConfig, port: int) -> Endpoint | None:
    """The address that clients of our ``port`` are told to use; None for the one that each of them has reached."""
    addresses = config.advertised_listeners
    if not addresses:
        return None
    ports = [split_listener(listener)[1] for listener in config.listeners]
    place = ports.index(port) if len(addresses) > 1 and port in ports else 0
    return Endpoint(*split_listener(addresses[min(place, len(addresses) - 1)]))


async def serve_kafka(
    engine: Broker,
    listeners: Sequence[trio.SocketListener],
    ready: ReadySockets,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve connections from ``listeners``, which it closes, until cancelled; started with their addresses.

    As ``serve_native``. Without listeners it returns at once.
    """
    if not listeners:
        task_status.started([])
        return
    run = AppendRun(engine, ready)
    acceptor = Acceptor(
        lambda: engine.config,
        engine.metrics,
        lambda sock, peer: KafkaConnection(engine, sock, peer, ready, run, advertised(engine.config, _own_port(sock))),
        _no_refusal,
    )
    await acceptor.run(listeners, task_status)


def _own_port(sock: socket.socket) -> int:
    """The port that a client has reached; 0 if its connection is gone."""
    try:
        return int(sock.getsockname()[1])
    except OSError:
        return 0


def _no_refusal(_error: SeglogError) -> bytes:
    """Kafka's protocol has no words for one connection too many: it is closed."""
    return b""
