"""Repairs: what they do, that they drop no record, and that a crash at any step does no harm."""

import errno
from collections.abc import Callable

import pytest

from seglog_broker.inspect.findings import Code, Severity
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.segment.checksum import SegmentChecksum, write_segment_checksum
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing.forgetful import (
    POWER_LOSS,
    PROCESS_KILL,
    RANDOM,
    CrashPolicy,
    Fault,
    ForgetfulFileSystem,
    Operation,
)
from seglog_protocol.checkpoint_files import decode_offsets
from tests.logs import add_bytes, cut_file, flip_bit, read_around, verify
from tests.support import SOME_OR_ALL, each_case
from tests.unit.broker.inspect.check.support import (
    DATA,
    PARTITION,
    append,
    check,
    codes,
    faults,
    findings,
    left,
    opened,
    path_of,
    repairs,
    totals,
    written,
)
from tests.unit.broker.inspect.dump.support import create, overwrite


def _synced(fs: ForgetfulFileSystem) -> ForgetfulFileSystem:
    """The same files on another disk, all of them synced."""
    found = ForgetfulFileSystem()
    found.load(fs.snapshot())
    return found


def _offsets(fs: ForgetfulFileSystem, *, appending: bool = True) -> list[int]:
    """The offsets that consumers get, before one append; then the broker stops cleanly."""
    logs = opened(fs)
    assert logs.report.offline == {}
    log = logs.logs["commits", 0]
    offsets = [record.offset for record in read_around(log)]
    verify(fs, log)
    if appending:
        append(log, 0)
    assert logs.close() == []
    return offsets


def _mark(fs: ForgetfulFileSystem, reason: str = "an fsync failed: Input/output error") -> None:
    state = PartitionState.load(fs, PARTITION)
    state.read_only = reason
    state.save(fs, PARTITION)


def _damage_everything() -> ForgetfulFileSystem:
    """A closed segment with a flipped bit, wrong and missing indexes, left-over files, a read-only mark and more."""
    fs = written(33, covered=True)
    flip_bit(fs, path_of(0), 480)
    flip_bit(fs, path_of(10, ".index"), 3)
    fs.unlink(path_of(10, ".timeindex"))
    fs.unlink(path_of(10, ".checksum"))
    cut_file(fs, path_of(20, ".timeindex"), 7)
    flip_bit(fs, path_of(20, ".checksum"), 5)
    create(fs, path_of(0, ".log.deleted"), b"x")
    create(fs, path_of(99, ".index"), b"x")
    create(fs, path_of(99, ".checksum"), b"x")
    create(fs, path_of(7, ".snapshot"), b"no snapshot")
    create(fs, f"{DATA}/log-start-offset-checkpoint", b"?")
    create(fs, f"{DATA}/replication-offset-checkpoint.tmp", b"x")
    fs.unlink(f"{PARTITION}/leader-epoch-checkpoint")
    fs.unlink(f"{PARTITION}/partition.metadata")
    _mark(fs)
    return _synced(fs)


_REST = [offset for offset in range(33) if offset != 4]


def test_everything_at_once_is_repaired_and_a_second_check_is_sound() -> None:
    fs = _damage_everything()
    log = read_file(fs, path_of(0))
    told = check(fs, repair=True)
    assert left(told) == []
    assert totals(told).is_sound
    assert totals(told).repairs == len(repairs(told)) > 10
    assert read_file(fs, path_of(0)) == log, "the log's own bytes stay"
    assert read_file(fs, f"{path_of(0)}.damaged-400") == log[400:500]
    after = fs.snapshot()
    again = check(fs, repair=True, deep=True)
    assert codes(again) == [(Severity.NOTE, Code.DAMAGE_KNOWN), (Severity.NOTE, Code.SET_ASIDE)]
    assert repairs(again) == []
    assert fs.snapshot() == after
    assert fs.open_files == []
    assert _offsets(fs) == _REST


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(PROCESS_KILL, id="process kill"),
        pytest.param(POWER_LOSS, id="power loss"),
        *(pytest.param(RANDOM(seed), id=f"random {seed}", marks=pytest.mark.soak) for seed in range(3)),
    ],
)
@SOME_OR_ALL
def test_a_crash_before_any_step_is_completed_by_the_next_repair(policy: CrashPolicy, step: int) -> None:
    fs = _damage_everything()
    points = 0

    def crash_here(operation: Operation) -> None:
        nonlocal points
        points += 1
        if points % step:
            return
        try:
            found = fs.found_after(policy)
            assert totals(check(found, repair=True)).is_sound
            assert faults(check(found)) == []
            assert _offsets(found) == _REST
            interrupted = fs.found_after(policy)
            logs = opened(interrupted)  # nor does a broker that starts in between lose anything
            assert {record.offset for record in read_around(logs.logs["commits", 0])} >= set(_REST)
            logs.abandon()
        except BaseException as error:
            error.add_note(f"at crash point {points}, before {operation}")
            raise

    fs.on_operation = crash_here
    assert totals(check(fs, repair=True)).is_sound
    assert points > 80


def test_without_repair_a_check_changes_nothing() -> None:
    fs = _damage_everything()
    lock = f"{DATA}/.lock"
    for is_there in (True, False):
        fs.lock(lock).release()
        if not is_there:
            fs.unlink(lock)
        before = fs.snapshot()
        told = check(fs, deep=True)
        assert not totals(told).is_sound
        assert repairs(told) == []
        assert fs.snapshot() == before


# --- Damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_end_is_kept_by_the_next_start_instead_of_cut() -> None:
    fs = written()
    flip_bit(fs, path_of(20), 280)
    assert [finding.code for finding in faults(check(fs))] == [Code.TAIL_DAMAGED]
    check(fs, repair=True)
    assert faults(check(fs)) == []
    assert read_file(fs, f"{path_of(20)}.damaged-200") == read_file(fs, path_of(20))[200:]
    assert _offsets(fs) == list(range(22)), "and its offset is not handed out again"
    assert faults(check(fs)) == []
    assert _offsets(fs, appending=False) == [*range(22), 23]


def test_a_lost_end_makes_the_next_start_begin_another_epoch() -> None:
    fs = written()
    cut_file(fs, path_of(20), 100)
    told = check(fs)
    assert [finding.code for finding in faults(told)] == [Code.INDEX_WRONG, Code.INDEX_WRONG, Code.LOG_TOO_SHORT]
    assert totals(check(fs, repair=True)).is_sound
    assert decode_offsets(read_file(fs, f"{DATA}/recovery-point-offset-checkpoint")) == {("commits", 0): 21}
    logs = opened(fs)
    assert not logs.report.clean
    assert logs.logs["commits", 0].leader_epoch == 1
    logs.close()


def test_a_range_that_can_be_read_again_is_forgotten() -> None:
    fs = written()
    state = PartitionState.load(fs, PARTITION)
    state.damaged = [DamagedRange(3, 4, 0, 300, 400), DamagedRange(12, 14, 12, 0, 0, "missing")]
    state.save(fs, PARTITION)
    assert [finding.code for finding in faults(check(fs))] == [Code.RANGE_UNTRUE] * 2
    check(fs, repair=True)
    assert findings(check(fs)) == []
    assert _offsets(fs) == list(range(23))


def test_a_changed_epoch_in_a_covered_segment_stays_damage() -> None:
    """All batches match their checksums, so the changed byte cannot be found."""
    fs = written(covered=True)
    flip_bit(fs, path_of(0), 915)  # the leader epoch of the last batch
    for _ in range(2):
        told = check(fs, repair=True)
        assert {finding.code for finding in left(told)} == {Code.CHECKSUM_MISMATCH, Code.EPOCH_WRONG}
        assert not totals(told).is_sound
    logs = opened(fs)
    served = [record.offset for record in read_around(logs.logs["commits", 0])]
    assert served == list(range(23)), "the records are served all the same"
    assert logs.close() == []


# --- The read-only mark -----------------------------------------------------------------------------------------------


def test_the_read_only_mark_is_removed_after_every_batch_was_verified_and_synced() -> None:
    fs = written(clean=False)
    _mark(fs)
    assert [finding.code for finding in faults(check(fs))] == [Code.READ_ONLY]
    told = check(fs, repair=True)
    said = [done.what for done in repairs(told)]
    assert "the read-only mark is lifted: all 23 batches are valid and on the disk" in said
    assert PartitionState.load(fs, PARTITION).read_only is None
    assert totals(told).is_sound
    assert _offsets(fs.found_after(POWER_LOSS)) == list(range(23)), "also what no fsync had reached"


def test_the_read_only_mark_stays_if_a_batch_cannot_be_verified() -> None:
    fs = written(covered=True)
    flip_bit(fs, path_of(0), 915)
    _mark(fs)
    told = check(fs, repair=True)
    assert PartitionState.load(fs, PARTITION).read_only is not None
    assert Code.READ_ONLY in {finding.code for finding in left(told)}


def test_a_second_failure_of_the_disk_keeps_the_read_only_mark() -> None:
    fs = written(clean=False)
    _mark(fs)
    fs.inject(Fault("fdatasync", ".log.tmp", errno.EIO))
    with pytest.raises(OSError, match=r"\.log\.tmp"):
        check(fs, repair=True)
    assert PartitionState.load(fs, PARTITION).read_only is not None
    assert read_file(fs, path_of(20))


# --- Small files ------------------------------------------------------------------------------------------------------


@each_case(
    ("hurt", "code"),
    [
        (lambda fs: create(fs, f"{PARTITION}/leader-epoch-checkpoint", b"nonsense"), Code.EPOCHS_MALFORMED),
        (lambda fs: create(fs, f"{PARTITION}/leader-epoch-checkpoint", b"0\n2\n1 5\n0 7\n"), Code.EPOCHS_MALFORMED),
        (lambda fs: create(fs, f"{PARTITION}/partition.metadata", b"version: 0\n"), Code.TOPIC_ID_MISSING),
        (lambda fs: create(fs, f"{PARTITION}/seglog-partition.json", b"{"), Code.STATE_MALFORMED),
        (lambda fs: create(fs, path_of(5, ".snapshot"), b"x"), Code.SNAPSHOT_WRONG),
        (lambda fs: create(fs, f"{DATA}/recovery-point-offset-checkpoint", b"1\n"), Code.CHECKPOINT_MALFORMED),
        (lambda fs: add_bytes(fs, path_of(0, ".index"), bytes(80)), Code.INDEX_WRONG),
        (lambda fs: create(fs, f"{DATA}/seglog-clock.json", b"{"), Code.CLOCK_MALFORMED),
        (lambda fs: fs.unlink(path_of(20, ".index")), Code.INDEX_MISSING),
        (lambda fs: overwrite(fs, path_of(0, ".checksum"), 0, b"9"), Code.CHECKSUM_FILE_WRONG),
    ],
)
def test_files_derived_from_the_log_are_rebuilt(hurt: Callable[[ForgetfulFileSystem], None], code: Code) -> None:
    fs = written(covered=True)
    before = fs.snapshot()
    hurt(fs)
    assert (Severity.DERIVED, code) in codes(check(fs))
    assert left(check(fs, repair=True)) == []
    assert findings(check(fs)) == []
    changing = (".json", "checkpoint")
    kept = {path: data for path, data in fs.snapshot().items() if not path.endswith(changing)}
    after = {path: data for path, data in kept.items() if ".unreadable-" not in path}
    assert after == {path: before[path] for path in after}
    copied = code in {
        Code.EPOCHS_MALFORMED,
        Code.TOPIC_ID_MISSING,
        Code.STATE_MALFORMED,
        Code.CHECKPOINT_MALFORMED,
        Code.CLOCK_MALFORMED,
    }
    assert len(kept) - len(after) == copied
    assert _offsets(fs) == list(range(23))


def test_closed_segments_without_a_checksum_get_one_and_the_active_one_does_not() -> None:
    fs = written()
    assert totals(check(fs)).covered == 0
    assert [done.path for done in repairs(check(fs, repair=True))] == [
        path_of(0, ".checksum"),
        path_of(10, ".checksum"),
    ]
    assert totals(check(fs)).covered == 2
    flip_bit(fs, path_of(10), 3)
    assert not totals(check(fs)).is_sound


def test_a_checksum_file_of_a_segment_that_is_appended_to_again_is_removed() -> None:
    fs = written(covered=True)
    write_segment_checksum(fs, PARTITION, 20, SegmentChecksum(100, 0))
    assert codes(check(fs)) == [(Severity.DERIVED, Code.CHECKSUM_FILE_WRONG)]
    assert totals(check(fs, repair=True)).is_sound
    assert not fs.exists(path_of(20, ".checksum"))
