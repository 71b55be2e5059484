"""Snapshots of a log directory in use: what is in them, and that they open as after a clean stop."""

import pytest

from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.snapshot import (
    NoSnapshotError,
    SnapshotOffsets,
    SnapshotWriter,
    decode_answer,
    encode_answer,
)
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.logs import append_one, batch
from tests.snapshots import copied
from tests.soundness import assert_directory_sound
from tests.unit.broker.storage.directory.directories import opened
from tests.unit.broker.storage.log.transactions import append_in_transaction, end_transaction
from tests.unit.broker.storage.steps import create_topic

ROLLS = {"segment.bytes": "1024", "index.interval.bytes": "150"}


def fill(directory: LogDirectory, first: int, count: int) -> None:
    for number in range(first, first + count):
        append_one(directory.logs["t", 0], batch(f"value {number}".encode() * 5, timestamp=1000))


def snapshot(fs: ForgetfulFileSystem, directory: LogDirectory) -> SnapshotWriter:
    writer, offsets = SnapshotWriter(fs, directory.path), SnapshotOffsets()
    writer.begin()
    for key, log in directory.logs.items():
        frozen = log.freeze()
        offsets.add(key, frozen, first_dirty=None)
        writer.add_log(frozen)
    writer.finish(directory.registry.topics, directory.registry, offsets, [])
    return writer


@pytest.mark.parametrize("records", [0, 1, 30])
def test_a_copy_of_a_snapshot_opens_as_after_a_clean_stop_with_what_there_was(records: int) -> None:
    fs = ForgetfulFileSystem()
    directory = opened(fs)
    create_topic(directory, "t", 1, ROLLS)
    fill(directory, 0, records)
    directory.registry.metadata_version = 33  # of the Kafka that had it before
    writer = snapshot(fs, directory)
    fill(directory, records, 30)  # what comes later is not in it, though the files are the same
    copy = opened(copied(fs, writer.path))
    assert copy.report.clean
    assert not copy.report.problems
    assert copy.report.opened["t", 0].recovery is None
    assert copy.report.opened["t", 0].rebuilt_indexes == 0
    assert copy.registry.metadata_version == 33
    log = copy.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (0, records)
    assert log.leader_epoch == directory.logs["t", 0].leader_epoch
    if records:
        assert log.seek(records - 1) is not None
    fill(copy, records, 3)
    assert copy.close() == []


@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_copy_has_the_transactions_that_had_ended_and_those_that_were_open(is_rolled: bool) -> None:
    """Whatever becomes of them afterwards; the coordinator may end the open one in the copy, too."""
    fs = ForgetfulFileSystem()
    directory = opened(fs)
    create_topic(directory, "t", 1, ROLLS | {"segment.ms": "9000000000000"})
    log = directory.logs["t", 0]
    append_in_transaction(log, 1)
    end_transaction(log, 1, "ABORT")
    append_in_transaction(log, 2)
    fill(directory, 0, 30 if is_rolled else 1)
    stable, end = log.last_stable_offset, log.log_end_offset
    assert (len(log.segments) > 1) is is_rolled
    writer = snapshot(fs, directory)
    end_transaction(log, 2, "ABORT")
    append_in_transaction(log, 3)
    end_transaction(log, 3, "ABORT")
    copied_disk = copied(fs, writer.path)
    copy = opened(copied_disk)
    assert copy.report.clean
    copied_log = copy.logs["t", 0]
    assert (copied_log.last_stable_offset, copied_log.log_end_offset) == (stable, end)
    assert [entry.producer_id for entry in copied_log.transactions.find(0, 0, 1_000)] == [1]
    end_transaction(copied_log, 2, "COMMIT")
    assert copied_log.last_stable_offset == end + 1
    for closed, disk in ((copy, copied_disk), (directory, fs)):
        assert closed.close() == []
        if closed is directory:
            writer.remove()
        assert_directory_sound(disk, "/data")


def test_a_start_after_a_kill_takes_a_snapshot_for_a_deleted_partition_and_removes_it() -> None:
    fs = ForgetfulFileSystem()
    directory = opened(fs)
    create_topic(directory, "t", 1, ROLLS)
    fill(directory, 0, 30)
    writer = snapshot(fs, directory)
    directory.abandon()
    again = opened(fs)
    assert again.report.deleted_directories == [writer.path]
    assert list(again.logs) == [("t", 0)]


def test_answers_over_the_socket_are_read_back_and_others_refused() -> None:
    name = SnapshotWriter(ForgetfulFileSystem(), "/data").name
    assert decode_answer(encode_answer(snapshot=name)) == name
    for line in (encode_answer(error="no"), b"", b"{}", b"[1]", b'{"snapshot": "../etc"}', b'{"snapshot": "a-0"}'):
        with pytest.raises(NoSnapshotError):
            decode_answer(line)
