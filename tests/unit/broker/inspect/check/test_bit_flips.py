"""Flips every single bit of a small log directory, one at a time: which flips a check finds, and which it cannot."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.inspect.check.indexes import ExpectedIndexes, IndexBytes, interval_of
from seglog_broker.inspect.findings import Code, Severity
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.transaction_files import ProducerEntry, encode_snapshot
from tests.logs import LogOnDisk, add_bytes, batches_of, flip_bit
from tests.support import REPOSITORY, SOME_OR_ALL
from tests.unit.broker.inspect.check.support import (
    DATA,
    PARTITION,
    check,
    codes,
    faults,
    findings,
    opened,
    path_of,
    totals,
    written,
)
from tests.unit.broker.inspect.dump.support import create
from tests.unit.broker.storage.log.transactions import Batch, append_in_transaction, end_transaction
from tests.unit.broker.storage.steps import take_oldest

_PAGE = (REPOSITORY / "docs" / "DURABILITY.md").read_text(encoding="utf-8")
BATCH = 100
"""Bytes of every batch here."""


def _flips(fs: ForgetfulFileSystem, path: str, step: int = 1) -> Iterator[tuple[int, int]]:
    """Flip each ``step``-th bit of a file, one at a time, and flip it back."""
    for number in range(0, 8 * fs.stat(path).size, step):
        position, bit = divmod(number, 8)
        flip_bit(fs, path, position, bit)
        yield position, bit
        flip_bit(fs, path, position, bit)


def _on_the_page(log: str) -> str:
    """The bytes of the active segment that may change unnoticed, according to docs/DURABILITY.md."""
    [unseen] = re.findall(rf"^ *\| {re.escape(log)} \| (.+?) \|", _PAGE, re.MULTILINE)
    return str(unseen)


def _ranges(positions: Iterable[int]) -> str:
    """Ranges as the page writes them: "0-4, 7"."""
    ordered = sorted(positions)
    starts = ordered[:1] + [b for a, b in pairwise(ordered) if b > a + 1]
    ends = [a for a, b in pairwise(ordered) if b > a + 1] + ordered[-1:]
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends, strict=True)) or "nothing"


@pytest.mark.parametrize("suffix", [pytest.param(".log", marks=pytest.mark.soak), ".index", ".timeindex", ".checksum"])
@SOME_OR_ALL
def test_every_bit_of_a_closed_segment_is_watched(suffix: str, step: int) -> None:
    fs = written(11, covered=True)
    assert findings(check(fs)) == []
    path = path_of(0, suffix)
    seen = 0
    for position, bit in _flips(fs, path, step):
        told = check(fs)
        assert not totals(told).is_sound, f"bit {bit} of byte {position}"
        if suffix == ".log":
            assert any(code in {Code.BATCH_DAMAGED, Code.CHECKSUM_MISMATCH} for _, code in codes(told)), position
        else:  # and not taken for something worse
            wanted = Code.CHECKSUM_FILE_WRONG if suffix == ".checksum" else Code.INDEX_WRONG
            assert codes(told) == [(Severity.DERIVED, wanted)], position
            assert findings(told)[0].path == path
        seen += 1
    assert seen == len(range(0, 8 * fs.stat(path).size, step)) >= 8 * 20 // step
    assert findings(check(fs)) == []


@pytest.mark.soak
def test_every_bit_of_an_active_segment_after_a_clean_stop() -> None:
    """Offsets must have no gap, epochs are in their checkpoint, and the recovery point is the log end."""
    fs = written()
    for position, bit in _flips(fs, path_of(20)):
        assert not totals(check(fs)).is_sound, f"bit {bit} of byte {position}"
    assert _on_the_page("stopped cleanly") == "nothing"


@pytest.mark.soak
def test_every_bit_of_an_active_segment_after_a_kill() -> None:
    """The former log end is unknown. A note has the bytes, and the next start cuts them off."""
    fs = written(clean=False)
    start, end = 2 * BATCH, fs.stat(path_of(20)).size
    assert end == start + BATCH
    tails = set()
    for position, _ in _flips(fs, path_of(20)):
        told = check(fs)
        if totals(told).is_sound:
            assert codes(told) == [(Severity.NOTE, Code.TORN_TAIL)], position
            tails.add(position)
    # Where the checksum fits, which leaves out 17 bytes, no crash has torn the batch: a start keeps it as damage.
    assert tails == set(range(start + 17, end))
    assert _on_the_page("killed") == f"of the last batch {_ranges(position - start for position in tails)}"


@pytest.mark.soak
def test_where_compaction_was_at_work_an_offset_may_change_unseen_without_a_checksum() -> None:
    """Gaps are normal there, so a wrong offset that is still in order looks like a right one.

    Not after a clean stop, after which the log end is known.
    """
    fs = written(24, clean=False)
    state = PartitionState.load(fs, PARTITION)
    state.compacted_before = 2**31
    state.save(fs, PARTITION)
    assert fs.stat(path_of(20)).size == 400
    unseen = {position for position, _ in _flips(fs, path_of(20)) if not findings(check(fs))}
    # Of the last batch, which no index entry names, what raises the offset within the span of a segment.
    assert unseen == {304, 305, 306, 307}
    positions = _ranges(position - 3 * BATCH for position in unseen)
    assert _on_the_page("killed, compacted") == f"of the last batch {positions}"


@pytest.mark.soak
def test_an_epoch_may_change_unseen_where_epochs_are_lost() -> None:
    """In a log that Kafka wrote and whose epochs are lost an epoch may change unseen."""
    fs = written()
    for name in ("seglog-topics.json", "commits-0/leader-epoch-checkpoint"):
        create(fs, f"{DATA}/{name}")
    fs.unlink(f"{DATA}/seglog-topics.json")
    unseen = set()
    for position, _ in _flips(fs, path_of(20)):
        seen = {code for _, code in codes(check(fs))} - {Code.REGISTRY_MISSING, Code.EPOCHS_EMPTY}
        if not seen:
            unseen.add(position)
    of_a_batch = {position % BATCH for position in unseen}
    assert unseen == {position for position in range(3 * BATCH) if position % BATCH in of_a_batch}
    assert _on_the_page("Kafka's, its epochs lost") == f"of each batch {_ranges(of_a_batch)}"


@SOME_OR_ALL
def test_every_bit_of_a_snapshot_is_watched(step: int) -> None:
    fs = written(11, covered=True)
    path = path_of(10, ".snapshot")
    create(fs, path, encode_snapshot([ProducerEntry(7, 0, 9, 9, 0, 1_700_000_000_000, -1, -1)]))
    assert findings(check(fs)) == []
    for position, _ in _flips(fs, path, step):
        assert codes(check(fs)) == [(Severity.DERIVED, Code.SNAPSHOT_WRONG)], position


@SOME_OR_ALL
def test_every_bit_of_a_transaction_index_is_watched_by_the_log(step: int) -> None:
    fs = written(11, covered=True)
    logs = opened(fs)
    log = logs.logs["commits", 0]
    end, base, epoch = log.log_end_offset, log.active.base_offset, log.leader_epoch
    logs.abandon()
    for item in (Batch(end, 3, 7), Batch(end + 3, 1, 8), Batch(end + 4, 1, 7, "ABORT"), Batch(end + 5, 1, 8, "ABORT")):
        add_bytes(fs, path_of(base), item.encoded(0, epoch))
    assert opened(fs).close() == []
    assert findings(check(fs)) == []
    path = path_of(base, ".txnindex")
    for position, _ in _flips(fs, path, step):
        assert codes(check(fs)) == [(Severity.DERIVED, Code.TXN_INDEX_WRONG)], position
    state = PartitionState.load(fs, PARTITION)
    state.compacted_before = end + 6  # the first batches of its transactions may be gone: then the log tells less
    state.save(fs, PARTITION)
    for position, _ in _flips(fs, path, step):
        assert codes(check(fs)) == [(Severity.DERIVED, Code.TXN_INDEX_WRONG)], position
    right = read_file(fs, path)
    for spoilt in (None, right[:34], right + right[34:], right + b"half an entry"):
        fs.unlink(path)
        if spoilt is not None:
            create(fs, path, spoilt)
        assert codes(check(fs)) == [(Severity.DERIVED, Code.TXN_INDEX_WRONG)]
        check(fs, repair=True)
        assert read_file(fs, path) == right
        assert findings(check(fs)) == []


def test_what_a_transaction_had_in_segments_that_retention_took_is_left_to_its_index() -> None:
    """An aborted transaction, or one that was open then, may have begun there; the log does not tell where."""
    fs = written(0)
    logs = opened(fs)
    log = logs.logs["commits", 0]
    append_in_transaction(log, 1)
    append_in_transaction(log, 2)
    log.roller.roll(log.log_end_offset, RollReason.SIZE)
    append_in_transaction(log, 1)
    append_in_transaction(log, 3)
    for producer_id in (3, 1):
        end_transaction(log, producer_id, "ABORT")
    take_oldest(log, 1)
    assert [(each.first_offset, each.last_stable_offset) for each in log.transactions.find(2, 2, 9)] == [(3, 0), (0, 1)]
    assert logs.close() == []
    assert faults(check(fs)) == []


# --- The expected bytes of indexes equal those that a segment writes, live and rebuilt, with any interval -------------


_BATCHES = st.lists(st.tuples(st.integers(0, 230), st.sampled_from([-1, 0, 5, 7, 7, 1000, 2000])), max_size=30)


@given(_BATCHES, st.integers(0, 900), st.sampled_from([24, 60, 1 << 20]))
def test_expected_indexes_equal_those_of_a_segment(
    batches: list[tuple[int, int]], interval: int, bytes_max: int
) -> None:
    disk = LogOnDisk(TopicConfig(segment_bytes=4096, index_interval_bytes=interval, segment_index_bytes=bytes_max))
    for size, timestamp in batches:
        disk.append(b"." * size, timestamp=timestamp)
    models = []
    for segment in disk.log.segments:
        model = ExpectedIndexes(segment.base_offset, interval, bytes_max)
        for position, header in batches_of(disk.fs, segment):
            model.add(position, header)
        models.append(model)
        found = IndexBytes(segment.offset_index.read(), segment.time_index.read())
        assert found == (model.live() if segment.log.is_active else model.closed())
    active = disk.log.active
    disk.log.close()
    assert IndexBytes(active.offset_index.read(), active.time_index.read()) == models[-1].closed()


@given(_BATCHES, st.integers(0, 900))
def test_the_interval_is_derived_from_the_entries(batches: list[tuple[int, int]], interval: int) -> None:
    """It may be another interval, but one that gives the same bytes."""
    disk = LogOnDisk(TopicConfig(segment_bytes=1 << 20, index_interval_bytes=interval))
    for size, timestamp in batches:
        disk.append(b"." * size, timestamp=timestamp)
    data = disk.log.active.offset_index.read()
    found = interval_of(data)
    if not data:
        assert found is None
        return
    assert found is not None
    assert found >= interval
    again = ExpectedIndexes(0, found, 1 << 20)
    for position, header in batches_of(disk.fs, disk.log.active):
        again.add(position, header)
    assert again.live() == IndexBytes(data, disk.log.active.time_index.read())


def test_entries_that_do_not_rise_give_no_interval() -> None:
    assert interval_of(bytes(8)) is None
    assert interval_of(b"") is None
