"""Recovery as a job: the same bytes as a recovery during the start, each byte read once, safe to interrupt."""

import errno
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState
from seglog_broker.storage.log.recovery import PROGRESS_BYTES, TailUnreadError
from seglog_broker.storage.log.recovery_job import (
    RecoveryJob,
    RecoveryOutcome,
    UnreadTail,
    recover_partition,
    unread_tail,
)
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, CrashPolicy, Fault, ForgetfulFileSystem
from seglog_broker.workers.jobs import RECOVERY
from seglog_broker.workers.messages import answer_line, decoded, parse_reply, parse_request, request_line
from tests.logs import (
    DIRECTORY,
    LogOnDisk,
    ManualClock,
    add_bytes,
    batch_of_size,
    contents,
    cut_file,
    flip_bit,
    read_around,
    verify,
)
from tests.support import each_case, examples
from tests.unit.broker.storage.log.test_partition_log_producers import sent

_CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=250)
_EPOCHS = f"{DIRECTORY}/leader-epoch-checkpoint"


def _path(base: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{base:020d}{suffix}"


def _crashed(count: int = 25, *, synced: int = 0) -> ForgetfulFileSystem:
    """Files of a killed broker: every third batch is of an idempotent producer, the first ``synced`` are flushed."""
    disk = LogOnDisk(_CONFIG)
    for number in range(count):
        if number % 3:
            disk.append_batch(batch_of_size(100, timestamp=1_700_000_000_000 + number * 7 % 50))
        else:
            disk.append_batch(sent(7, number // 3, timestamp=1_700_000_000_000 + number, text="." * 10))
        if number + 1 == synced:
            disk.log.flusher.flush()
    disk.log.release()
    return disk.double.crash(PROCESS_KILL)


def _job(fs: ForgetfulFileSystem, recovery_point: int = 0, *, log_start: int = 0) -> RecoveryJob:
    return RecoveryJob(
        DIRECTORY,
        unread_tail(fs, DIRECTORY, recovery_point).size,
        recovery_point,
        log_start,
        compacted_before=0,
        segment_index_bytes=_CONFIG.segment_index_bytes,
        index_interval_bytes=_CONFIG.index_interval_bytes,
        producer_expiration_ms=86_400_000,
    )


def _recovered(fs: ForgetfulFileSystem, recovery_point: int = 0, *, log_start: int = 0) -> RecoveryOutcome:
    return recover_partition(fs, ManualClock(), _job(fs, recovery_point, log_start=log_start))


def _loaded(fs: ForgetfulFileSystem, **how: Any) -> LoadedLog:
    return load(fs, HandlePool(fs), ManualClock(), DIRECTORY, _CONFIG, **how)


def _opened(fs: ForgetfulFileSystem, *, clean: bool, **how: Any) -> PartitionLog:
    return PartitionLog(_loaded(fs, clean=clean, may_recover=not clean, **how))


def _loaded_unread(fs: ForgetfulFileSystem, recovery_point: int) -> LoadedLog:
    return _loaded(fs, clean=False, recovery_point=recovery_point, may_recover=False)


def _state(log: PartitionLog) -> tuple[object, ...]:
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.durable_end_offset,
        log.leader_epoch,
        log.epochs.entries,
        replace(
            log.state, checksum=None, held_end=0, epochs=[]
        ),  # noted when they are saved, which is not the same time
        log.producers.entries(),
        [(segment.base_offset, segment.size, segment.damaged) for segment in log.segments],
    )


def _but_for_epochs(fs: ForgetfulFileSystem) -> dict[str, bytes]:
    """All files, without the leader epoch of the start, of which the partition's state has a copy."""
    state = replace(PartitionState.read(fs, DIRECTORY), epochs=[])
    return contents(fs) | {_EPOCHS: b"", f"{DIRECTORY}/{PARTITION_STATE_FILE}": state.encode()}


def _same_both_ways(crashed: ForgetfulFileSystem, recovery_point: int = 0, *, log_start: int = 0) -> None:
    in_line, behind = crashed.found_after(PROCESS_KILL), crashed.found_after(PROCESS_KILL)
    expected = _opened(in_line, clean=False, recovery_point=recovery_point, log_start=log_start)
    outcome = _recovered(behind, recovery_point, log_start=log_start)
    left = contents(behind)
    point, end = min(recovery_point, outcome.end_offset), outcome.end_offset
    log = _opened(behind, clean=True, recovery_point=point, log_start=log_start, saved_end=end)
    assert outcome.end_offset == expected.log_end_offset
    assert _state(log) == _state(expected)
    log.close()
    expected.close()
    assert contents(behind) == contents(in_line)
    assert contents(behind) == left, "the process leaves what a clean stop leaves"


@given(data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_worker_recovers_as_a_start_does(data: st.DataObject) -> None:
    """With any damage a worker leaves the same bytes as a recovery during the start."""
    crashed = _crashed(data.draw(st.integers(0, 45)))
    logs = sorted(path for path in contents(crashed) if path.endswith(".log"))
    for _ in range(data.draw(st.integers(0, 3))):
        path = data.draw(st.sampled_from(logs))
        size = crashed.stat(path).size
        how = data.draw(st.sampled_from(["flip", "cut", "garbage", "no index", "no snapshot"]))
        if how == "flip" and size:
            flip_bit(crashed, path, data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7)))
        elif how == "cut":
            cut_file(crashed, path, data.draw(st.integers(0, size)))
        elif how == "garbage":
            add_bytes(crashed, path, random.Random(size).randbytes(data.draw(st.integers(1, 300))))
        elif how == "no index":
            cut_file(crashed, path.replace(".log", ".index"), 0)
        elif crashed.exists(path.replace(".log", ".snapshot")):
            cut_file(crashed, path.replace(".log", ".snapshot"), 5)
    _same_both_ways(crashed, data.draw(st.integers(0, 50)), log_start=data.draw(st.sampled_from([0, 0, 0, 3, 14, 60])))


@pytest.mark.parametrize("policy", [PROCESS_KILL, POWER_LOSS], ids=["process kill", "power loss"])
def test_interrupted_anywhere_it_is_simply_done_again(policy: CrashPolicy) -> None:
    crashed = _crashed(30, synced=24)
    flip_bit(crashed, _path(10), 480)
    cut_file(crashed, _path(20), 930)
    fs = ForgetfulFileSystem()
    fs.load(contents(crashed))  # all of it on the disk, the damage too
    undisturbed = fs.found_after(PROCESS_KILL)
    expected = _recovered(undisturbed)
    log = _opened(undisturbed, clean=True)
    values = [record.value for record in read_around(log)]
    producers = log.producers.entries()
    log.close()
    found: list[ForgetfulFileSystem] = []
    fs.on_operation = lambda _: found.append(fs.found_after(policy))
    _recovered(fs)
    assert len(found) > 20
    for again in found:
        outcome = _recovered(again)
        assert (outcome.end_offset, outcome.damaged) == (expected.end_offset, expected.damaged)
        log = _opened(again, clean=True)
        assert [record.value for record in read_around(log)] == values
        assert log.producers.entries() == producers
        verify(again, log)
        log.close()
        assert _but_for_epochs(again) == _but_for_epochs(undisturbed)


def test_a_recovered_log_survives_a_power_cut_once_the_job_returns() -> None:
    fs = _crashed(25, synced=10)
    _recovered(fs)
    assert fs.found_after(POWER_LOSS).snapshot() == fs.snapshot()


@each_case(("point", "unread"), [(0, 2_500_000), (10, 1_500_000), (15, 1_500_000), (20, 500_000)])
def test_only_bytes_above_the_recovery_point_are_read_and_only_once(point: int, unread: int) -> None:
    fs = _crashed_large()
    fs.reads.clear()
    assert _recovered(fs, recovery_point=point).scanned_bytes == unread
    read = Counter[str]()
    for look in fs.reads:
        if look.name == "pread" and look.path.endswith(".log"):
            read[look.path] += look.size
    assert set(read) == {_path(base) for base in (0, 10, 20) if base + 10 > point}
    checksum_of_the_active = 500_000
    headers = 20 * 4096
    assert unread <= sum(read.values()) <= unread + checksum_of_the_active + headers


def _crashed_plain() -> ForgetfulFileSystem:
    return _crashed_with(100, _CONFIG)


def _crashed_large() -> ForgetfulFileSystem:
    return _crashed_with(100_000, TopicConfig(segment_bytes=1_000_000))


def _crashed_with(batch_bytes: int, config: TopicConfig) -> ForgetfulFileSystem:
    disk = LogOnDisk(config)
    for _ in range(25):
        disk.append_batch(batch_of_size(batch_bytes))
    disk.log.release()
    return disk.double


def test_the_loop_opens_what_was_recovered_without_reading_the_batches_again() -> None:
    fs = _crashed_large()
    outcome = _recovered(fs)
    fs.reads.clear()
    log = _opened(fs, clean=True, saved_end=outcome.end_offset)
    assert log.log_end_offset == outcome.end_offset == 25
    read = [look for look in fs.reads if look.name == "pread" and look.path.endswith(".log")]
    assert {look.path for look in read} == {_path(20)}
    assert sum(look.size for look in read) <= 5 * 4096


def test_a_failed_fsync_leaves_the_partition_readable_and_marked() -> None:
    fs = _crashed(25)
    fs.inject(Fault("fdatasync", _path(20), error=errno.EIO))
    assert _recovered(fs).end_offset == 25
    log = _opened(fs, clean=True)
    assert log.state.read_only is not None
    assert (log.durable_end_offset, len(read_around(log))) == (0, 25)


def test_a_log_that_cannot_be_opened_is_an_error_and_leaves_no_file_open() -> None:
    fs = _crashed(25)
    fs.inject(Fault("pread", _path(10), error=errno.EIO))
    with pytest.raises(OSError, match="EIO"):
        _recovered(fs)
    assert fs.open_files == []
    fs.heal()
    assert _recovered(fs).end_offset == 25


def test_progress_reports_add_up_to_the_bytes_read() -> None:
    disk = LogOnDisk()
    for _ in range(20):
        disk.append_batch(batch_of_size(1_000_000))
    disk.log.release()
    told: list[int] = []
    outcome = recover_partition(disk.fs, ManualClock(), _job(disk.double), told.append)
    assert sum(told) == outcome.scanned_bytes == 20_000_000
    assert len(told) >= 20_000_000 // PROGRESS_BYTES - 1


def test_a_job_and_an_outcome_survive_json() -> None:
    fs = _crashed(25)
    flip_bit(fs, _path(10), 480)
    job = _job(fs, 7)
    assert decoded(RecoveryJob, parse_request(request_line(RECOVERY, job)).job) == job
    outcome = recover_partition(fs, ManualClock(), job)
    assert outcome.damaged
    assert parse_reply(RECOVERY, answer_line(outcome)) == outcome


# --- How much there is to be read -------------------------------------------------------------------------------------


@each_case(("point", "size"), [(0, 2500), (9, 2500), (10, 1500), (25, 500), (1000, 500)])
def test_an_unread_tail_begins_with_the_segment_that_holds_the_recovery_point(point: int, size: int) -> None:
    assert unread_tail(_crashed_plain(), DIRECTORY, point) == UnreadTail(size, is_tidy=True)


@pytest.mark.parametrize("left", [".log.swap", ".index.swap", ".log.deleted"])
def test_what_a_crash_left_of_compaction_has_to_be_read_too(left: str) -> None:
    fs = _crashed_plain()
    fs.load({_path(0, left): bytes(70)})
    assert unread_tail(fs, DIRECTORY, 20) == UnreadTail(
        500 + {".log.swap": 70, ".index.swap": 0, ".log.deleted": 1000}[left], is_tidy=False
    )


# --- Logs that need no reading ----------------------------------------------------------------------------------------


def _stopped(count: int = 25) -> ForgetfulFileSystem:
    disk = LogOnDisk(_CONFIG)
    for _ in range(count):
        disk.append_batch(batch_of_size(100, timestamp=1_700_000_000_000))
    disk.log.close()
    return disk.double


@each_case("count", [0, 1, 10, 25])
def test_a_log_that_ends_at_its_recovery_point_is_not_read_but_takes_a_new_epoch(count: int) -> None:
    fs = _stopped(count)
    fs.reads.clear()
    loaded = _loaded_unread(fs, count)
    assert loaded.report.recovery is None
    log = PartitionLog(loaded)
    assert (log.log_end_offset, log.durable_end_offset, log.leader_epoch) == (count, count, 1)
    read = [r for r in fs.reads if r.name == "pread" and r.path.endswith(".log")]
    assert {r.path for r in read} <= {log.active.log_path}
    verify(fs, log)


@each_case(
    "hurt",
    [
        lambda fs: cut_file(fs, _path(20), -1),
        lambda fs: add_bytes(fs, _path(20), b"torn"),
        lambda fs: flip_bit(fs, _path(20, ".index"), 4, 6),
        lambda fs: fs.unlink(_path(20, ".index")),
        lambda fs: add_bytes(fs, _path(20, ".timeindex"), b"odd"),
    ],
)
def test_anything_odd_at_its_end_has_it_read(hurt: Callable[[ForgetfulFileSystem], None]) -> None:
    fs = _stopped()
    hurt(fs)
    with pytest.raises(TailUnreadError):
        _loaded_unread(fs, 25)
    _same_both_ways(fs, 25)


@each_case("point", [0, 19, 20, 24, 26])
def test_a_log_that_ends_elsewhere_than_at_its_recovery_point_is_read(point: int) -> None:
    fs = _stopped()
    with pytest.raises(TailUnreadError):
        _loaded_unread(fs, point)
