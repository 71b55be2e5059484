"""Offsets that are committed in transactions: when they count, and what a restart or a power cut leaves of them."""

import errno

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.partitions.durability import wait_durable
from seglog_broker.partitions.partition import Partition
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.internal_topics import OFFSETS_TOPIC
from seglog_protocol.messages import CreateTopicRequest, DeleteTopicRequest
from tests.unit.broker.coordinators.groups.service.running import (
    TogetherClock,
    commit,
    committed,
    joined,
    running,
    with_topic,
)

PRODUCER = ProducerIdAndEpoch(7, 0)


def partition_of(broker: Broker, group: str) -> Partition:
    """The partition that has what a group commits; the topic exists once something was committed."""
    return broker.partitions.partition(OFFSETS_TOPIC, broker.groups.partition_of(group))


def begin(broker: Broker, group: str, transaction: ProducerIdAndEpoch = PRODUCER) -> None:
    """What the coordinator of transactions does for AddOffsetsToTxn."""
    partition_of(broker, group).log.producers.expect(*transaction)


async def commit_in(
    broker: Broker, group: str, offset: int, partition: int = 0, transaction: ProducerIdAndEpoch = PRODUCER
) -> None:
    results = await broker.groups.commit(group, Committer(), [OffsetToCommit("t", partition, offset)], transaction)
    assert results == [None]


async def write_marker(
    broker: Broker, group: str, *, is_commit: bool, transaction: ProducerIdAndEpoch = PRODUCER
) -> None:
    partition = partition_of(broker, group)
    end_offset = partition.append_marker(TransactionEnd(*transaction, 0, is_commit, 1))
    await wait_durable(partition, end_offset)


async def end(broker: Broker, group: str, *, is_commit: bool, transaction: ProducerIdAndEpoch = PRODUCER) -> None:
    """What the coordinator of transactions does to end one."""
    await write_marker(broker, group, is_commit=is_commit, transaction=transaction)
    number = broker.groups.partition_of(group)
    await broker.groups.end_transaction(number, transaction.producer_id, is_commit=is_commit)


def is_unstable(broker: Broker, group: str, partition: int = 0) -> bool:
    return broker.groups.committed(group, [("t", partition)])[0].is_unstable


async def prepare(broker: Broker) -> None:
    await commit(broker, "g", 1)
    begin(broker, "g")


@pytest.fixture
async def broker(broker: Broker) -> Broker:
    """One with group g, which has committed offset 1, and a transaction that may commit for it."""
    await prepare(broker)
    return broker


async def test_what_was_not_begun_is_refused_and_leaves_nothing(broker: Broker) -> None:
    for transaction, error in (
        (ProducerIdAndEpoch(8, 0), errors.InvalidTransactionStateError),
        (ProducerIdAndEpoch(7, 1), errors.InvalidTransactionStateError),
        (ProducerIdAndEpoch(7, -1), errors.InvalidProducerEpochError),
    ):
        offsets = [OffsetToCommit("t", 0, 5), OffsetToCommit("t", 1, 5)]
        results = await broker.groups.commit("g", Committer(), offsets, transaction)
        assert [type(result) for result in results] == [error, error]
        assert not is_unstable(broker, "g")
    await commit_in(broker, "g", 6)
    await end(broker, "g", is_commit=True)
    (late,) = await broker.groups.commit("g", Committer(), [OffsetToCommit("t", 0, 7)], PRODUCER)
    assert isinstance(late, errors.InvalidTransactionStateError)
    assert (committed(broker, "g"), is_unstable(broker, "g")) == (6, False)


async def test_what_others_write_at_the_same_time_is_not_refused_with_it(broker: Broker) -> None:
    """They share a request to the log."""
    results: dict[str, list[errors.SeglogError | None]] = {}

    async def commit_one(name: str, group: str, transaction: ProducerIdAndEpoch | None) -> None:
        offsets = [OffsetToCommit("t", 0, 9)]
        results[name] = await broker.groups.commit(group, Committer(), offsets, transaction)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(commit_one, f"plain {number}", "g", None)
            nursery.start_soon(commit_one, f"begun {number}", "g", PRODUCER)
            nursery.start_soon(commit_one, f"other {number}", "g", ProducerIdAndEpoch(8, 3))
    refused = {name for name, (error,) in results.items() if error is not None}
    assert refused == {f"other {number}" for number in range(10)}
    await end(broker, "g", is_commit=True)
    assert committed(broker, "g") == 9


async def test_the_marker_may_be_called_back_for_before_the_commit(broker: Broker) -> None:
    """It is behind the commit in the log, so what it says holds for it."""
    log = partition_of(broker, "g").log
    before = log.log_end_offset
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit_in, broker, "g", 5)
        while log.log_end_offset == before:
            await trio.lowlevel.checkpoint()
        assert is_unstable(broker, "g"), "it is about to be"
        partition_of(broker, "g").append_marker(TransactionEnd(*PRODUCER, 0, is_commit=True, transaction_version=1))
        await broker.groups.end_transaction(broker.groups.partition_of("g"), 7, is_commit=True)
    assert (committed(broker, "g"), is_unstable(broker, "g")) == (5, False)


async def test_a_commit_that_could_not_be_written_leaves_the_former_one_pending(
    fs: ForgetfulFileSystem, broker: Broker
) -> None:
    await commit_in(broker, "g", 5)
    number = broker.groups.partition_of("g")
    fs.inject(Fault("pwritev", f"{OFFSETS_TOPIC}-{number}/00000000000000000000.log", error=errno.ENOSPC))
    (failed,) = await broker.groups.commit("g", Committer(), [OffsetToCommit("t", 0, 6)], PRODUCER)
    assert isinstance(failed, errors.CoordinatorNotAvailableError)
    assert is_unstable(broker, "g")
    await end(broker, "g", is_commit=True)
    assert (committed(broker, "g"), is_unstable(broker, "g")) == (5, False)


async def test_a_transaction_ends_in_one_partition_of_the_topic_and_not_in_others() -> None:
    async with running(ForgetfulFileSystem(), None, "offsets.topic.num.partitions=3") as broker:
        await with_topic(broker)
        await prepare(broker)
        number = broker.groups.partition_of("g")
        other = next(name for name in map(str, range(100)) if broker.groups.partition_of(name) != number)
        begin(broker, other)
        await commit_in(broker, "g", 5)
        await commit_in(broker, other, 6)
        await end(broker, "g", is_commit=True)
        assert (committed(broker, "g"), is_unstable(broker, "g")) == (5, False)
        assert (committed(broker, other), is_unstable(broker, other)) == (-1, True)
        await end(broker, other, is_commit=True)
        assert (committed(broker, other), is_unstable(broker, other)) == (6, False)


async def test_thousands_of_offsets_of_a_transaction_end_in_turns(broker: Broker) -> None:
    await broker.create_topic(CreateTopicRequest("many", 1_000))
    offsets = [OffsetToCommit("many", number, number) for number in range(1_000)]
    assert await broker.groups.commit("g", Committer(), offsets, PRODUCER) == [None] * 1_000
    await write_marker(broker, "g", is_commit=True)
    left: list[int] = []

    async def watch() -> None:
        while True:
            left.append(sum(found.is_unstable for found in broker.groups.committed("g", [("many", 999)])))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.lowlevel.checkpoint()
        await broker.groups.end_transaction(broker.groups.partition_of("g"), 7, is_commit=True)
        nursery.cancel_scope.cancel()
    assert left.count(1) >= 2, "others ran while it ended"
    assert [found.offset for found in broker.groups.committed("g", [("many", 0), ("many", 999)])] == [0, 999]


# --- Members ----------------------------------------------------------------------------------------------------------


async def test_a_fenced_member_commits_nothing_in_a_transaction(broker: Broker) -> None:
    member = await joined(broker, "g")
    offsets = [OffsetToCommit("t", 0, 3)]
    for committer, error in (
        (Committer(member.member_id, 0), errors.IllegalGenerationError),
        (Committer("another", 1), errors.UnknownMemberError),
    ):
        with pytest.raises(error):
            await broker.groups.commit("g", committer, offsets, PRODUCER)
    assert not is_unstable(broker, "g")
    assert await broker.groups.commit("g", Committer(member.member_id, 1), offsets, PRODUCER) == [None]
    assert await broker.groups.commit("g", Committer(), offsets, PRODUCER) == [None], "old producers name no member"


async def test_a_group_that_is_not_there_has_no_generation(broker: Broker) -> None:
    begin(broker, "new")
    offsets = [OffsetToCommit("t", 0, 3)]
    with pytest.raises(errors.IllegalGenerationError):
        await broker.groups.commit("new", Committer("m", 3), offsets, PRODUCER)
    await commit_in(broker, "new", 3)
    described, _ = broker.groups.describe("new")
    assert described.state == "Empty"


# --- Offsets that go --------------------------------------------------------------------------------------------------


async def test_a_deleted_group_gets_nothing_of_a_transaction_that_is_committed_later(
    fs: ForgetfulFileSystem, broker: Broker
) -> None:
    await commit_in(broker, "g", 5, 2)
    assert await broker.groups.delete(["g"]) == [None]
    assert not is_unstable(broker, "g", 2)
    await end(broker, "g", is_commit=True)
    assert not broker.groups.has("g")
    async with running(fs.found_after(POWER_LOSS)) as again:
        assert not again.groups.has("g")


async def test_what_is_pending_does_not_expire() -> None:
    clock = TogetherClock()
    flags = ["offsets.retention.minutes=1", "offsets.retention.check.interval.ms=1000"]
    async with running(ForgetfulFileSystem(), clock, *flags) as broker:
        await with_topic(broker)
        await prepare(broker)
        await commit_in(broker, "g", 5)
        await trio.sleep(300)
        assert broker.groups.has("g")
        await end(broker, "g", is_commit=False)
        await trio.sleep(300)
        assert not broker.groups.has("g")


async def test_a_topic_that_is_deleted_meanwhile_has_no_offsets_when_it_is_made_again(broker: Broker) -> None:
    await commit_in(broker, "g", 5)
    await broker.delete_topic(DeleteTopicRequest("t"))
    await with_topic(broker)
    await end(broker, "g", is_commit=True)
    assert committed(broker, "g") == -1


async def test_what_a_power_cut_took_is_not_skipped_when_the_transaction_is_committed(
    fs: ForgetfulFileSystem, broker: Broker
) -> None:
    """The records behind offset 10 that the transaction has read were not durable: others get their offsets."""
    await commit_in(broker, "g", 500)
    async with running(fs := fs.found_after(POWER_LOSS), closes=False) as again:
        await end(again, "g", is_commit=True)
        await trio.testing.wait_all_tasks_blocked()
        assert committed(again, "g") == 10
    async with running(fs.found_after(POWER_LOSS)) as again:
        assert committed(again, "g") == 10


# --- Bounds -----------------------------------------------------------------------------------------------------------


async def test_what_is_pending_counts_against_the_memory_of_committed_offsets() -> None:
    async with running(ForgetfulFileSystem(), None, "seglog.offsets.memory.bytes=1MiB") as broker:
        await with_topic(broker)
        await prepare(broker)
        await broker.create_topic(CreateTopicRequest("many", 300))
        offsets = [OffsetToCommit("many", number, 1, metadata="x" * 4_000) for number in range(300)]
        results = await broker.groups.commit("g", Committer(), offsets, PRODUCER)
        refused = [error for error in results if error is not None]
        assert 30 < len(refused) < 150
        assert {type(error) for error in refused} == {errors.CoordinatorNotAvailableError}
        await end(broker, "g", is_commit=False)
        await commit(broker, "g", 2)
        begin(broker, "g", ProducerIdAndEpoch(7, 1))
        results = await broker.groups.commit("g", Committer(), offsets, ProducerIdAndEpoch(7, 1))
        assert len([error for error in results if error is not None]) == len(refused), "nothing was left of the first"
