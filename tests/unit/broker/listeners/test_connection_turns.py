"""The turns of one connection, taken by hand: how much is done in one, and what it says of itself in between."""

import socket
from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.engine.turns import LOOKUPS_A_TURN
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.connection import Connection, State
from seglog_broker.listeners.native.wire import NativeWire
from seglog_broker.listeners.ready_sockets import Next, ReadySockets
from seglog_broker.listeners.transport import Transport
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.frame_receiver import FRAME_BYTES_MAX
from seglog_protocol.frames import encode_frame
from seglog_protocol.messages import (
    AppendPartition,
    AppendRequest,
    CreateTopicRequest,
    HelloRequest,
    OffsetsPartition,
    OffsetsRequest,
    Request,
    request_header,
)
from tests.logs import ManualClock

PARTITIONS = 8
LOOKED_UP = LOOKUPS_A_TURN
BATCH = encode_batch([(-1, None, b"value", ())])


class PairTransport(Transport):
    """One end of a pair of sockets, which have no addresses."""

    peer = host = "a peer"


class ByHand:
    """A greeted connection of a broker with one topic; ``other`` is the peer's end."""

    def __init__(self, broker: Broker) -> None:
        ready = ReadySockets()
        self.broker = broker
        self.run = AppendRun(broker, ready)
        sock, self.other = socket.socketpair()
        sock.setblocking(False)
        self.transport = PairTransport(sock)
        self.connection = Connection(broker, self.transport, partial(NativeWire, broker, ()), ready, self.run)
        self.connection._has_frames = False
        self.connection.wire.reader.frame_bytes_max = FRAME_BYTES_MAX

    def send(self, *requests: tuple[Request, bytes]) -> None:
        frames = (encode_frame(request_header(n, request), [data]) for n, (request, data) in enumerate(requests))
        self.other.sendall(b"".join(frames))

    def turn(self) -> Next:
        self.connection.begin_turn()
        self.run.write()
        wanted = self.connection.end_turn()
        self.run.clear()
        return wanted

    @property
    def is_stopping(self) -> bool:
        return self.connection.state is State.STOPPING

    def close(self) -> None:
        self.transport.close()
        self.other.close()


@pytest.fixture
async def by_hand() -> AsyncIterator[ByHand]:
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    broker = Broker.open(config, ForgetfulFileSystem(), ManualClock(), InlineOffload())
    await broker.create_topic(CreateTopicRequest("t", PARTITIONS))
    by_hand = ByHand(broker)
    yield by_hand
    by_hand.close()
    broker.close()


async def test_a_connection_with_work_left_is_neither_idle_nor_stalled(by_hand: ByHand) -> None:
    connection = by_hand.connection
    connection.intake.quiet_since = trio.current_time() - 100  # nothing came for a while
    append = AppendRequest([AppendPartition("t", 0, len(BATCH))], "os")
    by_hand.send(*[(append, BATCH)] * 1_000)
    assert by_hand.turn() is Next.TURN
    connection.stop_if_quiet(60, 60)
    assert not by_hand.is_stopping
    while by_hand.turn() is Next.TURN:
        connection.stop_if_quiet(60, 60)
    assert not by_hand.is_stopping
    assert by_hand.broker.partitions["t", 0].log.log_end_offset == 1_000
    connection.intake.quiet_since = trio.current_time() - 100
    connection.stop_if_quiet(60, 60)
    assert by_hand.is_stopping


async def test_the_work_of_a_turn_counts_partitions(by_hand: ByHand) -> None:
    many = OffsetsRequest([OffsetsPartition("t", number % PARTITIONS) for number in range(LOOKED_UP)])
    by_hand.send(*[(many, b"")] * 20)
    assert by_hand.turn() is Next.TURN
    assert by_hand.broker.metrics.requests["offsets"] <= 2


async def test_a_hello_on_a_greeted_connection_is_for_its_task_which_looks_at_partitions_in_turns(
    by_hand: ByHand,
) -> None:
    by_hand.send(*[(HelloRequest("seglog"), b"")] * 5)
    assert by_hand.turn() is Next.TASK


async def test_appends_to_many_partitions_are_fewer_in_a_turn(by_hand: ByHand) -> None:
    places = [AppendPartition("t", number, len(BATCH)) for number in range(PARTITIONS)]
    by_hand.send(*[(AppendRequest(places, "os"), BATCH * PARTITIONS)] * 100)
    assert by_hand.turn() is Next.TURN
    assert by_hand.broker.metrics.appends["os"] <= 2 * LOOKED_UP
    while by_hand.turn() is Next.TURN:
        pass
    assert by_hand.broker.metrics.appends["os"] == 100 * PARTITIONS


async def test_a_request_that_takes_a_whole_turn_with_none_behind_it_leaves_no_work(by_hand: ByHand) -> None:
    many = OffsetsRequest([OffsetsPartition("t", number % PARTITIONS) for number in range(LOOKED_UP)])
    by_hand.send((many, b""))
    assert by_hand.turn() is Next.READABLE
