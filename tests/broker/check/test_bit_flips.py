"""Every single bit of a small log directory turned, one after the other: what a check sees, and what it cannot see."""

from collections.abc import Iterator

import pytest

from seglog_broker.check.findings import Code, Severity
from seglog_broker.storage.forgetful import ForgetfulFileSystem
from seglog_broker.storage.partition_state import PartitionState
from tests.broker.check.support import DATA, PARTITION, check, codes, findings, path_of, totals, written
from tests.broker.dump.support import create
from tests.logs import flip_bit


def _flips(fs: ForgetfulFileSystem, path: str) -> Iterator[tuple[int, int]]:
    """Turn each bit of a file in turn, and back."""
    for position in range(fs.stat(path).size):
        for bit in range(8):
            flip_bit(fs, path, position, bit)
            yield position, bit
            flip_bit(fs, path, position, bit)


@pytest.mark.parametrize("suffix", [pytest.param(".log", marks=pytest.mark.slow), ".index", ".timeindex", ".checksum"])
def test_every_bit_of_a_closed_segment_is_watched(suffix: str) -> None:
    fs = written(11, covered=True)
    assert findings(check(fs)) == []
    path = path_of(0, suffix)
    seen = 0
    for position, bit in _flips(fs, path):
        told = check(fs)
        assert not totals(told).is_sound, f"bit {bit} of byte {position}"
        if suffix == ".log":
            assert any(code in {Code.BATCH_DAMAGED, Code.CHECKSUM_MISMATCH} for _, code in codes(told)), position
        else:  # and not taken for something worse
            wanted = Code.CHECKSUM_FILE_WRONG if suffix == ".checksum" else Code.INDEX_WRONG
            assert codes(told) == [(Severity.DERIVED, wanted)], position
            assert findings(told)[0].path == path
        seen += 1
    assert seen == 8 * fs.stat(path).size >= 8 * 20
    assert findings(check(fs)) == []


def test_in_the_active_segment_of_a_log_stopped_in_order_every_bit_is_watched_without_a_checksum_file() -> None:
    """Offsets must go on without a gap, epochs are in their checkpoint, and the recovery point is the end."""
    fs = written()
    for position, bit in _flips(fs, path_of(20)):
        assert not totals(check(fs)).is_sound, f"bit {bit} of byte {position}"


def test_in_the_active_segment_after_a_kill_a_wrong_last_batch_passes_for_a_torn_tail() -> None:
    """Nobody knows where the log ended. A note names the bytes, and the next start cuts them off."""
    fs = written(clean=False)
    start, end = 200, fs.stat(path_of(20)).size
    assert end == start + 100
    tails = set()
    for position, _ in _flips(fs, path_of(20)):
        told = check(fs)
        if totals(told).is_sound:
            assert codes(told) == [(Severity.NOTE, Code.TORN_TAIL)], position
            tails.add(position)
    # A base offset that is only somewhat too large leaves a gap; the leader epoch is in its checkpoint.
    watched = {start + 5, start + 6, *range(start + 12, start + 16)}
    assert tails == set(range(start, end)) - watched


def test_where_compaction_was_at_work_an_offset_may_change_unseen_without_a_checksum() -> None:
    """Gaps are normal there, so one that is wrong and still in order cannot be told from a right one."""
    fs = written(24)
    state = PartitionState.load(fs, PARTITION)
    state.compacted_before = 2**31
    state.save(fs, PARTITION)
    assert fs.stat(path_of(20)).size == 400
    unseen = {position for position, _ in _flips(fs, path_of(20)) if not findings(check(fs))}
    # Of the last batch, which no index entry names, what raises the offset within the span of a segment.
    assert unseen == {304, 305, 306, 307}


def test_in_a_log_that_kafka_wrote_and_whose_epochs_are_lost_an_epoch_may_change_unseen() -> None:
    fs = written()
    for name in ("seglog-topics.json", "commits-0/leader-epoch-checkpoint"):
        create(fs, f"{DATA}/{name}")
    fs.unlink(f"{DATA}/seglog-topics.json")
    for position, _ in _flips(fs, path_of(20)):
        seen = {code for _, code in codes(check(fs))} - {Code.REGISTRY_MISSING, Code.EPOCHS_EMPTY}
        assert bool(seen) != (position % 100 in range(12, 16)), position
