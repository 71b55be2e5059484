"""ShareFetch and ShareAcknowledge over Kafka's wire, to a real broker."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.api.share_sessions import ShareSession
from seglog_broker.config.kafka_configs import Alteration, Operation, ResourceType
from seglog_broker.coordinators.groups.share import MEMBER_ID_CHARACTERS_MAX
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.listeners.kafka.templates import Repeated
from seglog_broker.partitions.awaited_segments import Fetched
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.kafka import (
    messages,
    read_request,
    read_request_header,
    write_request,
)
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.record_batch import iter_batches
from tests.logs import append_one, batch
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, kafka, produce

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
Ack = tuple[int, int, int]
"""First and last offset, and the type."""


class Member:
    """A member of group ``g`` that fetches from partitions of ``plain``, with a session of its own."""

    def __init__(self, served: KafkaServed, peer: KafkaPeer, name: str, topic: str = "plain") -> None:
        self.peer = peer
        self.name = name
        self.epoch = 0
        self.topic_id = served.id_of(topic)

    def fetching(self, partitions: Sequence[int] = (), acks: Sequence[Ack] = (), **more: Any) -> Any:
        cls = messages.ShareFetchRequest
        asked = [
            cls.FetchPartition(
                partition_index=number,
                acknowledgement_batches=[
                    cls.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
                    for first, last, kind in acks
                ],
            )
            for number in partitions
        ]
        limits = {"max_records": 10, "max_bytes": 2**20, "batch_size": 10} | more
        return cls(
            group_id="g",
            member_id=self.name,
            share_session_epoch=self.epoch,
            topics=[cls.FetchTopic(topic_id=self.topic_id, partitions=asked)] if asked else [],
            **limits,
        )

    async def send(self, *args: Any, **more: Any) -> None:
        request = self.fetching(*args, **more)
        self.epoch += 1
        await self.peer.send(request)

    async def receive(self) -> dict[int, Any]:
        """The partitions of the response, which has no error of its own."""
        response = await self.peer.receive(messages.ShareFetchResponse)
        assert response.error_code == ErrorCode.NONE, response.error_message
        assert response.acquisition_lock_timeout_ms == 30_000
        return {partition.partition_index: partition for topic in response.responses for partition in topic.partitions}

    async def fetch(self, *args: Any, **more: Any) -> dict[int, Any]:
        await self.send(*args, **more)
        return await self.receive()

    async def acknowledge(self, *acks: Ack, epoch: int | None = None, is_renew_ack: bool = False) -> Any:
        cls = messages.ShareAcknowledgeRequest
        batches = [cls.AcknowledgementBatch(first_offset=a, last_offset=b, acknowledge_types=[c]) for a, b, c in acks]
        partition = cls.AcknowledgePartition(partition_index=0, acknowledgement_batches=batches)
        request = cls(
            group_id="g",
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=is_renew_ack,
            topics=[cls.AcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])] if acks else [],
        )
        self.epoch += 1
        return await self.peer.ask(request)


def acquired(partition: Any) -> list[tuple[int, int, int]]:
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in partition.acquired_records]


def offsets(partition: Any) -> list[int]:
    """The base offsets of the batches that a partition has."""
    return [header.base_offset for header, _ in iter_batches(partition.records)]


@asynccontextmanager
async def shared(count: int = 4, *flags: str) -> AsyncIterator[tuple[KafkaServed, Any]]:
    """A broker whose group ``g`` reads ``plain`` from its beginning, where ``count`` batches of two records are."""
    async with kafka(*flags) as served, trio.open_nursery() as tasks:
        tasks.start_soon(served.broker.share.run)
        tasks.start_soon(served.broker.share_fetches.run)
        await wait_all_tasks_blocked()
        await served.broker.share.initialize("g", served.id_of("plain"), {0: 0, 1: 0}, 1)
        peer = await served.connect()
        for _ in range(count):
            await peer.ask(produce(("plain", 0, batch(b"a", b"b"))), 9)

        async def member(name: str) -> Member:
            return Member(served, await served.connect(), name)

        yield served, member
        tasks.cancel_scope.cancel()


async def test_a_fetch_waits_for_an_awaited_segment_or_is_told_to_try_again() -> None:
    async with shared(2) as (served, member):
        one, partition = await member("one"), served.broker.partitions["plain", 0]
        partition.log.active.tail.forget()
        partition.log.active.log.is_awaited = True
        partition.log.segments.awaited[0] = None
        assert (await one.fetch([0], max_wait_ms=0))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        awaited = served.broker.partitions.awaited
        assert list(awaited.asked) == [(partition, 0)]
        await one.send([0], max_wait_ms=60_000)
        await wait_all_tasks_blocked()
        awaited.end(Fetched(partition, 0), has_arrived=True)
        assert acquired((await one.receive())[0]) == [(0, 3, 1)]


async def test_fetches_that_repeat_but_for_epoch_and_offsets_are_not_read_by_the_codec_and_are_served_alike() -> None:
    async with shared(8) as (served, member):
        one = await member("one")
        held: list[Ack] = []
        for number in range(8):
            found = (await one.fetch([0], held, batch_size=2, max_records=2))[0]
            assert (acquired(found), offsets(found)) == ([(2 * number, 2 * number + 1, 1)], [2 * number])
            held = [(2 * number, 2 * number + 1, ACCEPT)]
        wire: Any = (await served.connection_of(one.peer)).wire
        made: list[Repeated] = wire.templates._templates
        assert len(made) == 2, "the first fetch acknowledges nothing"
        asked = one.fetching([0], held, batch_size=2, max_records=2)
        frame = memoryview(b"".join(write_request(7, made[0]._header.client_id, asked, 2))[4:])
        assert wire.templates.find(frame).request_of(frame) == read_request(read_request_header(frame), frame)
        refused = (await one.fetch([0], [(16, 17, ACCEPT)], batch_size=2, max_records=2, max_wait_ms=0))[0]
        assert refused.acknowledge_error_code == ErrorCode.INVALID_REQUEST


async def test_records_are_delivered_once_acknowledged_and_never_again() -> None:
    async with shared() as (served, member):
        one, two = await member("one"), await member("two")
        found = (await one.fetch([0, 1], max_records=3))[0]
        assert acquired(found) == [(0, 3, 1)], "whole batches"
        assert offsets(found) == [0, 2]
        found = (await two.fetch([0]))[0]
        assert acquired(found) == [(4, 7, 1)]
        assert offsets(found) == [4, 6]
        answered = (await one.fetch([0], [(0, 1, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT)]))[0]
        assert (answered.error_code, answered.acknowledge_error_code) == (0, 0)
        assert acquired(answered) == [(2, 2, 2)], "what was released is delivered again"
        assert offsets(answered) == [2]
        assert (await one.acknowledge((2, 2, ACCEPT))).responses[0].partitions[0].error_code == 0
        machine = served.broker.share.find(PartitionKey("g", one.topic_id, 0))
        assert machine is not None
        assert machine.start_offset == 4


async def test_a_fetch_waits_for_records_and_the_first_that_waits_gets_them(autojump_clock: MockClock) -> None:
    async with shared(0) as (served, member):
        first, second, peer = await member("one"), await member("two"), await served.connect()
        for each in (first, second):
            await each.send([0, 1], max_wait_ms=10_000)
            await wait_all_tasks_blocked()
        assert served.broker.share_fetches.waiting == 2
        await peer.ask(produce(("plain", 0, batch(b"x"))), 9)
        assert acquired((await first.receive())[0]) == [(0, 0, 1)]
        assert served.broker.share_fetches.waiting == 1
        assert (await first.acknowledge((0, 0, RELEASE))).error_code == 0
        assert acquired((await second.receive())[0]) == [(0, 0, 2)]
        began = trio.current_time()
        assert await first.fetch(max_wait_ms=3_000) == {}
        assert 3 <= trio.current_time() - began < 4


async def test_more_bytes_than_there_are_are_waited_for(autojump_clock: MockClock) -> None:
    async with shared(1) as (served, member):
        one, peer = await member("one"), await served.connect()
        await one.send([0], max_wait_ms=60_000, min_bytes=100)
        await wait_all_tasks_blocked()
        assert served.broker.share_fetches.waiting == 1
        await peer.ask(produce(("plain", 0, batch(b"x" * 100))), 9)
        assert acquired((await one.receive())[0]) == [(0, 2, 1)]
        began = trio.current_time()
        await peer.ask(produce(("plain", 0, batch(b"x"))), 9)
        assert acquired((await one.fetch(max_wait_ms=5_000, min_bytes=1_000))[0]) == [(3, 3, 1)]
        assert trio.current_time() - began >= 5, "then fewer will do"


@pytest.mark.parametrize("ends", ["by its last epoch", "with its connection", "by another fetch of it"])
async def test_a_session_that_ends_gives_its_records_to_others(ends: str, autojump_clock: MockClock) -> None:
    async with shared() as (served, member):
        one, two = await member("one"), await member("two")
        await one.fetch([0], max_records=100)
        await two.send([0], max_wait_ms=60_000)
        await wait_all_tasks_blocked()
        if ends == "by its last epoch":
            one.epoch = -1
            assert await one.fetch() == {}
            assert acquired((await two.receive())[0]) == [(0, 7, 2)]
        elif ends == "with its connection":
            await one.peer.stream.aclose()
            assert acquired((await two.receive())[0]) == [(0, 7, 2)]
        else:
            again = await member("two")
            assert await again.fetch([0]) == {}, "nothing is released: another connection has the session now"
            assert await two.receive() == {}
            two.epoch = 1
            assert (await two.peer.ask(two.fetching())).error_code == ErrorCode.NONE, "whoever knows the epoch has it"
        assert len(served.broker.share_fetches.sessions) == (1 if ends != "by another fetch of it" else 2)


async def test_acknowledgements_that_are_wrong_say_so_and_change_nothing() -> None:
    async with shared() as (served, member):
        one, two = await member("one"), await member("two")
        await one.fetch([0], max_records=4)
        await two.fetch([0])
        wrong = {
            ErrorCode.INVALID_REQUEST: [
                [(1, 0, ACCEPT)],
                [(2, 3, ACCEPT), (0, 1, ACCEPT)],
                [(0, 0, 5)],
                [(0, 0, RENEW)],
            ],
            ErrorCode.INVALID_RECORD_STATE: [[(4, 4, ACCEPT)], [(0, 0, ACCEPT), (5, 5, ACCEPT)]],
        }
        for code, each in wrong.items():
            for acks in each:
                answered = await one.acknowledge(*acks)
                assert answered.error_code == ErrorCode.NONE
                [[partition]] = [topic.partitions for topic in answered.responses]
                assert partition.error_code == code, acks
                assert partition.error_message
        unknown = Member(served, one.peer, "one")
        unknown.epoch, unknown.topic_id = one.epoch, b"?" * 16
        found = (await unknown.fetch([0], [(0, 0, ACCEPT)]))[0]
        assert (found.error_code, found.acknowledge_error_code) == (ErrorCode.UNKNOWN_TOPIC_ID,) * 2
        one.epoch = unknown.epoch
        assert (await one.acknowledge((0, 3, ACCEPT))).responses[0].partitions[0].error_code == ErrorCode.NONE


async def test_locks_are_renewed_by_a_request_that_fetches_nothing(autojump_clock: MockClock) -> None:
    async with shared() as (_, member):
        one, two = await member("one"), await member("two")
        await one.fetch([0], max_records=8)
        refused = await one.peer.ask(one.fetching([0], [(0, 0, RENEW)], is_renew_ack=True))
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        none = {"max_records": 0, "max_bytes": 0, "max_wait_ms": 0}
        await trio.sleep(20)
        renewed = (await one.fetch([0], [(0, 3, RENEW)], is_renew_ack=True, **none))[0]
        assert (renewed.acknowledge_error_code, acquired(renewed)) == (ErrorCode.NONE, [])
        assert (await one.acknowledge((4, 5, RENEW), is_renew_ack=True)).error_code == ErrorCode.NONE
        await trio.sleep(20)
        assert acquired((await two.fetch([0]))[0]) == [(6, 7, 2)]


async def test_requests_that_do_not_fit_their_session_are_refused() -> None:
    async with shared(1, "group.share.max.share.sessions=1", "group.share.max.size=1") as (_, member):
        one, two = await member("one"), await member("two")
        await one.fetch([0])
        one.epoch = 7
        refused = {
            ErrorCode.INVALID_SHARE_SESSION_EPOCH: one.fetching(),
            ErrorCode.SHARE_SESSION_LIMIT_REACHED: two.fetching([0]),
        }
        two.epoch = 1
        refused[ErrorCode.SHARE_SESSION_NOT_FOUND] = two.fetching()
        one.epoch = 0
        refused[ErrorCode.INVALID_REQUEST] = one.fetching([0], [(0, 0, ACCEPT)])
        for code, request in refused.items():
            answered = await one.peer.ask(request)
            assert (answered.error_code, answered.responses) == (code, [])
            assert answered.error_message
        for name in ("", "m" * (MEMBER_ID_CHARACTERS_MAX + 1)):
            one.name = name
            assert (await one.peer.ask(one.fetching([0]))).error_code == ErrorCode.INVALID_REQUEST
        assert (await one.acknowledge(epoch=0)).error_code == ErrorCode.INVALID_REQUEST
        two.epoch = 1
        assert (await two.acknowledge(epoch=0)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH


async def test_while_the_state_is_loaded_the_client_is_to_look_again() -> None:
    async with kafka() as served, trio.open_nursery() as tasks:
        peer, one = await served.connect(), Member(served, await served.connect(), "one")
        await peer.ask(produce(("plain", 0, batch(b"a"))), 9)
        served.broker.share._loader._failed[
            served.broker.share._topic.partition_of(PartitionKey("g", one.topic_id, 0).text)
        ] = "its disk is gone"
        found = (await one.fetch([0]))[0]
        assert (found.error_code, found.error_message != "") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, True)
        tasks.cancel_scope.cancel()


async def test_a_response_of_errors_alone_is_held(autojump_clock: MockClock) -> None:
    async with shared(0) as (_, member):
        one = await member("one")
        began = trio.current_time()
        found = await one.fetch([2], max_wait_ms=60_000)
        assert found[2].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert 0.1 <= trio.current_time() - began < 1


async def test_a_stop_answers_those_that_wait() -> None:
    async with shared(0) as (served, member):
        one = await member("one")
        await one.send([0], max_wait_ms=60_000)
        await wait_all_tasks_blocked()
        served.stop()
        served.broker.share_fetches.end_waits()
        assert await one.receive() == {}
        await served.ended.wait()


async def test_records_of_aborted_transactions_do_not_hold_up_those_behind_them(autojump_clock: MockClock) -> None:
    async with shared(0) as (served, member):
        level = Alteration("share.isolation.level", Operation.SET, "read_committed")
        await served.broker.configs.alter(ResourceType.GROUP, "g", [level])
        one, partition = await member("one"), served.broker.partitions["plain", 0]
        partition.log.producers.expect(7, 0)
        for sequence in range(3):
            aborted = encode_batch(
                [(-1, None, b"x", ())],
                producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True,
            )  # fmt: skip
            append_one(partition.log, aborted)
        partition.append_marker(TransactionEnd(7, 0, 0, False, 1))
        began = trio.current_time()
        assert acquired((await one.fetch([0], max_records=1, max_wait_ms=60_000))[0]) == [(3, 3, 1)], "the marker"
        assert trio.current_time() == began


async def test_without_memory_nothing_new_is_delivered_and_clients_ask_again() -> None:
    async with shared() as (served, member):
        one, two = await member("one"), await member("two")
        await one.fetch([0], max_records=2)
        served.broker.share.memory.note("another", served.broker.config.seglog_share_memory_bytes)
        refused = (await two.fetch([0]))[0]
        assert (refused.error_code, acquired(refused)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
        assert "seglog.share.memory.bytes" in refused.error_message
        assert (await one.acknowledge((0, 1, RELEASE))).error_code == ErrorCode.NONE
        assert acquired((await two.fetch())[0]) == [(0, 1, 2)], "what is in flight already is"


async def test_who_has_begun_another_session_keeps_what_it_acquires_there() -> None:
    async with shared() as (served, _):
        fetches, shares = served.broker.share_fetches, served.broker.share
        topic_id = served.id_of("plain")
        machine = shares.find(PartitionKey("g", topic_id, 0))
        assert machine is not None

        def begin(name: str, count: int) -> ShareSession:
            return fetches.sessions.begin("g", name, name, [(topic_id, number) for number in range(count)])

        fetches.end_session(begin("many", 101))  # whose last one is released later, and all that ends meanwhile
        fetches.end_session(begin("one", 1))
        begin("one", 1)
        machine.acquire("one", [(0, 7)], 0, 8, 10, is_record_limit=False, now=shares.runtime.now())
        await wait_all_tasks_blocked()
        assert [run.member for run in machine.runs()] == ["one"]


async def test_many_sessions_of_a_connection_that_ends_are_ended_in_turns() -> None:
    async with shared() as (served, _):
        fetches, shares = served.broker.share_fetches, served.broker.share
        topic_id = served.id_of("plain")
        machine = shares.find(PartitionKey("g", topic_id, 0))
        assert machine is not None
        for number in range(101):
            fetches.sessions.begin("g", str(number), "connection", [(topic_id, 0)])
        machine.acquire("0", [(0, 7)], 0, 8, 10, is_record_limit=False, now=shares.runtime.now())
        fetches.note_left("connection")
        assert (len(fetches.sessions), machine.next_offset()) == (0, 8)
        await wait_all_tasks_blocked()
        assert machine.next_offset() == 0
