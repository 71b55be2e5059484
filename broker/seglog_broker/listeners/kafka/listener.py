"""The Kafka listener: connections that speak Kafka's wire protocol."""

from collections.abc import Sequence

import trio

from seglog_broker.config import BrokerConfig, split_listener
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.kafka.connection import KafkaConnection
from seglog_broker.listeners.kafka.door import Endpoint
from seglog_broker.listeners.kafka.engine import KafkaEngine
from seglog_broker.listeners.serving.acceptor import Acceptor, open_listeners
from seglog_broker.listeners.serving.ready_sockets import ReadySockets
from seglog_protocol.errors import SeglogError


async def open_kafka_listeners(config: BrokerConfig) -> list[trio.SocketListener]:
    """The sockets of ``listeners``. Raises ListenError with a sentence for the operator."""
    opened: list[trio.SocketListener] = []
    try:
        for listener in config.listeners:
            host, port = split_listener(listener)
            opened += await open_listeners(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", "listeners")
    except BaseException:
        for listener_ in opened:
            listener_.socket.close()
        raise
    return opened


def advertised(config: BrokerConfig) -> Endpoint | None:
    """The address that clients are told to use; None for the one that each of them has reached."""
    return Endpoint(*split_listener(config.advertised_listeners[0])) if config.advertised_listeners else None


async def serve_kafka(
    engine: KafkaEngine,
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
        lambda sock, peer: KafkaConnection(engine, sock, peer, ready, run, advertised(engine.config)),
        _no_refusal,
    )
    await acceptor.run(listeners, task_status)


def _no_refusal(_error: SeglogError) -> bytes:
    """Kafka's protocol has no words for one connection too many: it is closed."""
    return b""
