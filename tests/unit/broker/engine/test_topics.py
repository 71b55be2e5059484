"""Changing topics, deleting records and explaining seeks, with the broker on the forgetful disk."""

import errno
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.engine.topics import DELETED_A_TURN
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing import forgetful
from seglog_protocol import errors, messages
from seglog_protocol.frames import decode_value
from tests.appends import append_request
from tests.logs import ManualClock, append_one, batch, read_all, verify
from tests.unit.broker.brokers import open_broker
from tests.unit.simulation.crashes import crash_points

OLD = {"retention.ms": "1000", "segment.bytes": "4096"}


def opened(fs: forgetful.ForgetfulFileSystem) -> LogDirectory:
    """The log directory, without a broker."""
    return open_log_directory(fs, ManualClock(), load_config(None, "", {}, ["log.dir=/data"])[0], "/data")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with a topic ``t`` of two partitions."""
    broker = open_broker()
    await broker.create_topic(messages.CreateTopicRequest("t", 2, {**OLD}))
    yield broker
    broker.close()
    assert fs_of(broker).open_files == []


def fs_of(broker: Broker) -> forgetful.ForgetfulFileSystem:
    assert isinstance(broker.fs, forgetful.ForgetfulFileSystem)
    return broker.fs


async def alter(broker: Broker, **fields: Any) -> messages.AlterTopicReply:
    return await broker.alter_topic(messages.AlterTopicRequest("t", **fields))


async def append(broker: Broker, *values: bytes, partition: int = 0, **how: Any) -> list[messages.AppendResult]:
    batches = [batch(value, **how) for value in values]
    request = messages.AppendRequest(
        [messages.AppendPartition("t", partition, len(encoded)) for encoded in batches], "disk"
    )
    return (await append_request(broker, request, memoryview(bytearray(b"".join(batches)))).wait()).partitions


async def fetch(broker: Broker, offset: int, partition: int = 0) -> messages.FetchResult:
    request = messages.FetchRequest([messages.FetchPartition("t", partition, offset)], max_wait_ms=0)
    with await broker.fetch(request) as answer:
        return answer.reply.partitions[0]


def stored(broker: Broker, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in read_all(broker.partitions["t", partition].log)]


async def described(broker: Broker) -> dict[str, Any]:
    _, payload = await broker.topics(messages.TopicsRequest(["t"], config=True))
    [topic] = decode_value(payload, "topics")
    assert isinstance(topic, dict)
    return topic


# --- create_topics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
async def test_a_topic_whose_files_cannot_be_made_fails_no_other_of_the_request(broker: Broker, error: int) -> None:
    fs = fs_of(broker)
    fs.inject(forgetful.Fault("make_directory", lambda path: "/bad-0" in path, error=error, sticky=True))
    first, bad, last = await broker.create_topics(
        [messages.CreateTopicRequest(name, 2) for name in ("first", "bad", "last")]
    )
    fs.heal()
    assert isinstance(first, messages.CreateTopicReply)
    assert isinstance(bad, errors.StorageError)
    assert "topic bad could not be created" in bad.message
    is_full = error == errno.ENOSPC
    assert isinstance(last, errors.StorageError if is_full else messages.CreateTopicReply), (
        "a full disk is not tried again"
    )
    made = {"t", "first"} if is_full else {"t", "first", "last"}
    assert {topic for topic, _ in broker.partitions} == made


async def test_partitions_beyond_the_limit_are_refused_and_deleted_ones_make_room() -> None:
    broker = open_broker(None, "seglog.partitions.max=5")
    full, fits, over = await broker.create_topics(
        [messages.CreateTopicRequest(name, count) for name, count in (("a", 6), ("b", 4), ("c", 2))]
    )
    assert isinstance(full, errors.PolicyViolationError)
    assert isinstance(fits, messages.CreateTopicReply)
    assert isinstance(over, errors.PolicyViolationError)
    with pytest.raises(
        errors.PolicyViolationError, match=r"there are 4 partitions, with 2 more .* seglog\.partitions\.max, 5"
    ):
        await broker.alter_topic(messages.AlterTopicRequest("b", partitions=6))
    await broker.alter_topic(messages.AlterTopicRequest("b", partitions=5))
    await broker.delete_topic(messages.DeleteTopicRequest("b"))
    await broker.create_topic(messages.CreateTopicRequest("c", 5))
    broker.close()


async def test_a_topic_for_which_there_are_too_few_inodes_is_refused_with_their_numbers(broker: Broker) -> None:
    """And not half made: what is undone gives its inodes back, so that they seem to be there."""
    fs = fs_of(broker)
    fs.limit_free_inodes(100)
    assert broker.read_metrics().metrics["disk_free_inodes"] == 100
    big, small = await broker.create_topics(
        [messages.CreateTopicRequest("big", 20), messages.CreateTopicRequest("small", 1)]
    )
    assert isinstance(big, errors.DiskFullError)
    assert "topic big could not be created: its files need 144 inodes, and the file system of /data has" in big.message
    assert isinstance(small, messages.CreateTopicReply), "it has a verdict of its own"
    with pytest.raises(errors.DiskFullError, match="topic t could not be altered: its files need 144 inodes"):
        await alter(broker, partitions=22)
    assert {topic for topic, _ in broker.partitions} == {"t", "small"}
    fs.limit_free_inodes(None)
    await broker.create_topic(messages.CreateTopicRequest("big", 20))


async def test_a_topic_of_many_partitions_is_deleted_while_others_are_served(broker: Broker) -> None:
    count = 3 * DELETED_A_TURN
    await broker.create_topic(messages.CreateTopicRequest("many", count))
    turns = 0
    async with trio.open_nursery() as nursery:

        async def delete() -> None:
            await broker.delete_topic(messages.DeleteTopicRequest("many"))
            nursery.cancel_scope.cancel()

        nursery.start_soon(delete)
        while True:
            before = len(broker.directory.logs)
            await append(broker, b"v")
            await trio.lowlevel.checkpoint()
            turns += before != len(broker.directory.logs)
            assert before - len(broker.directory.logs) <= 2 * DELETED_A_TURN
    assert turns >= 2
    assert set(broker.directory.logs) == {("t", 0), ("t", 1)}


# --- alter_topic: configuration ---------------------------------------------------------------------------------------


async def test_a_value_is_set_or_reset_others_stay_and_the_reply_names_all_that_is_set(broker: Broker) -> None:
    """Also where nothing is to change. Warnings are of what changes: 4096 bytes were warned of when they were set."""
    assert (await alter(broker)).config == (await alter(broker, partitions=2)).config == OLD
    assert await alter(broker, config={"max.message.bytes": 3000}) == messages.AlterTopicReply(
        "t", 2, {"max.message.bytes": "3000", **OLD}
    )
    config = (await described(broker))["config"]
    assert config["max.message.bytes"] == {"value": "3000", "origin": "topic", "where": "max.message.bytes"}
    assert config["retention.ms"]["value"] == "1000"
    [warning] = (await alter(broker, config={"segment.bytes": 8192})).warnings
    assert "segment.bytes = 8192" in warning
    reply = await alter(broker, reset=["internal.segment.bytes", "max.message.bytes", "flush.ms"])  # by any name of it
    assert reply.config == {"retention.ms": "1000"}
    assert (await described(broker))["config"]["segment.bytes"]["origin"] == "default"
    assert broker.partitions["t", 1].log.config.segment_bytes == 1 << 30


async def test_the_next_batch_is_held_against_the_new_limit_in_every_partition(broker: Broker) -> None:
    assert [r.error for r in await append(broker, b"x" * 500)] == [None]
    await alter(broker, config={"max.message.bytes": 300})
    for partition in (0, 1):
        [refused] = await append(broker, b"x" * 500, partition=partition)
        assert isinstance(refused.error, errors.MessageTooLargeError)
        assert refused.error.limit == 300
    await alter(broker, reset=["max.message.bytes"])
    assert [r.error for r in await append(broker, b"x" * 500)] == [None]


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"config": {"segment.byte": 4096}}, errors.InvalidConfigError, "did you mean segment.bytes?"),
        ({"reset": ["segment.byte"]}, errors.InvalidConfigError, "did you mean segment.bytes?"),
        ({"config": {"log.segment.bytes": 4096}}, errors.InvalidConfigError, "segment.bytes"),
        ({"config": {"segment.bytes": -1}}, errors.InvalidConfigError, "segment.bytes"),
        ({"config": {"segment.bytes": 4096, "retention.ms": "soon"}}, errors.InvalidConfigError, "retention.ms"),
        ({"config": {"segment.bytes": 4096}, "reset": ["segment.bytes"]}, errors.InvalidConfigError, "both set and"),
        (
            {"config": {"segment.bytes": 4096}, "reset": ["internal.segment.bytes"]},
            errors.InvalidConfigError,
            "both set and",
        ),
        ({"config": {"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4}}, errors.InvalidConfigError, "at most"),
        ({"partitions": 1}, errors.InvalidPartitionsError, "cannot be removed"),
        ({"partitions": 10_001}, errors.InvalidPartitionsError, "10000"),
        ({"partitions": 3, "config": {"nonsense": 1}}, errors.InvalidConfigError, "nonsense"),
    ],
)
async def test_an_impossible_alteration_is_refused_as_a_whole_and_nothing_is_written(
    broker: Broker, fields: dict[str, Any], kind: type[errors.SeglogError], words: str
) -> None:
    before = await described(broker)
    fs_of(broker).operations.clear()
    with pytest.raises(kind) as raised:
        await alter(broker, **fields)
    assert words in raised.value.message
    assert fs_of(broker).operations == []
    assert (await described(broker)) == before


# --- alter_topic: partitions ------------------------------------------------------------------------------------------


# --- alter_topic: crashes and full disks ------------------------------------------------------------------------------

NEW = {"max.message.bytes": "5000", "segment.bytes": "4096"}


def assert_old_or_new(found: forgetful.ForgetfulFileSystem, finished: bool) -> bool:
    """Start after a crash; assert that the state is the whole old or the whole new one. Returns whether it is new."""
    directory = opened(found)
    report = directory.report
    assert report.offline == {}
    assert report.problems == []
    topic = directory.registry.topics["t"]
    state = (topic.partitions, topic.config)
    assert state == (4, NEW) or (state == (2, OLD) and not finished)
    assert set(directory.logs) == {("t", number) for number in range(topic.partitions)}
    expected = {f"t-{number}" for number in range(topic.partitions)}
    assert {name for name in found.list_directory("/data") if name.startswith("t-")} == expected
    assert not [name for name in found.list_directory("/data") if name.endswith(".tmp")]
    for log in directory.logs.values():
        verify(found, log)
    assert [record.value for record in read_all(directory.logs["t", 0])] == [b"acked at disk"]
    for log in directory.logs.values():
        assert log.config.max_message_bytes == (5000 if topic.partitions == 4 else 1_048_588)
        view = memoryview(bytearray(batch(b"after the crash")))
        append_one(log, view)
    assert directory.close() == []
    again = opened(found)
    assert again.report.clean
    assert again.registry.topics["t"] == topic
    again.close()
    return topic.partitions == 4


@pytest.mark.parametrize(
    "policy",
    [forgetful.PROCESS_KILL, forgetful.POWER_LOSS, forgetful.RANDOM(0)]
    + [pytest.param(forgetful.RANDOM(seed), marks=pytest.mark.soak) for seed in range(1, 5)],
    ids=["process kill", "power loss", *(f"random {seed}" for seed in range(5))],
)
async def test_a_crash_before_any_operation_leaves_the_old_state_or_the_new_one_whole(
    broker: Broker, policy: forgetful.CrashPolicy
) -> None:
    fs = fs_of(broker)
    await append(broker, b"acked at disk")
    states: list[bool] = []
    with crash_points(fs, lambda: states.append(assert_old_or_new(fs.found_after(policy), finished=False))):
        await alter(broker, partitions=4, config={"max.message.bytes": 5000}, reset=["retention.ms"])
    assert assert_old_or_new(fs.found_after(policy), finished=True)
    assert len(states) > 15
    assert set(states) == {False, True}
    if policy in (forgetful.PROCESS_KILL, forgetful.POWER_LOSS):
        assert states == sorted(states), "once there, it stays"


FAULTS = [
    ("open", "seglog-topics.json.tmp"),
    ("pwritev", "seglog-topics.json.tmp"),
    ("fdatasync", "seglog-topics.json.tmp"),
    ("rename", "seglog-topics.json.tmp"),
    ("make_directory", "t-2"),
    ("make_directory", "t-3"),
    ("open", "t-3/00000000000000000000.timeindex"),
    ("pwritev", "t-2/partition.metadata.tmp"),
    ("rename", "t-3/partition.metadata.tmp"),
]


@pytest.mark.parametrize(("operation", "path"), FAULTS, ids=[" ".join(fault) for fault in FAULTS])
async def test_a_full_disk_at_any_step_leaves_everything_as_it_was(broker: Broker, operation: str, path: str) -> None:
    fs = fs_of(broker)
    await append(broker, b"acked at disk")
    before = await described(broker)
    fs.inject(forgetful.Fault(operation, path, error=errno.ENOSPC))
    with pytest.raises(errors.StorageError, match="topic t could not be altered"):
        await alter(broker, partitions=4, config={"max.message.bytes": 5000}, reset=["retention.ms"])
    fs.heal()
    assert (await described(broker)) == before
    assert set(broker.partitions) == {("t", 0), ("t", 1)}
    assert [r.error for r in await append(broker, b"x" * 2000, partition=1)] == [None], "the old limits hold"
    for policy in (forgetful.PROCESS_KILL, forgetful.POWER_LOSS):
        found = opened(fs.found_after(policy))
        report = found.report
        assert (report.offline, report.problems) == ({}, [])
        assert (found.registry.topics["t"].partitions, found.registry.topics["t"].config) == (2, OLD)
        assert set(found.logs) == {("t", 0), ("t", 1)}
        found.close()
    reply = await alter(broker, partitions=4, config={"max.message.bytes": 5000}, reset=["retention.ms"])
    assert (reply.partitions, reply.config) == (4, NEW), "and with room it works"
    assert [r.error for r in await append(broker, b"v", partition=3)] == [None]


# --- truncate ---------------------------------------------------------------------------------------------------------


async def truncate(broker: Broker, offset: int | None, partition: int = 0, topic: str = "t") -> messages.TruncateResult:
    request = messages.TruncateRequest([messages.TruncatePartition(topic, partition, offset)])
    [result] = (await broker.truncate(request)).partitions
    return result


async def ten_records(broker: Broker) -> None:
    await append(broker, *(b"%d" % number for number in range(10)))


async def test_records_below_an_offset_go_and_a_fetch_of_one_says_why_also_after_a_power_cut(broker: Broker) -> None:
    await ten_records(broker)
    assert await truncate(broker, 4) == messages.TruncateResult("t", 0, earliest=4)
    found = open_broker(fs_of(broker).found_after(forgetful.POWER_LOSS))
    for each in (broker, found):
        assert stored(each) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        error = (await fetch(each, 3)).error
        assert isinstance(error, errors.OffsetOutOfRangeError)
        assert (error.requested, error.earliest, error.latest, error.reason) == (3, 4, 10, "truncated")
        assert (await fetch(each, 4)).error is None
        [ends] = (await each.offsets(messages.OffsetsRequest([messages.OffsetsPartition("t", 0)]))).partitions
        assert (ends.earliest, ends.latest) == (4, 10)
    found.close()


async def test_a_truncation_moves_the_log_start_forward_only_and_without_an_offset_to_the_end(broker: Broker) -> None:
    await ten_records(broker)
    with capture_logs() as logged:
        for offset, start in ((0, 0), (4, 4), (4, 4), (3, 4), (10, 10), (None, 10)):
            assert await truncate(broker, offset) == messages.TruncateResult("t", 0, earliest=start)
            assert len(stored(broker)) == 10 - start
        [result] = await append(broker, b"next")
        assert (await truncate(broker, None)).earliest == 11
    assert [entry["offset"] for entry in logged if entry["event"] == "log_start_moved"] == [4, 10, 11]
    assert (result.base_offset, (await fetch(broker, 11)).error) == (10, None)


async def test_an_offset_beyond_the_end_is_refused_with_the_range(broker: Broker) -> None:
    await ten_records(broker)
    error = (await truncate(broker, 11)).error
    assert isinstance(error, errors.OffsetOutOfRangeError)
    assert (error.requested, error.earliest, error.latest, error.reason) == (11, 0, 10, "beyond_end")
    assert (error.facts["topic"], error.facts["partition"]) == ("t", 0)
    assert len(stored(broker)) == 10


async def test_a_compacted_topic_refuses_unless_its_policy_has_delete_as_well(broker: Broker) -> None:
    await alter(broker, config={"cleanup.policy": "compact"})
    await append(broker, b"v", key=b"k")
    error = (await truncate(broker, 1)).error
    assert isinstance(error, errors.PolicyViolationError)
    assert "delete records by their keys" in error.message
    await alter(broker, config={"cleanup.policy": "compact,delete"})
    assert (await truncate(broker, 1)).earliest == 1


async def test_each_partition_has_its_own_result(broker: Broker) -> None:
    await ten_records(broker)
    asked = [("t", 0, 4), ("t", 1, 4), ("t", 2, 0), ("nope", 0, 0), ("t", 0, 6)]
    results = (
        await broker.truncate(messages.TruncateRequest([messages.TruncatePartition(*item) for item in asked]))
    ).partitions
    assert [(result.topic, result.partition) for result in results] == [(topic, number) for topic, number, _ in asked]
    assert [result.earliest for result in results] == [4, None, None, None, 6]
    assert [type(result.error) for result in results[1:4]] == [
        errors.OffsetOutOfRangeError,
        errors.UnknownPartitionError,
        errors.UnknownTopicError,
    ]


async def test_a_crash_during_a_truncation(broker: Broker) -> None:
    """A crash before any operation of a truncation leaves the old start or the new one."""
    await ten_records(broker)
    fs = fs_of(broker)
    starts = []

    def check() -> None:
        for policy in (forgetful.PROCESS_KILL, forgetful.POWER_LOSS):
            found = opened(fs.found_after(policy))
            report = found.report
            assert (report.offline, report.problems) == ({}, [])
            log = found.logs["t", 0]
            assert (log.log_start_offset, log.log_end_offset) in [(0, 10), (4, 10)]
            starts.append(log.log_start_offset)
            found.close()

    with crash_points(fs, check):
        await truncate(broker, 4)
    assert {0, 4} == set(starts)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_log_start_that_cannot_be_written_is_an_error_and_can_be_retried(broker: Broker, error: int) -> None:
    await ten_records(broker)
    fs = fs_of(broker)
    fs.inject(forgetful.Fault("pwritev", "log-start-offset-checkpoint.tmp", error=error, sticky=True))
    with pytest.raises(errors.StorageError, match="ask again"):
        await truncate(broker, 4)
    fs.heal()
    assert (await truncate(broker, 4)).earliest == 4
    found = open_broker(fs.found_after(forgetful.POWER_LOSS))
    assert found.partitions["t", 0].log.log_start_offset == 4
    found.close()


async def test_trouble_with_the_files_of_one_partition_is_that_partitions_error(broker: Broker) -> None:
    for partition in (0, 1):
        await append(broker, b"a", b"b", partition=partition)
    fs = fs_of(broker)
    fs.inject(forgetful.Fault("pwritev", "t-0/leader-epoch-checkpoint.tmp", error=errno.EIO))
    request = messages.TruncateRequest([messages.TruncatePartition("t", 0, 1), messages.TruncatePartition("t", 1, 1)])
    first, second = (await broker.truncate(request)).partitions
    assert isinstance(first.error, errors.StorageError)
    assert first.error.facts["partition"] == 0
    assert second == messages.TruncateResult("t", 1, earliest=1)


async def test_damage_below_the_log_start_is_no_longer_reported(broker: Broker) -> None:
    await ten_records(broker)
    broker.partitions["t", 0].log._log.damage.replace(
        [
            DamagedRange(1, 3, 0, 100, 300),
            DamagedRange(3, 5, 0, 300, 500),
        ]
    )
    assert len(broker.hello().problems) == 2
    await truncate(broker, 3)
    assert [problem for problem in broker.hello().problems if "damaged" in problem] == [
        "t-0: offsets 3 to 4 are damaged"
    ]


# --- explain ----------------------------------------------------------------------------------------------------------


def explain(
    broker: Broker, offset: int | None = None, timestamp: int | None = None, number: int = 0
) -> messages.ExplainReply:
    return broker.explain(messages.ExplainRequest("t", number, offset, timestamp))


async def test_an_explanation_has_paths_relative_to_the_log_directory(broker: Broker) -> None:
    await alter(broker, config={"segment.bytes": 1024})
    for number in range(40):
        await append(broker, b"value", timestamp=1000 + number)
    second = broker.partitions["t", 0].log.segments[1]
    found = explain(broker, second.base_offset)
    name = f"t-0/{second.base_offset:020}"
    assert (found.segment, found.base_offset, found.position) == (second.base_offset, second.base_offset, 0)
    assert found.files == [f"{name}.log"]
    assert [(lookup.index, lookup.file) for lookup in found.lookups] == [("offset", f"{name}.index")]
    assert found.segments == len(broker.partitions["t", 0].log.segments)
    moment = explain(broker, timestamp=1007)
    assert (moment.record_offset, moment.record_timestamp) == (7, 1007)
    assert "/data" not in repr(found) + repr(moment)


async def test_an_explanation_is_refused_for_the_reasons_a_fetch_is(broker: Broker) -> None:
    await append(broker, b"v")
    with pytest.raises(errors.OffsetOutOfRangeError) as raised:
        explain(broker, 2)
    assert (raised.value.facts["topic"], raised.value.latest) == ("t", 1)
    with pytest.raises(errors.UnknownPartitionError):
        explain(broker, 0, number=7)
    with pytest.raises(errors.UnknownTopicError):
        broker.explain(messages.ExplainRequest("nope", 0, 0))
    for both_or_none in ({}, {"offset": 0, "timestamp": 0}):
        with pytest.raises(errors.InvalidRequestError, match="either to an offset or to a timestamp"):
            explain(broker, **both_or_none)
