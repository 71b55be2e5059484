"""Transactions over the wire: in the turn of the connection where its client is the only one, else by tasks."""

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.ready_sockets import ALONE_SECONDS
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.broker.listeners.kafka.kafka_peer import PARTITIONS, KafkaPeer, KafkaServed, kafka, produce, results


class Producer:
    """A producer of transaction version 2, on a connection of its own."""

    def __init__(self, peer: KafkaPeer) -> None:
        self.peer = peer
        self._sequences: dict[int, int] = {}

    async def begin(self) -> None:
        cls = messages.InitProducerIdRequest
        told = await self.peer.ask(cls(transactional_id="id", transaction_timeout_ms=60_000), 4)
        self.id, self.epoch = told.producer_id, told.producer_epoch

    def produce(self, partition: int, *, epoch: int | None = None, size: int = 10) -> messages.ProduceRequest:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + 1
        batch = encode_batch(
            [(-1, None, bytes(size), ())],
            producer_id=self.id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = produce(("plain", partition, batch))
        request.transactional_id = "id"
        return request

    async def produced(self, partition: int, **more: Any) -> int:
        [(code, _)] = results(await self.peer.ask(self.produce(partition, **more), 12))
        return code

    async def end(self, *, is_commit: bool = True) -> int:
        cls = messages.EndTxnRequest
        request = cls(transactional_id="id", producer_id=self.id, producer_epoch=self.epoch, committed=is_commit)
        while (told := await self.peer.ask(request, 5)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            await trio.lowlevel.checkpoint()
        if not told.error_code:
            self.id, self.epoch, self._sequences = told.producer_id, told.producer_epoch, {}
        code: int = told.error_code
        return code


@pytest.fixture
async def producer(served: KafkaServed, peer: KafkaPeer) -> Producer:
    return await ended(peer)


async def ended(peer: KafkaPeer) -> Producer:
    """One that has ended a transaction, so that the topics of the coordinators are there."""
    made = Producer(peer)
    await made.begin()
    assert (await made.produced(0), await made.end()) == (0, 0)
    await wait_all_tasks_blocked()
    return made


async def never_alone(served: KafkaServed) -> tuple[Producer, Connection]:
    producer = await ended(await served.connect())
    connection = await served.connection_of(producer.peer)
    connection.ready._latest_since = math.inf
    return producer, connection


async def alone(served: KafkaServed, producer: Producer) -> None:
    (await served.connection_of(producer.peer)).ready._latest_since = -ALONE_SECONDS


def ends(served: KafkaServed, partition: int) -> tuple[int, int, int]:
    """The ends of a log: what is stable, what is durable, what is written."""
    log = served.broker.partitions["plain", partition].log
    return log.last_stable_offset, log.durable_end_offset, log.log_end_offset


async def test_the_only_clients_transaction_is_over_when_its_end_is_answered(
    served: KafkaServed, producer: Producer, autojump_clock: MockClock
) -> None:
    """By a clock that stands while the loop syncs: after a sync that takes long it waits for none for a while."""
    for number, is_commit in enumerate([True, False, True], start=1):
        await alone(served, producer)
        assert await producer.produced(1) == 0
        assert ends(served, 1) == (2 * number - 2, 2 * number - 1, 2 * number - 1)
        assert await producer.end(is_commit=is_commit) == 0
        assert ends(served, 1) == (2 * number, 2 * number, 2 * number)
        assert served.broker.transactions.markers.waiting == 0


@each_case("is_alone", [True, False])
async def test_a_batch_that_its_transaction_does_not_take_is_answered_in_its_place(is_alone: bool) -> None:
    async with kafka() as served:
        producer = Producer(await served.connect())
        await producer.begin()
        if is_alone:
            await alone(served, producer)
        peer = producer.peer
        large = producer.produce(1, size=20_000)  # which does not begin in the turn
        refused = producer.produce(0, epoch=producer.epoch + 1)
        for request in (large, refused, producer.produce(2)):
            await peer.send(request, 12)
        said = [results(await peer.receive(messages.ProduceResponse)) for _ in range(3)]
        assert [code for [(code, _)] in said] == [0, ErrorCode.INVALID_PRODUCER_EPOCH, 0]
        assert [ends(served, number)[2] for number in range(3)] == [0, 1, 1]


@each_case("why", ["a slow disk", "many", "offsets of a group"])
async def test_markers_that_are_not_written_at_once_follow(why: str) -> None:
    async with kafka(topics={name: {} for name in ("plain", "more", "most")}) as served:
        producer = Producer(await served.connect())
        await producer.begin()
        assert await producer.produced(0) == 0
        if why == "a slow disk":
            served.broker.commits.may_wait_at = math.inf
        elif why == "many":
            keys = [(topic, number) for topic in ("plain", "more", "most") for number in range(PARTITIONS)]
            who = ProducerIdAndEpoch(producer.id, producer.epoch)
            await served.broker.transactions.add_partitions("id", who, keys, version=2)
        else:
            cls = messages.TxnOffsetCommitRequest
            partition = cls.TxnOffsetCommitRequestPartition(committed_offset=7)
            topics = [cls.TxnOffsetCommitRequestTopic(name="plain", partitions=[partition])]
            request = cls(
                transactional_id="id",
                group_id="group",
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                topics=topics,
            )
            assert (await producer.peer.ask(request, 5)).topics[0].partitions[0].error_code == 0
        await alone(served, producer)
        assert await producer.end() == 0
        await wait_all_tasks_blocked()
        assert ends(served, 0) == (2, 2, 2)
        assert served.broker.transactions.markers.waiting == 0
        if why == "offsets of a group":
            assert served.broker.groups.offsets.of("group")["plain", 0].offset == 7


async def test_a_batch_that_takes_long_to_append_when_its_partition_is_added_is_answered() -> None:
    async with kafka(topics={"plain": {"compression.type": "gzip"}}) as served:
        producer, connection = await never_alone(served)
        await producer.peer.send(producer.produce(1, size=12_000), 12)
        while not connection.is_held:
            await trio.lowlevel.checkpoint()
        [(code, _)] = results(await producer.peer.receive(messages.ProduceResponse))
        assert (code, ends(served, 1)[2]) == (0, 1)
        assert await producer.end() == 0


async def test_a_batch_without_an_ack_that_fails_when_its_partition_is_added_ends_the_connection() -> None:
    async with kafka(topics={"plain": {"max.message.bytes": "400"}}) as served:
        producer, connection = await never_alone(served)
        request = producer.produce(1, size=1_000)
        request.acks = 0
        await producer.peer.send(request, 12, silent=True)
        while not connection.is_held:
            await trio.lowlevel.checkpoint()
        assert await producer.peer.rest() == b""


async def test_a_batch_whose_partition_is_added_when_the_peer_has_finished_is_answered() -> None:
    async with kafka(topics={"plain": {"compression.type": "gzip"}}) as served:  # so it is appended alone
        producer, connection = await never_alone(served)
        offload = served.broker.offload
        commit, go = offload.commit, trio.Event()

        async def held(*args: Any) -> list[OSError | None]:
            await go.wait()
            return await commit(*args)

        offload.commit = held  # type: ignore[assignment, method-assign]
        await producer.peer.send(producer.produce(1), 12)
        while not connection.is_held:
            await trio.lowlevel.checkpoint()
        await producer.peer.stream.send_eof()
        await wait_all_tasks_blocked()
        go.set()
        [(code, _)] = results(await producer.peer.receive(messages.ProduceResponse))
        assert code == 0
        assert await producer.peer.rest() == b""
