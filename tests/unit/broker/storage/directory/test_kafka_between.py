"""A log directory after Kafka had it: told by what Kafka leaves, and taken over with everything in it.

What Kafka does is done here by hand, as a real one was seen to; that one is asked in tests/interop.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from seglog_broker.inspect.findings import Code, Severity
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.io.small_files import read_offsets
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState, StoppedAt
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, CrashPolicy, ForgetfulFileSystem, Operation
from seglog_protocol.checkpoint_files import encode_checkpoint, encode_offsets
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.kafka import messages, write_message
from seglog_protocol.record_batch import rewrite_offset_and_epoch
from tests.logs import append_one, batch, batch_of_size, flip_bit, read_all
from tests.soundness import assert_directory_sound
from tests.support import each_case
from tests.unit.broker.inspect.check.support import check, codes, faults, findings
from tests.unit.broker.storage.directory.directories import kafka_partition, opened, put
from tests.unit.broker.storage.steps import create_topic

_DATA = "/data"
_MARKER = f"{_DATA}/.kafka_cleanshutdown"
_METADATA_LOG = f"{_DATA}/__cluster_metadata-0/00000000000000000000.log"
_NEW_ID = "AAAAAAAAAAAAAAAAAAAAZQ"
_OTHER_ID = "AAAAAAAAAAAAAAAAAAAAZg"

Fs = ForgetfulFileSystem


def _opened(fs: Fs, *flags: str) -> LogDirectory:
    try:
        return opened(fs, *flags)
    except LogDirectoryError:
        assert fs.open_files == []
        raise


def _written() -> Fs:
    """A topic of two partitions; partition 0 has segments with base 0, 10, 20, all but the last with a checksum."""
    fs = ForgetfulFileSystem()
    directory = _opened(fs)
    create_topic(directory, "orders", 2, {"segment.bytes": "1024", "retention.ms": "1000"})
    log = directory.logs["orders", 0]
    for number in range(23):
        append_one(log, batch_of_size(100, timestamp=1_700_000_000_000 + number))
    assert directory.close() == []
    return fs


def _add_partition(fs: Fs, name: str, topic_id: str) -> None:
    fs.load({f"{_DATA}/{name}/{file}": content for file, content in kafka_partition(topic_id).items()})


def _kafka_ran(fs: Fs, *, clean: bool = True) -> None:
    """Its metadata log has grown, and at a stop its marker is there."""
    found = read_file(fs, _METADATA_LOG) if fs.exists(_METADATA_LOG) else b""
    put(fs, _METADATA_LOG, found + b"a start of Kafka")
    if clean:
        put(fs, _MARKER, b'{"version":0,"brokerEpoch":47}')
    else:
        fs.unlink(_MARKER)
        fs.sync_directory(_DATA)


def _strays(fs: Fs) -> list[str]:
    return [name for name in fs.list_directory(_DATA) if name.endswith("-stray")]


# --- What Kafka made and deleted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_topics_and_partitions_that_kafka_made_are_taken_over_and_named(clean: bool) -> None:
    fs = _written()
    _add_partition(fs, "orders-2", read_file(fs, f"{_DATA}/orders-0/partition.metadata").decode()[-22:])
    _add_partition(fs, "clicks-0", _NEW_ID)
    _add_partition(fs, "clicks-1", _NEW_ID)
    _add_partition(fs, "__consumer_offsets-0", _OTHER_ID)
    _add_partition(fs, "__share_group_state-0", "c2hhcmVzaGFyZXNoYXJlcw")
    _kafka_ran(fs, clean=clean)
    directory = _opened(fs)
    topics = directory.registry.topics
    assert {name: topic.partitions for name, topic in topics.items()} == {
        "orders": 3,
        "clicks": 2,
        "__consumer_offsets": 1,
        "__share_group_state": 1,
    }
    assert topics["__share_group_state"].config == topics["clicks"].config, "its records are deltas: all are kept"
    assert topics["clicks"].id == _NEW_ID
    assert topics["clicks"].config["retention.ms"] == "-1"
    assert topics["orders"].config == {"segment.bytes": "1024", "retention.ms": "1000"}
    assert "Apache Kafka" in topics["orders"].notes[0]
    assert directory.report.kafka_changes == [
        "topic __consumer_offsets was created, with 1 partition",
        "topic __share_group_state was created, with 1 partition",
        "topic clicks was created, with 2 partitions",
        "topic orders has 3 partitions, it had 2",
    ]
    assert (directory.report.problems, directory.report.offline, _strays(fs)) == ([], {}, [])
    assert [len(read_all(directory.logs[key])) for key in (("clicks", 1), ("orders", 2), ("orders", 0))] == [1, 1, 23]
    assert directory.close() == []
    again = _opened(fs)
    assert (again.report.kafka_signs, again.report.kafka_changes) == ([], [])
    assert again.registry.topics == topics
    again.close()
    assert_directory_sound(fs, _DATA)


def test_a_topic_that_kafka_deleted_is_gone_and_does_not_come_back_empty() -> None:
    fs = _written()
    for partition in (0, 1):
        fs.remove_tree(f"{_DATA}/orders-{partition}")
    put(fs, f"{_DATA}/recovery-point-offset-checkpoint", encode_offsets({}))
    put(fs, f"{_DATA}/replication-offset-checkpoint", encode_offsets({}))
    _kafka_ran(fs)
    assert_directory_sound(fs, _DATA)
    directory = _opened(fs)
    assert directory.registry.topics == {}
    assert directory.report.kafka_changes == ["topic orders was deleted: none of its 2 partitions is there"]
    assert not fs.exists(f"{_DATA}/orders-0")


def test_a_topic_that_kafka_made_again_is_another_one() -> None:
    fs = _written()
    for partition in (0, 1):
        fs.remove_tree(f"{_DATA}/orders-{partition}")
    _add_partition(fs, "orders-0", _NEW_ID)
    put(fs, f"{_DATA}/recovery-point-offset-checkpoint", encode_offsets({("orders", 0): 1}))
    _kafka_ran(fs)
    directory = _opened(fs)
    topic = directory.registry.topics["orders"]
    assert (topic.id, topic.partitions, topic.config["retention.ms"]) == (_NEW_ID, 1, "-1")
    assert directory.report.kafka_changes == ["topic orders was deleted and created again, with 1 partition"]
    assert len(read_all(directory.logs["orders", 0])) == 1


def test_a_topic_that_kafka_did_not_know_and_set_aside_is_back() -> None:
    fs = _written()
    for partition in (0, 1):
        fs.rename(f"{_DATA}/orders-{partition}", f"{_DATA}/orders-{partition}.{'0' * 32}-stray")
    fs.sync_directory(_DATA)
    _add_partition(fs, f"orders-0.{'1' * 32}-stray", _NEW_ID)
    _kafka_ran(fs)
    assert_directory_sound(fs, _DATA)
    directory = _opened(fs)
    assert directory.report.kafka_changes == [
        "orders-0 is back: Kafka had set it aside",
        "orders-1 is back: Kafka had set it aside",
    ]
    assert len(read_all(directory.logs["orders", 0])) == 23
    assert _strays(fs) == [f"orders-0.{'1' * 32}-stray"], "another topic of that name"


# --- Whether it was there ---------------------------------------------------------------------------------------------


def _marker(fs: Fs) -> None:
    put(fs, _MARKER, b'{"version":0,"brokerEpoch":0}')


def _metadata_log(fs: Fs) -> None:
    put(fs, _METADATA_LOG, b"grown")


def _checkpoint(fs: Fs) -> None:
    path = f"{_DATA}/replication-offset-checkpoint"
    put(fs, path, encode_offsets(read_offsets(fs, path) | {("clicks", 0): 1}))


@pytest.mark.parametrize("sign", [_marker, _metadata_log, _checkpoint])
def test_each_sign_of_kafka_is_enough(sign: Callable[[Fs], None]) -> None:
    fs = _written()
    before = _opened(fs)
    before.registry.metadata_version = 33
    before.registry.save()
    assert before.close() == []
    _add_partition(fs, "clicks-0", _NEW_ID)
    sign(fs)
    directory = _opened(fs)
    assert directory.registry.metadata_version == 33, "Kafka has named no other"
    assert len(directory.report.kafka_signs) == 1
    assert ("clicks", 0) in directory.logs


def test_without_a_sign_of_kafka_what_is_unknown_is_set_aside() -> None:
    fs = _written()
    _add_partition(fs, "clicks-0", _NEW_ID)
    directory = _opened(fs)
    assert directory.report.kafka_signs == []
    assert len(_strays(fs)) == 1


@pytest.mark.parametrize("policy", [PROCESS_KILL, POWER_LOSS], ids=["process kill", "power loss"])
def test_a_crash_amid_taking_over_loses_nothing_that_kafka_made(policy: CrashPolicy) -> None:
    fs = _written()
    _add_partition(fs, "clicks-0", _NEW_ID)
    put(fs, f"{_DATA}/cleaner-offset-checkpoint", encode_offsets({("orders", 0): 10}))
    _marker(fs)
    points = 0

    def crash_here(operation: Operation) -> None:
        nonlocal points
        points += 1
        found = fs.found_after(policy)
        directory = _opened(found)
        assert set(directory.logs) == {("orders", 0), ("orders", 1), ("clicks", 0)}, operation
        assert directory.close() == []
        assert_directory_sound(found, _DATA)

    fs.on_operation = crash_here
    _opened(fs)
    assert points > 10


# --- Our checksums, which Kafka does not know -------------------------------------------------------------------------


def _checksums(fs: Fs) -> list[int]:
    return [int(name[:20]) for name in fs.list_directory(f"{_DATA}/orders-0") if name.endswith(".checksum")]


def test_a_checksum_that_is_older_than_what_kafka_compacted_is_no_damage_and_goes() -> None:
    """Its cleaner puts another segment of the same base there, with one batch less."""
    fs = _written()
    stem = f"{_DATA}/orders-0/00000000000000000000"
    content = read_file(fs, f"{stem}.log")
    put(fs, f"{stem}.log", content[:200] + content[300:])
    for suffix in ("index", "timeindex"):
        fs.unlink(f"{stem}.{suffix}")
    put(fs, f"{_DATA}/cleaner-offset-checkpoint", encode_offsets({("orders", 0): 10}))
    _kafka_ran(fs)
    assert [(f.code, f.severity) for f in faults(check(fs)) if f.code != Code.INDEX_MISSING] == []
    assert Code.CHECKSUM_OUTDATED in {finding.code for finding in findings(check(fs))}
    directory = _opened(fs)
    assert _checksums(fs) == [10]
    assert directory.report.kafka_changes == ["orders-0: 1 checksum files were older than their segments"]
    assert len(read_all(directory.logs["orders", 0])) == 22
    directory.close()
    assert_directory_sound(fs, _DATA)


def test_a_bit_that_turned_while_kafka_was_there_is_damage_all_the_same() -> None:
    fs = _written()
    _kafka_ran(fs)
    flip_bit(fs, f"{_DATA}/orders-0/00000000000000000000.log", 12 + 3)  # a leader epoch, which no batch covers
    assert Code.CHECKSUM_MISMATCH in {code for _, code in codes(check(fs))}
    _opened(fs)
    assert _checksums(fs) == [0, 10]


def _kafka_cut(
    fs: Fs, epochs: list[tuple[int, int]], *, log_start: int = 0, point: int = 22, clean: bool = True
) -> None:
    """Kafka cut partition 0 at offset 21, in the middle of what our last segment held, and wrote one record there."""
    path = f"{_DATA}/orders-0"
    value = bytearray(batch_of_size(100, timestamp=1_700_000_000_500))
    rewrite_offset_and_epoch(value, 0, 21, epochs[-1][0])
    put(fs, f"{path}/{20:020d}.log", read_file(fs, f"{path}/{20:020d}.log")[:100] + bytes(value))
    for suffix in (".index", ".timeindex"):
        put(fs, f"{path}/{20:020d}{suffix}", b"")
    fs.unlink(f"{path}/{23:020d}.snapshot")
    fs.sync_directory(path)
    put(fs, f"{path}/leader-epoch-checkpoint", encode_checkpoint(epochs))
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        put(fs, f"{_DATA}/{name}", encode_offsets({("orders", 0): point, ("orders", 1): 0}))
    starts = {("orders", 0): log_start} if log_start else {}
    put(fs, f"{_DATA}/log-start-offset-checkpoint", encode_offsets(starts))
    _kafka_ran(fs, clean=clean)


def _change_state(fs: Fs, **changes: Any) -> None:
    path = f"{_DATA}/orders-0/{PARTITION_STATE_FILE}"
    put(fs, path, replace(PartitionState.load(fs, f"{_DATA}/orders-0"), **changes).encode())


@each_case(
    ("changes", "epochs", "log_start", "epoch"),
    [
        ({}, [(0, 0), (3, 21)], 0, 3),
        # Kafka's epochs may be lower than ours, and none of ours is used twice.
        ({"epochs": [(0, 0), (5, 20)]}, [(0, 0), (1, 21)], 0, 5),
        # Records that Kafka wrote below where ours had been deleted are read.
        ({"deleted_before": 22, "log_start_reason": "truncated", "stopped": StoppedAt(22, 23)}, [(3, 21)], 21, 3),
        # Damage in bytes that Kafka cut off is forgotten.
        ({"damaged": [DamagedRange(21, 22, 20, 100, 200)]}, [(0, 0), (3, 21)], 0, 3),
    ],
)
def test_of_a_log_that_kafka_cut_nothing_is_called_damage_and_every_record_of_kafkas_can_be_read(
    changes: dict[str, Any], epochs: list[tuple[int, int]], log_start: int, epoch: int
) -> None:
    fs = _written()
    _change_state(fs, **changes)
    _kafka_cut(fs, epochs, log_start=log_start)
    assert [finding for finding in findings(check(fs)) if finding.severity == Severity.DAMAGE] == []
    directory = _opened(fs)
    log = directory.logs["orders", 0]
    assert (log.log_start_offset, log.log_end_offset, log.leader_epoch) == (log_start, 22, epoch)
    assert [record.offset for record in read_all(log)] == list(range(log_start, 22))
    assert log.state.damaged == []
    assert "orders-0: Kafka cut off offsets 21 to 22, and used them for other records" in directory.report.problems
    assert not any("leader-epoch-checkpoint is ignored" in problem for problem in directory.report.problems)
    assert directory.close() == []
    assert_directory_sound(fs, _DATA)


def test_a_killed_kafka_leaves_no_damage() -> None:
    """A Kafka that was killed before its checkpoints followed leaves no damage either."""
    fs = _written()
    _kafka_cut(fs, [(0, 0), (3, 21)], point=23, clean=False)
    directory = _opened(fs)
    log = directory.logs["orders", 0]
    assert (log.log_end_offset, log.state.damaged) == (22, [])
    assert [record.offset for record in read_all(log)] == list(range(22))


def test_a_log_that_kafka_only_went_on_with_keeps_what_is_known_of_it() -> None:
    fs = _written()
    known = DamagedRange(5, 6, 0, 500, 600)
    _change_state(fs, damaged=[known], deleted_before=3, log_start_reason="truncated")
    put(fs, f"{_DATA}/log-start-offset-checkpoint", encode_offsets({("orders", 0): 3}))
    _kafka_ran(fs)
    directory = _opened(fs)
    log = directory.logs["orders", 0]
    assert (log.log_start_offset, log.log_end_offset, log.state.damaged) == (3, 23, [known])
    assert log.state.held_end == 23


# --- Adopting a part --------------------------------------------------------------------------------------------------


def _part_of_kafkas(*partitions: str, named: dict[tuple[str, int], int] | None = None) -> Fs:
    fs = ForgetfulFileSystem()
    fs.load({f"{_DATA}/meta.properties": b"version=1\nnode.id=1\ncluster.id=k\n", _MARKER: b""})
    for name in partitions:
        _add_partition(fs, name, _NEW_ID)
    if named is not None:
        fs.load({f"{_DATA}/recovery-point-offset-checkpoint": encode_offsets(named)})
    return fs


def _with_metadata_log(fs: Fs, *values: bytes) -> Fs:
    fs.load({_METADATA_LOG: batch(*values)})
    return fs


_TOPIC_RECORD = bytes([1, 2, 0, len("clicks") + 1]) + b"clicks" + b"i" * 16 + b"\0"
_REMOVED = bytes([1, 9, 0]) + b"i" * 16 + b"\0"


def _partition_record(number: int) -> bytes:
    return bytes([1, 3, 1]) + write_message(messages.PartitionRecord(partition_id=number, topic_id=b"i" * 16), 1)


@each_case(
    ("fs", "missing"),
    [
        (
            _with_metadata_log(_part_of_kafkas("clicks-0"), _TOPIC_RECORD, *map(_partition_record, range(2))),
            "clicks-1;",
        ),
        (_part_of_kafkas("clicks-0", "clicks-3"), "clicks-1, clicks-2;"),
        (_part_of_kafkas("clicks-0", named={("clicks", 0): 1, ("clicks", 1): 7}), "clicks-1;"),
        (_part_of_kafkas("clicks-0", named={("orders", 0): 1}), "orders-0;"),
        (_part_of_kafkas("clicks-0", "clicks-30"), "clicks-9, clicks-10 and 19 more;"),
    ],
)
def test_a_part_of_a_kafka_directory_is_refused(fs: Fs, missing: str) -> None:
    """A directory that is a part of Kafka's is refused with names and left as it was."""
    before = fs.snapshot()
    with pytest.raises(LogDirectoryError, match=missing) as refused:
        _opened(fs)
    assert "--set seglog.missing.partitions=empty" in refused.value.message
    assert fs.snapshot() == before


def test_with_the_key_set_to_empty_the_existing_partitions_are_adopted() -> None:
    fs = _part_of_kafkas("clicks-0", "clicks-2", named={("clicks", 0): 1, ("clicks", 2): 1, ("clicks", 4): 7})
    directory = _opened(fs, "seglog.missing.partitions=empty")
    topic = directory.registry.topics["clicks"]
    assert topic.partitions == 5
    assert [note.split(" was ")[0] for note in topic.notes[1:]] == ["partition 1", "partition 3", "partition 4"]
    assert [len(read_all(directory.logs["clicks", number])) for number in range(5)] == [1, 0, 1, 0, 0]
    assert directory.logs["clicks", 4].log_start_offset == 7, "no offset is given twice"
    assert directory.close() == []
    assert_directory_sound(fs, _DATA)
    again = _opened(fs)
    assert again.report.offline == {}
    assert again.logs["clicks", 4].log_end_offset == 7


def test_a_topic_that_kafkas_metadata_log_removes_is_not_missed() -> None:
    fs = _with_metadata_log(_part_of_kafkas("orders-0"), _TOPIC_RECORD, _partition_record(0), _REMOVED, b"\1\x2a", b"")
    assert set(_opened(fs).logs) == {("orders", 0)}


def test_what_kafka_was_about_to_delete_is_not_missed() -> None:
    fs = _part_of_kafkas("clicks-0", named={("clicks", 0): 1, ("clicks", 1): 1})
    fs.load({f"{_DATA}/clicks-1.{'0' * 32}-delete/00000000000000000000.log": b""})
    assert set(_opened(fs).logs) == {("clicks", 0)}


def test_a_partition_of_ours_whose_directory_is_gone_is_offline_until_it_is_back() -> None:
    fs = _written()
    kept = {path: content for path, content in fs.snapshot().items() if "/orders-0/" in path}
    fs.remove_tree(f"{_DATA}/orders-0")
    directory = _opened(fs)
    assert set(directory.logs) == {("orders", 1)}
    assert directory.report.offline["orders", 0] == (
        "/data/orders-0 is gone, and had records up to offset 22: put it back, or have it begin without records with "
        "--set seglog.missing.partitions=empty"
    )
    directory.close()
    fs.load(kept)
    again = _opened(fs)
    assert len(read_all(again.logs["orders", 0])) == 23
    again.close()
    fs.remove_tree(f"{_DATA}/orders-0")
    empty = _opened(fs, "seglog.missing.partitions=empty")
    assert (empty.logs["orders", 0].log_start_offset, empty.logs["orders", 0].log_end_offset) == (23, 23)
    assert "begins without records" in empty.report.problems[0]
