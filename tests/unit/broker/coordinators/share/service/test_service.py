"""The state of share groups in a broker: durable, loaded, deleted with its topic, bounded, ready for its log."""

import errno
from contextlib import suppress

import pytest
import trio
import trio.testing

from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.topic import partition_of
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol.errors import CoordinatorLoadingError, CoordinatorNotAvailableError
from seglog_protocol.messages import CreateTopicRequest, DeleteTopicRequest, TruncatePartition, TruncateRequest
from tests.appends import append_batch
from tests.logs import ManualClock, batch
from tests.support import each_case
from tests.unit.broker.coordinators.groups.service.running import NOW, open_broker
from tests.unit.broker.coordinators.share.service.sharing import (
    GROUP,
    STATE_TOPIC,
    acknowledged,
    begun,
    key_of,
    known,
    log_of,
    sharing,
    taken,
)

HOUR_MS = 3_600_000
STATE_LOG = f"{STATE_TOPIC}-0/00000000000000000000.log"


# --- Records ----------------------------------------------------------------------------------------------------------


@each_case(
    ("group", "topic_id", "number", "expected"),
    [
        ("sg", "zqNtxovASOe8k_VjtDTyLg", 0, 2),
        ("sg", "zqNtxovASOe8k_VjtDTyLg", 1, 1),
        ("live", "zqNtxovASOe8k_VjtDTyLg", 0, 1),
        ("made", "jjL2Te11TLWl1SbZfyfjvA", 0, 2),
    ],
)
def test_records_lie_in_the_partition_where_kafka_looks_for_them(
    group: str, topic_id: str, number: int, expected: int
) -> None:
    """Where a Kafka 4.4.0 with three partitions wrote them."""
    assert partition_of(PartitionKey(group, id_bytes(topic_id), number).text, 3) == expected


async def test_the_topic_is_made_when_something_is_written_and_never_expires(fs: ForgetfulFileSystem) -> None:
    async with sharing(fs, "share.coordinator.state.topic.num.partitions=2") as broker:
        topics = broker.directory.registry.topics
        await broker.share.delete(GROUP, bytes(16), [0])
        assert STATE_TOPIC not in topics, "there was nothing to delete"
        await begun(broker)
        assert topics[STATE_TOPIC].partitions == 2
        assert topics[STATE_TOPIC].config == {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "retention.bytes": "-1",
            "retention.ms": "-1",
            "segment.bytes": "16777216",
        }


async def test_what_was_answered_survives_a_power_cut_and_what_was_only_taken_is_given_again(
    fs: ForgetfulFileSystem,
) -> None:
    async with sharing(fs, closes=False) as broker:
        [machine] = await begun(broker)
        taken(broker, machine)
        await acknowledged(broker, machine, 0, 3)
        await acknowledged(broker, machine, 6, 7)
    fs = fs.crash(POWER_LOSS)
    async with sharing(fs) as broker:
        machine = known(broker)
        await broker.share.beginning.make_ready(machine, log_of(broker))
        assert (machine.start_offset, machine.state_epoch, machine.finished) == (4, 1, 2)
        assert [(first, last, count) for first, last, count in taken(broker, machine)] == [(4, 5, 1), (8, 13, 1)]
        assert broker.share.partitions_of(GROUP) == {key_of(broker).topic_id: [0]}


async def test_many_acknowledgements_that_come_together_are_one_batch(fs: ForgetfulFileSystem) -> None:
    async with sharing(fs) as broker:
        machines = await begun(broker, 0, 1, 2)
        before = log_of(broker, topic=STATE_TOPIC).log.log_end_offset
        batches = log_of(broker, topic=STATE_TOPIC).log.active.size
        async with trio.open_nursery() as nursery:
            for machine in machines:
                taken(broker, machine)
                nursery.start_soon(acknowledged, broker, machine, 0, 4)
        log = log_of(broker, topic=STATE_TOPIC).log
        assert log.log_end_offset == before + 3
        assert log.active.size - batches < 3 * 120, "one header for all"


async def test_nothing_is_answered_while_the_state_is_loaded_or_where_it_cannot_be(fs: ForgetfulFileSystem) -> None:
    async with sharing(fs) as broker:
        await begun(broker)
    broker = open_broker(fs, ManualClock(NOW))
    with pytest.raises(CoordinatorLoadingError):
        broker.share.find(key_of(broker))
    with pytest.raises(CoordinatorLoadingError):
        broker.share.check_loaded()
    broker.close()
    fs.inject(Fault("pread", STATE_LOG, error=errno.EIO, sticky=True))
    async with sharing(fs, closes=False) as broker:
        with pytest.raises(CoordinatorNotAvailableError, match="cannot be read"):
            broker.share.check_loaded()
        with pytest.raises(CoordinatorNotAvailableError, match="cannot be read"):
            broker.share.find(key_of(broker))


async def test_a_group_that_cannot_be_written_begins_at_a_later_try(fs: ForgetfulFileSystem) -> None:
    async with sharing(fs) as broker:
        await begun(broker, 1)
        fs.inject(Fault("pwritev", STATE_LOG, error=errno.ENOSPC, sticky=True))
        with pytest.raises(CoordinatorNotAvailableError, match="nothing could be written"):
            await begun(broker, 0)
        fs.heal()
        await begun(broker, 0, offset=4)
    async with sharing(fs) as broker:
        assert known(broker).start_offset == 4


# --- Deleted ----------------------------------------------------------------------------------------------------------


@each_case("is_killed", [True, False])
async def test_state_that_is_deleted_does_not_come_back(is_killed: bool) -> None:
    fs = ForgetfulFileSystem()
    async with sharing(fs, closes=not is_killed) as broker:
        await begun(broker, 0, 1)
        await broker.share.delete(GROUP, key_of(broker).topic_id, [0, 2])
        assert broker.share.find(key_of(broker)) is None
    if is_killed:
        fs = fs.crash(POWER_LOSS)
    async with sharing(fs) as broker:
        assert broker.share.partitions_of(GROUP) == {key_of(broker).topic_id: [1]}
        assert broker.share.find(key_of(broker)) is None


async def test_state_that_is_made_while_its_topic_is_deleted_goes_with_it(fs: ForgetfulFileSystem) -> None:
    async with sharing(fs) as broker:
        await begun(broker)
        topic_id = key_of(broker).topic_id
        await broker.delete_topic(DeleteTopicRequest("t"))
        await trio.testing.wait_all_tasks_blocked()
        await broker.share.initialize(GROUP, topic_id, {0: 0, 1: 0}, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert broker.share.partitions_of(GROUP) == {}


@each_case("is_made_again", [True, False])
async def test_with_a_topic_its_state_goes_also_after_a_kill(is_made_again: bool) -> None:
    fs = ForgetfulFileSystem()
    async with sharing(fs, closes=False) as broker:
        await begun(broker, 0, 1)
        old = key_of(broker)
        fs.inject(Fault("pwritev", STATE_LOG, error=errno.ENOSPC, sticky=True))  # before any tombstone
        await broker.delete_topic(DeleteTopicRequest("t"))
    fs = fs.crash(POWER_LOSS)
    async with sharing(fs) as broker:
        await trio.testing.wait_all_tasks_blocked()
        assert not broker.share.groups()
        assert broker.share.find(old) is None
        if is_made_again:
            await broker.create_topic(CreateTopicRequest("t", 1))
            assert broker.share.find(key_of(broker)) is None, "another topic has the name"
    async with sharing(fs) as broker:
        assert broker.share.find(old) is None, "there are tombstones"


# --- Where a group begins ---------------------------------------------------------------------------------------------


@each_case(
    ("reset", "offset"),
    [("earliest", 2), ("latest", 10), ("by_duration:PT2H", 10), ("by_duration:PT10M", 20), ("by_duration:PT0S", 20)],
)
async def test_a_group_begins_as_its_settings_say_and_durably_before_it_is_given_a_record(
    reset: str, offset: int
) -> None:
    """What is appended before the first acknowledgement is not lost by a kill, as it is in Kafka with "latest"."""
    fs, clock = ForgetfulFileSystem(), ManualClock(NOW)
    settings = {"share.auto.offset.reset": reset}
    async with sharing(fs, clock=clock, of_group=settings, closes=False) as broker:
        [machine] = await begun(broker, offset=-1)
        await broker.truncate(TruncateRequest([TruncatePartition("t", 0, 2)]))
        log = log_of(broker)
        assert not broker.share.beginning.is_ready(machine, log)
        if reset.startswith("by"):
            clock.now += HOUR_MS
            await append_batch(broker, batch(*[b"v"] * 10, timestamp=NOW + HOUR_MS // 2), "t", 0, ack="disk").wait()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(broker.share.beginning.make_ready, machine, log)
        assert broker.share.beginning.is_ready(machine, log)
        assert (machine.start_offset, machine.state_epoch) == (offset, 1)
    fs = fs.crash(POWER_LOSS)
    async with sharing(fs) as broker:
        assert known(broker).start_offset == offset


async def test_what_retention_has_deleted_is_passed(fs: ForgetfulFileSystem) -> None:
    async with sharing(fs) as broker:
        [machine] = await begun(broker)
        assert broker.share.beginning.is_ready(machine, log_of(broker))
        await broker.truncate(TruncateRequest([TruncatePartition("t", 0, 5)]))
        assert not broker.share.beginning.is_ready(machine, log_of(broker))
        await broker.share.beginning.make_ready(machine, log_of(broker))
        assert machine.next_offset() == 5


async def test_records_that_a_power_cut_took_are_no_longer_acknowledged(fs: ForgetfulFileSystem) -> None:
    """Others get their offsets, which no member has seen; whether one fetches before the next start or not."""
    async with sharing(fs, closes=False) as broker:
        [machine] = await begun(broker)
        await append_batch(broker, batch(*[b"lost"] * 10), "t", 0, ack="os").wait()
        taken(broker, machine, 20)
        await acknowledged(broker, machine, 0, 1)
        await acknowledged(broker, machine, 5, 15)
    fs = fs.crash(POWER_LOSS)
    async with sharing(fs, closes=False) as broker:
        machine, log = known(broker), log_of(broker)
        await broker.share.runtime.written(machine.key)
        assert (log.log.log_end_offset, machine.end_offset) == (10, 10)
        assert broker.share.beginning.is_ready(machine, log)
        await append_batch(broker, batch(*[b"others"] * 10), "t", 0, ack="disk").wait()
    fs = fs.crash(POWER_LOSS)
    async with sharing(fs) as broker:
        assert [(first, last) for first, last, _ in taken(broker, known(broker), 18)] == [(2, 4), (10, 19)]


async def test_a_start_that_is_not_durable_yet_is_waited_for(fs: ForgetfulFileSystem) -> None:
    async with sharing(fs) as broker:
        [machine] = await begun(broker, offset=-1)
        log, beginning = log_of(broker), broker.share.beginning
        fs.inject(Fault("pwritev", STATE_LOG, error=errno.ENOSPC, sticky=True))
        for _ in range(2):
            with pytest.raises(CoordinatorNotAvailableError):
                await beginning.make_ready(machine, log)
            assert machine.start_offset == 10
            assert not beginning.is_ready(machine, log), "a kill would let it begin elsewhere"
        fs.heal()
        await beginning.make_ready(machine, log)
        assert beginning.is_ready(machine, log)


async def test_a_group_that_is_to_begin_beyond_the_log_end_gets_what_comes_next(fs: ForgetfulFileSystem) -> None:
    """Kafka gives it nothing, for ever."""
    async with sharing(fs) as broker:
        [machine] = await begun(broker, offset=1_000)
        assert not broker.share.beginning.is_ready(machine, log_of(broker))
        await broker.share.beginning.make_ready(machine, log_of(broker))
        assert broker.share.beginning.is_ready(machine, log_of(broker))
        assert machine.next_offset() == 10


# --- Bounds -----------------------------------------------------------------------------------------------------------


async def test_the_budget_refuses_new_partitions_and_keeps_those_that_are_there(fs: ForgetfulFileSystem) -> None:
    machines: list[SharePartition] = []
    async with sharing(fs, "seglog.share.memory.bytes=1MiB") as broker:
        with suppress(CoordinatorNotAvailableError):
            for number in range(1_000):
                machines += await begun(broker, group=f"g{number}")
        with pytest.raises(CoordinatorNotAvailableError, match=r"seglog\.share\.memory\.bytes"):
            await begun(broker, group="another")
        assert 0.7 * 2**20 < broker.share.memory.used < 2**20
        assert len(broker.share.groups()) == len(machines)
        taken(broker, machines[0])
        await acknowledged(broker, machines[0], 0, 9)
        await broker.share.delete("g0", key_of(broker).topic_id, [0])
        for number in range(1, len(machines)):
            await broker.share.delete(f"g{number}", key_of(broker).topic_id, [0])
        assert broker.share.memory.used == 0
        await begun(broker)
