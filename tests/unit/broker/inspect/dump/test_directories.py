"""Overviews of directories that seglog wrote, and of paths with nothing to show."""

from pathlib import Path

import pytest

from seglog_broker.inspect.dump.kinds import DumpOptions, NothingToDumpError, facts_of
from seglog_broker.inspect.facts import (
    Fact,
    LogDirectoryFound,
    PartitionFound,
    SegmentFound,
    TopicFound,
)
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from tests.logs import DIRECTORY, add_bytes, append_one, batch_of_size, cut_file, opened_directory
from tests.support import each_case
from tests.unit.broker.inspect.dump.support import LOG, create, damage, facts, notes, only, overwrite, small_log
from tests.unit.broker.storage.steps import create_topic


def log_directory(fs: FileSystem, path: str = "/data") -> LogDirectory:
    """An open log directory with a topic of two partitions, ten batches in the first."""
    logs = opened_directory(fs, path, "log.index.interval.bytes=150")
    create_topic(logs, "commits", 2, {"retention.ms": "-1"})
    for number in range(10):
        append_one(logs.logs["commits", 0], batch_of_size(100, timestamp=1_700_000_000_000 + 1000 * number))
    return logs


def test_without_counting_no_log_is_read() -> None:
    disk = small_log()
    overwrite(disk.fs, LOG, 0, b"\xab" * 1000)
    (row,) = only(facts(disk.fs, DIRECTORY, count=False), SegmentFound)
    assert (row.size, row.records, row.batches, row.next_offset, row.offset_index_entries) == (
        1000,
        None,
        None,
        None,
        4,
    )


def test_a_dump_changes_nothing_and_leaves_no_file_open() -> None:
    fs = ForgetfulFileSystem()
    log_directory(fs).close()
    before, opened = fs.snapshot(), fs.open_files
    facts(fs, "/data", verify=True, records=True)
    assert fs.snapshot() == before
    assert fs.open_files == opened == []


def test_a_directory_in_use_is_shown_and_its_lock_stays(tmp_path: Path) -> None:
    """Locked by this process, where opening and closing the lock file would release the lock."""
    fs = PosixFileSystem()
    logs = log_directory(fs, str(tmp_path / "data"))
    found = facts(fs, str(tmp_path / "data"), verify=True)
    assert damage(found) == []
    assert not only(found, LogDirectoryFound)[0].clean
    with pytest.raises(BlockingIOError):
        fs.lock(str(tmp_path / "data" / ".lock"))
    assert only(found, SegmentFound)[0].records == 10
    assert logs.close() == []


def test_a_directory_that_kafka_wrote_is_shown_as_a_start_would_adopt_it() -> None:
    fs = ForgetfulFileSystem()
    log_directory(fs).close()
    fs.unlink("/data/seglog-topics.json")
    fs.unlink("/data/seglog-format")
    found = facts(fs, "/data")
    (topic,) = only(found, TopicFound)
    assert (topic.name, topic.partitions, topic.config) == ("commits", 2, {})
    assert topic.id == only(found, PartitionFound)[0].topic_id
    assert only(found, LogDirectoryFound)[0].format is None


def test_inconsistent_files_are_noted() -> None:
    fs = ForgetfulFileSystem()
    log_directory(fs).close()
    fs.remove_tree("/data/commits-1")
    fs.make_directory("/data/backup")
    fs.make_directory("/data/old-0.0123456789abcdef0123456789abcdef-delete")
    create(fs, "/data/old-0.0123456789abcdef0123456789abcdef-delete/00000000000000000000.log")
    create(fs, "/data/notes.txt")
    found = facts(fs, "/data")
    assert notes(found) == [
        "topic commits: no directory yet for commits-1: a start creates the missing ones",
        "neither seglog's nor Kafka's: a broker refuses a log directory with such a sub-directory",
        "it names partitions that have no directory: commits-1",
        "it names partitions that have no directory: commits-1",
        "other files: notes.txt",
    ]
    assert [(p.topic, p.marker) for p in only(found, PartitionFound)] == [("commits", ""), ("old", "-delete")]


def test_an_end_below_the_recovery_point_is_damage() -> None:
    fs = ForgetfulFileSystem()
    log_directory(fs).close()
    cut_file(fs, "/data/commits-0/00000000000000000000.log", 700)
    assert "the log ends at offset 7, its recovery point is 10" in {
        reason for _, _, reason in damage(facts(fs, "/data"))
    }


def test_damage_in_files_is_shown_once_with_and_without_verify() -> None:
    disk = small_log()
    overwrite(disk.fs, LOG, 300, b"\xab" * 100)
    assert damage(facts(disk.fs, DIRECTORY)) == [(300, 400, "no batch begins here: its magic is -85, not 2")]
    assert damage(facts(disk.fs, DIRECTORY, verify=True)) == damage(facts(disk.fs, DIRECTORY))


@each_case(
    ("before", "why"),
    [
        (20, "compaction removed their records"),
        (15, "compaction has come to offset 15 only, so a file is lost"),
        (0, "nothing here was compacted, so a file is lost"),
        (None, "compaction removed their records, or a file is lost"),
    ],
    ids=str,
)
def test_why_offsets_are_in_no_segment_is_said_as_far_as_it_is_known(before: int | None, why: str) -> None:
    disk = small_log(30, segment_bytes=1000)
    disk.fs.unlink(LOG.replace("00.log", "10.log"))
    if before is None:
        disk.fs.unlink(f"{DIRECTORY}/{PARTITION_STATE_FILE}")
    else:
        state = PartitionState.load(disk.fs, DIRECTORY)
        state.compacted_before = before
        state.save(disk.fs, DIRECTORY)
    told = notes(facts(disk.fs, DIRECTORY))
    assert f"offsets 10 to 19 are in no segment: {why}" in told
    left = ", ".join(f"00000000000000000010.{suffix}" for suffix in ("checksum", "index", "timeindex"))
    assert f"without their .log, so a start removes them: {left}" in told


def test_segments_that_overlap_are_damage() -> None:
    disk = small_log()
    create(disk.fs, f"{DIRECTORY}/00000000000000000005.log")
    assert damage(facts(disk.fs, DIRECTORY)) == [(None, None, "its offsets go on to 9, into the next segment")]


def test_a_partition_that_is_removed_meanwhile_is_a_note() -> None:
    fs = ForgetfulFileSystem()
    log_directory(fs).close()
    walk = facts_of(fs, "/data", DumpOptions())
    found: list[Fact] = [next(walk)]
    fs.remove_tree("/data/commits-1")
    found += walk
    assert "it was removed while it was read: a broker is running" in notes(found)
    assert damage(found) == []


def test_a_segment_that_is_removed_meanwhile_is_a_note() -> None:
    disk = small_log(30, segment_bytes=1000)
    walk = facts_of(disk.fs, DIRECTORY, DumpOptions())
    found: list[Fact] = [next(walk)]
    disk.fs.unlink(LOG)
    found += walk
    assert notes(found)[0] == "it was removed while it was read: a broker is running"
    assert len(only(found, SegmentFound)) == 2


def test_a_segment_that_cannot_be_read_is_damage_and_does_not_hide_the_others() -> None:
    disk = small_log(30, segment_bytes=1000)
    assert isinstance(disk.fs, ForgetfulFileSystem)
    disk.fs.inject(Fault("open", LOG, error=5, sticky=True))
    for path, others in ((LOG, []), (DIRECTORY, [10, 20])):
        found = facts(disk.fs, path)
        assert damage(found) == [(None, None, "it cannot be read: EIO")]
        assert [row.base_offset for row in only(found, SegmentFound)] == others


@each_case(
    ("path", "sentence"),
    [
        ("/nowhere", "/nowhere does not exist"),
        ("/empty/", "/empty is an empty directory"),
        ("/else", "/else is neither a log directory nor a partition"),
        ("/else/notes.txt", "/else/notes.txt is not a file of seglog or Kafka"),
        ("/else/00000000000000000000.checksum", "ends in .checksum, which seglog does not know"),
        ("/else/.lock", "/else/.lock is the lock of a log directory"),
        ("/else/meta.properties.tmp", "is an unfinished replacement of the identity of the log directory"),
    ],
)
def test_a_path_with_nothing_to_show_gets_one_sentence(path: str, sentence: str) -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/empty/": b"", "/else/notes.txt": b"", "/else/.lock": b""})
    if path.endswith((".checksum", ".tmp")):
        create(fs, path)
    with pytest.raises(NothingToDumpError) as caught:
        facts_of(fs, path, DumpOptions())
    assert sentence in str(caught.value)


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned", ".swap"])
def test_left_over_files_are_shown_with_what_a_start_does_with_them(suffix: str) -> None:
    disk = small_log()
    for name in ("log", "index"):
        path = LOG.replace("log", name)
        create(disk.fs, path + suffix)
        add_bytes(disk.fs, path + suffix, b"")
    for name in ("log", "index"):
        found = facts(disk.fs, LOG.replace("log", name) + suffix, verify=True)
        assert len(notes(found)) == 1
        assert "a start" in notes(found)[0]
        assert damage(found) == []


def test_a_missing_registry_of_a_directory_of_seglog_is_shown_as_a_loss() -> None:
    for name, is_lost in (("seglog-format", True), ("meta.properties", False)):
        fs = ForgetfulFileSystem()
        fs.load({f"/data/{name}": b"1\n", f"/data/t-0/{0:020d}.log": b""})
        told = notes(facts(fs, "/data"))
        assert any(note.endswith("their configuration is lost") for note in told) == is_lost
