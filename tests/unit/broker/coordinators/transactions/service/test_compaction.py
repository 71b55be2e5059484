"""The broker's own topics are compacted while transactions are open, committed and aborted: what counts stays."""

from typing import Final

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committed, Committer, OffsetToCommit
from seglog_broker.coordinators.records import ProducerIdAndEpoch
from seglog_broker.coordinators.transactions.facts import TransactionState
from seglog_broker.server import compaction_of
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.logs import read_all
from tests.support import each_case
from tests.unit.broker.coordinators.groups.service.running import SMALL_SEGMENTS, commit
from tests.unit.broker.coordinators.transactions.service.running import (
    TOPIC,
    append,
    coordinating,
    end,
    ended,
    with_orders,
)

SMALL: Final = ("log.cleaner.min.cleanable.ratio=0.01",)
ENDED: Final = 20
"""Transactions that end; each writes some records to either topic."""


async def begin(broker: Broker, key: str, offset: int, version: int) -> ProducerIdAndEpoch:
    """A producer with an open transaction that has committed ``offset`` for the group of this name."""
    producer = await broker.transactions.init_producer(key, 60_000)
    await commit_in(broker, producer, key, offset, version)
    return producer


async def commit_in(broker: Broker, producer: ProducerIdAndEpoch, key: str, offset: int, version: int) -> None:
    await broker.transactions.add_offsets(key, producer, key, version=version)
    results = await broker.groups.commit(key, Committer(), [OffsetToCommit(TOPIC, 0, offset)], producer)
    assert results == [None]


def committed(broker: Broker, group: str) -> Committed:
    return broker.groups.committed(group, [(TOPIC, 0)])[0]


async def compact(broker: Broker) -> None:
    compaction = compaction_of(broker)
    while await compaction.clean_next():
        pass


def records_of(broker: Broker, topic: str) -> int:
    return len(read_all(broker.partitions.partition(topic, 0).log))


@each_case("version", [1, 2])
@each_case("is_open_first", [True, False])
async def test_what_counts_stays_when_the_brokers_own_topics_are_compacted(version: int, is_open_first: bool) -> None:
    fs = ForgetfulFileSystem()
    async with coordinating(fs, *SMALL, closes=False, **SMALL_SEGMENTS) as broker:
        await with_orders(broker)
        await append(broker, ProducerIdAndEpoch(-1, -1), *[b"v"] * ENDED, transactional=False, sequence=-1)
        await commit(broker, "plain", 0, topic=TOPIC)
        opened: ProducerIdAndEpoch | None = None
        if is_open_first:
            opened = await begin(broker, "open", 7, version)
        producer = await broker.transactions.init_producer("ended", 60_000)
        aborting = await broker.transactions.init_producer("aborted", 60_000)
        for number in range(ENDED):
            await commit_in(broker, producer, "ended", number, version)
            producer = await end(broker, producer, version=version, key="ended")
            await ended(broker, "ended")
            await commit_in(broker, aborting, "aborted", number, version)
            aborting = await end(broker, aborting, commit=False, version=version, key="aborted")
            await ended(broker, "aborted")
        if opened is None:
            opened = await begin(broker, "open", 7, version)
        before = {topic: records_of(broker, topic) for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)}
        await compact(broker)
        assert records_of(broker, TRANSACTIONS_TOPIC) < before[TRANSACTIONS_TOPIC] / 2
        if not is_open_first:  # else nothing of it is stable
            assert records_of(broker, OFFSETS_TOPIC) < before[OFFSETS_TOPIC] * 2 / 3  # most markers have their time yet
    async with coordinating(fs := fs.crash(POWER_LOSS), *SMALL, closes=False, **SMALL_SEGMENTS) as broker:
        assert committed(broker, "plain").offset == 0
        assert committed(broker, "ended").offset == ENDED - 1
        assert (committed(broker, "aborted").offset, committed(broker, "aborted").is_unstable) == (-1, False)
        assert (committed(broker, "open").offset, committed(broker, "open").is_unstable) == (-1, True)
        assert broker.transactions.describe("ended").facts.state is TransactionState.COMPLETE_COMMIT
        assert broker.transactions.describe("ended").facts.producer == producer
        assert broker.transactions.describe("aborted").facts.state is TransactionState.COMPLETE_ABORT
        await end(broker, opened, version=version, key="open")
        assert await ended(broker, "open") is TransactionState.COMPLETE_COMMIT
        await compact(broker)
        assert committed(broker, "open").offset == 7
    async with coordinating(fs.crash(POWER_LOSS), *SMALL, **SMALL_SEGMENTS) as broker:
        assert [committed(broker, group).offset for group in ("plain", "ended", "aborted", "open")] == [
            0,
            ENDED - 1,
            -1,
            7,
        ]
        assert broker.groups.committed("ended", [(TOPIC, 0)])[0].is_unstable is False
        log = broker.partitions.partition(OFFSETS_TOPIC, 0).log
        assert log.last_stable_offset == log.log_end_offset
