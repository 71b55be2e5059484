"""Retention of a log: which segments are dropped, and the remaining state on disk and in memory."""

import errno

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.log.truncation import AgeSource
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing.forgetful import POWER_LOSS, RANDOM, Fault, ForgetfulFileSystem
from seglog_protocol.errors import OffsetOutOfRangeError, StorageError
from tests.logs import DIRECTORY, LogOnDisk, bases_of, batch_of_size, contents, flip_bit, read_all, read_around, verify
from tests.support import each_case
from tests.unit.broker.storage.steps import checkpoint, save_state, take_oldest

DAY = 86_400_000


def a_log(segments: int = 3, *, retention_ms: int = -1) -> LogOnDisk:
    """Segments of five one-record batches of 100 bytes with timestamps of the clock."""
    config = TopicConfig(segment_bytes=500, segment_ms=365 * DAY, retention_ms=retention_ms, index_interval_bytes=150)
    disk = LogOnDisk(config)
    disk.set_time(disk.clock.now)
    for _ in range(segments * 5):
        append(disk)
    return disk


def append(disk: LogOnDisk, timestamp: int | None = None) -> int:
    return disk.append_batch(batch_of_size(100, disk.clock.now if timestamp is None else timestamp)).base_offset


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in read_all(log)]


def going(log: PartitionLog) -> int:
    """The number of oldest segments that retention would drop."""
    count = 0
    for _, verdict in log.retention.judge_segments():
        if verdict.rule is None:
            break
        count += 1
    return count


def expire(disk: LogOnDisk) -> int:
    """Drop the expired segments, and remove their files."""
    count = going(disk.log)
    if count:
        take_oldest(disk.log, count)
    verify(disk.fs, disk.log)
    return count


def files(disk: LogOnDisk) -> set[str]:
    return {name for name in disk.fs.list_directory(DIRECTORY) if name[0] == "0"}


# --- Edge cases of retention -----------------------------------------------------------------------------------------


def test_an_expired_active_segment_leaves_one_empty_segment_at_the_log_end() -> None:
    disk = a_log(retention_ms=1000)
    disk.set_time(disk.clock.now + 1001)
    assert expire(disk) == 3
    assert (bases_of(disk.log), disk.log.size) == ([15], 0)
    assert (disk.log.log_start_offset, disk.log.log_end_offset) == (15, 15)
    assert disk.log.read(15, 1000) is None
    disk.set_time(disk.clock.now + DAY)
    assert expire(disk) == 0
    assert append(disk) == 15
    assert offsets(disk.log) == [15]
    assert disk.log.state.rolls == {}, "of segments that are gone"
    for _ in range(2):
        disk.reopen()
        assert (disk.log.log_start_offset, disk.log.log_end_offset) == (15, 16)


def test_a_compacted_log_loses_only_what_lies_below_its_log_start() -> None:
    disk = a_log()
    disk.log.reconfigure(TopicConfig(cleanup_policy=("compact",), retention_ms=0, retention_bytes=0))
    disk.set_time(disk.clock.now + DAY)
    assert going(disk.log) == 0
    disk.log.truncate_before(7)
    assert expire(disk) == 1
    assert (bases_of(disk.log), disk.log.log_start_offset) == ([5, 10], 7), "no segment in part, and no record back"
    assert offsets(disk.log) == list(range(7, 15))


def test_age_without_timestamps() -> None:
    """Without timestamps the active segment ages from its last append and a closed one from its file."""
    disk = a_log(0, retention_ms=1000)
    began = disk.clock.now
    for _ in range(5):
        append(disk, -1)
    disk.set_time(began + 500)
    append(disk, -1)
    closed, active = disk.log.segments
    assert disk.log.retention.last_write(closed) == (began, AgeSource.MODIFICATION_TIME)
    assert disk.log.retention.last_write(active) == (began + 500, AgeSource.LAST_APPEND)
    disk.set_time(began + 1001)
    assert going(disk.log) == 1
    disk.set_time(began + 1501)
    assert going(disk.log) == 2
    disk.reopen()
    assert disk.log.retention.last_write(disk.log.active) == (began + 500, AgeSource.LAST_APPEND), "it is remembered"
    disk.restart_unclean()
    assert disk.log.retention.last_write(disk.log.active) == (began + 500, AgeSource.MODIFICATION_TIME), (
        "the file knows better"
    )
    disk.log.state.last_append_ms = began + DAY
    disk.log.forget_last_append()
    assert disk.log.retention.last_write(disk.log.active) == (began + 500, AgeSource.MODIFICATION_TIME)


def test_the_epoch_entry_of_the_cut_begins_at_the_new_log_start() -> None:
    disk = a_log(1, retention_ms=1000)
    disk.restart_unclean()
    for _ in range(10):
        append(disk)
    disk.restart_unclean()
    append(disk, disk.clock.now + 2000)
    before = [(entry.epoch, entry.start_offset) for entry in disk.log.epochs.entries]
    assert before == [(0, 0), (1, 5), (2, 15)]
    disk.set_time(disk.clock.now + 1001)
    disk.log.truncation.drop_oldest(2)
    assert [(entry.epoch, entry.start_offset) for entry in disk.log.epochs.entries] == [(1, 10), (2, 15)]


# --- What a reader sees -----------------------------------------------------------------------------------------------


def test_dropped_offsets_are_out_of_range_at_once_with_what_can_be_read() -> None:
    disk = a_log()
    disk.log.truncation.drop_oldest(2)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        disk.log.read(9, 100)
    assert (caught.value.earliest, caught.value.latest, caught.value.facts["reason"]) == (10, 15, "expired")
    assert disk.log.state.log_start_reason == "expired"
    assert offsets(disk.log) == [10, 11, 12, 13, 14]
    found = disk.log.find_timestamp(0)
    assert found is not None
    assert found.offset == 10


# --- In the middle of other things ------------------------------------------------------------------------------------


def test_a_flush_under_way_ends_as_if_nothing_had_happened() -> None:
    disk = a_log()
    assert all(segment.log.is_dirty for segment in disk.log.segments)
    flush = disk.log.prepare_flush()
    take_oldest(disk.log, 3)
    append(disk)
    flush.run()
    disk.log.finish_flush(flush, None)
    assert disk.log.durable_end_offset == 15
    disk.log.flusher.flush()
    assert disk.log.durable_end_offset == 16
    disk.log.close()
    assert disk.double.open_files == []


def test_retention_without_room_for_a_new_segment() -> None:
    """A full disk that has no room for a new segment loses the old ones all the same."""
    disk = a_log(retention_ms=1000)
    disk.set_time(disk.clock.now + 1001)
    disk.double.inject(Fault("open", f"{15:020d}.index", error=errno.ENOSPC, sticky=True))
    doomed = disk.log.truncation.drop_oldest(going(disk.log))
    assert doomed.base_offsets == (0, 5)
    assert (bases_of(disk.log), offsets(disk.log)) == ([10], [10, 11, 12, 13, 14])
    before = contents(disk.fs)
    with pytest.raises(StorageError, match="a new segment could not be begun"):
        disk.log.truncation.drop_oldest(going(disk.log))
    assert contents(disk.fs) == before
    assert offsets(disk.log) == [10, 11, 12, 13, 14]
    disk.double.heal()
    assert disk.append_batch(batch_of_size(100)).rolled is RollReason.RETENTION, "what was begun is ended first"
    verify(disk.fs, disk.log)
    assert bases_of(disk.log) == [10, 15]


def test_an_index_that_could_not_be_saved_does_not_matter_when_its_segment_goes() -> None:
    disk = a_log(retention_ms=1000)
    disk.double.inject(Fault("pwritev", f"{10:020d}.timeindex", error=errno.EIO))
    disk.log.truncation.drop_oldest(3).set_aside()
    checkpoint(disk.log)
    disk.reopen()
    assert disk.log.log_end_offset == 15


def test_damage_goes_with_its_segment_and_stays_with_one_that_stays() -> None:
    disk = a_log()
    disk.log.flusher.flush()
    flip_bit(disk.fs, f"{DIRECTORY}/{0:020d}.log", 150)
    flip_bit(disk.fs, f"{DIRECTORY}/{10:020d}.log", 150)
    disk.restart_unclean()
    assert [(d.start_offset, d.end_offset) for d in disk.log.state.damaged] == [(1, 2), (11, 12)]
    disk.log.truncate_before(13)
    disk.log.truncation.drop_oldest(2).set_aside()
    assert [(d.start_offset, d.end_offset) for d in disk.log.state.damaged] == [(11, 12)], "its bytes are still there"
    disk.reopen(log_start=13)
    assert disk.report.recovery is None, "a clean start finds nothing that it did not know"
    assert [record.offset for record in read_around(disk.log)] == [13, 14]


def test_damage_of_missing_segments() -> None:
    """Damage that is remembered of segments that are gone is missing as a whole at the start."""
    disk = a_log()
    disk.log._log.damage.replace([DamagedRange(1, 3, 0, 100, 300), DamagedRange(5, 10, 5, 0, 0, "missing")])
    disk.log.state_file.save()
    disk.log.truncation.drop_oldest(2).set_aside()
    assert disk.log.state.damaged == []
    disk.restart_unclean()
    assert disk.log.state.damaged == [DamagedRange(0, 10, 10, 0, 0, "missing")]


# --- What a start finds -----------------------------------------------------------------------------------------------


def test_where_a_start_would_begin_is_known_for_each_drop_by_itself() -> None:
    disk = a_log(4)
    assert disk.log.truncation.first_base_on_disk == 0
    first = disk.log.truncation.drop_oldest(1)
    assert disk.log.truncation.first_base_on_disk == 0
    disk.double.inject(Fault("rename", f"{0:020d}.log", error=errno.EIO))
    with pytest.raises(OSError):
        first.set_aside()
    second = disk.log.truncation.drop_oldest(1)
    second.set_aside()
    assert disk.log.truncation.first_base_on_disk == 0, "the first one still bears its names"
    first.set_aside()
    assert disk.log.truncation.first_base_on_disk == 10
    third = disk.log.truncation.drop_oldest(1)
    assert disk.log.truncation.first_base_on_disk == 10
    third.set_aside()
    assert disk.log.truncation.first_base_on_disk == 15
    assert files(disk) == {
        *(f"{15:020d}{suffix}" for suffix in (".log", ".index", ".timeindex", ".snapshot")),
        *(
            f"{base:020d}{suffix}.deleted"
            for base in (0, 5, 10)
            for suffix in (".log", ".index", ".timeindex", ".checksum")
        ),
        *(f"{base:020d}.snapshot.deleted" for base in (5, 10)),
    }


@pytest.mark.parametrize("log_start", [0, 15], ids=["checkpoint not written", "checkpoint written"])
def test_a_power_cut_while_everything_is_set_aside_never_takes_the_log_end_back(log_start: int) -> None:
    """The new, empty segment must have its name on the disk before any other loses its own."""
    for seed in range(20):
        disk = a_log(retention_ms=1000)
        disk.log.flusher.flush()
        doomed = disk.log.truncation.drop_oldest(3)
        save_state(disk.log)
        found: list[ForgetfulFileSystem] = []
        fs, policy = disk.double, RANDOM(seed)
        fs.on_operation = lambda _, fs=fs, policy=policy, found=found: found.append(fs.found_after(policy))
        doomed.set_aside()
        doomed.remove()
        fs.on_operation = None
        assert found
        for crashed in found:
            disk.fs = crashed
            log = disk._open(clean=False, log_start=log_start)
            assert (log.log_end_offset, log.log_start_offset >= log_start) == (15, True)
            log.release()


# --- Segments that left their log: renamed in an order that is safe in a crash, then removed --------------------------


SUFFIXES = (".log", ".index", ".timeindex")


def a_directory(*bases: int) -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.load({f"/t-0/{base:020d}{suffix}": b"abc" for base in bases for suffix in SUFFIXES} | {"/t-0/other": b"x"})
    return fs


def names(fs: FileSystem) -> set[str]:
    return set(fs.list_directory("/t-0"))


def names_of(*bases: int, aside: bool = False) -> set[str]:
    return {f"{base:020d}{suffix}{'.deleted' if aside else ''}" for base in bases for suffix in SUFFIXES}


def test_files_are_set_aside_and_then_removed_and_nothing_else_is_touched() -> None:
    fs = a_directory(0, 10, 20)
    doomed = DeletedSegments(fs, "/t-0", [0, 10])
    doomed.set_aside()
    assert names(fs) == {"other"} | names_of(20) | names_of(0, 10, aside=True)
    assert doomed.remove() == 18
    assert names(fs) == {"other"} | names_of(20)
    assert doomed.remove() == 0, "twice does no harm"


def test_the_log_of_a_segment_changes_its_name_first_and_segments_in_the_order_given() -> None:
    fs = a_directory(0, 10)
    DeletedSegments(fs, "/t-0", [10, 0]).set_aside()
    renamed = [op.path.rpartition("/")[2] for op in fs.operations if op.name == "rename"]
    assert renamed == [f"{base:020d}{suffix}" for base in (10, 0) for suffix in SUFFIXES]


def test_files_count_as_set_aside_once_that_survives_a_power_cut() -> None:
    fs = a_directory(0, 10)
    doomed = DeletedSegments(fs, "/t-0", [0])
    told: list[bool] = []
    fs.on_operation = lambda _: told.append(doomed.is_set_aside)
    doomed.set_aside()
    fs.on_operation = None
    assert told == [False] * 4, "three renames and the sync"
    assert doomed.is_set_aside
    for policy in (POWER_LOSS, *map(RANDOM, range(20))):
        assert names(fs.found_after(policy)) == {"other"} | names_of(10) | names_of(0, aside=True)


def test_survivors_are_synced_before_the_first_name_changes() -> None:
    fs = a_directory(0)
    fs.open("/t-0/survivor", create=True).close()
    found: list[set[str]] = []
    fs.on_operation = lambda operation: (
        found.append(names(fs.found_after(POWER_LOSS))) if operation.name == "rename" else None
    )
    DeletedSegments(fs, "/t-0", [0], sync_survivors=True).set_aside()
    fs.on_operation = None
    assert found
    assert all("survivor" in left for left in found)


@each_case(
    "fault",
    [
        *(Fault("rename", error=errno.EIO, nth=nth) for nth in (1, 2, 4, 6)),
        Fault("sync_directory", error=errno.EIO),
    ],
)
def test_a_setting_aside_that_failed_is_taken_up_where_it_stopped(fault: Fault) -> None:
    fs = a_directory(0, 10)
    doomed = DeletedSegments(fs, "/t-0", [0, 10])
    fs.inject(fault)
    with pytest.raises(OSError):
        doomed.set_aside()
    assert not doomed.is_set_aside
    doomed.set_aside()
    assert doomed.is_set_aside
    assert names(fs.found_after(POWER_LOSS)) == {"other"} | names_of(0, 10, aside=True)


def test_a_removal_that_failed_is_taken_up_where_it_stopped() -> None:
    fs = a_directory(0, 10)
    doomed = DeletedSegments(fs, "/t-0", [0, 10])
    doomed.set_aside()
    fs.inject(Fault("unlink", error=errno.EIO, nth=3))
    with pytest.raises(OSError):
        doomed.remove()
    assert doomed.remove() == 12, "two files were gone already"
    assert names(fs) == {"other"}


def test_files_that_are_not_there_are_no_error() -> None:
    fs = a_directory(0)
    fs.unlink(f"/t-0/{0:020d}.timeindex")
    doomed = DeletedSegments(fs, "/t-0", [0, 10])
    doomed.set_aside()
    assert doomed.remove() == 6
