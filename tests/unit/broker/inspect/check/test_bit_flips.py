"""Flips every single bit of a small log directory, one at a time: which flips a check finds, and which it cannot."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest

from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.inspect.check.directory import RefusedError
from seglog_broker.inspect.findings import Code, Severity
from seglog_broker.storage.directory.accounts import AccountStore, Change, Credential
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.storage.io.filesystem import read_file, write_file_atomically
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.steps import finished
from seglog_protocol.transaction_files import ProducerEntry, encode_snapshot
from tests.logs import add_bytes, flip_bit
from tests.support import REPOSITORY, SOME_OR_ALL
from tests.unit.broker.inspect.check.support import (
    DATA,
    PARTITION,
    append,
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
from tests.unit.broker.storage.log.transactions import Batch

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


# --- Small files ------------------------------------------------------------------------------------------------------

_SMALL_FILES = (
    "commits-0/partition.metadata",
    "commits-0/leader-epoch-checkpoint",
    "commits-0/seglog-partition.json",
    "seglog-topics.json",
    "seglog-producer-ids.json",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "seglog-format",
    "seglog-configs.json",
    "seglog-accounts.json",
)
"""All but ``meta.properties``, of which nothing else speaks, and the clean marker, of which only the name counts."""


def _with_small_files(*, clean: bool) -> ForgetfulFileSystem:
    """A directory with epochs 0 to 2, a log start within a segment, a block of producer ids, and a setting."""
    fs = written(3, clean=False)
    dynamic = DynamicConfig({"1": {"num.partitions": "3"}})
    write_file_atomically(fs, "/data/seglog-configs.json", encode_dynamic_configs(dynamic))
    made = Credential("SCRAM-SHA-256", 4096, b"salty", b"S" * 32, b"V" * 32)
    accounts = AccountStore(fs, "/data/seglog-accounts.json")
    accounts.write(finished(accounts.planned([Change("alice", made.mechanism, made)])))
    for number in range(2):
        logs = opened(fs)
        log = logs.logs["commits", 0]
        for count in range(5):
            append(log, 10 * number + count)
        log.flusher.flush()
        if number:
            assert log.truncate_before(2) == 2
            logs.producer_ids.next_block().run()
            for path, content in logs.partitions.encoded_checkpoints():
                write_file_atomically(fs, path, content)
            if clean:
                assert logs.close() == []
                return fs
        logs.abandon()
    return fs


@pytest.mark.parametrize("name", _SMALL_FILES)
@SOME_OR_ALL
def test_every_bit_of_a_small_file_is_watched_after_a_stop_in_order(name: str, step: int) -> None:
    fs = _with_small_files(clean=True)
    assert findings(check(fs)) == []
    unseen = {(position, bit) for position, bit in _some_flips(fs, name, step) if _passes(fs)}
    assert unseen == set()


@pytest.mark.parametrize("name", _SMALL_FILES[:5:2] + _SMALL_FILES[3:5])
@SOME_OR_ALL
def test_every_bit_of_a_small_file_is_watched_after_a_kill(name: str, step: int) -> None:
    """Of those that follow from others or have a checksum."""
    fs = _with_small_files(clean=False)
    assert faults(check(fs)) == []
    unseen = {(position, bit) for position, bit in _some_flips(fs, name, step) if _passes(fs)}
    assert unseen == set()


def _some_flips(fs: ForgetfulFileSystem, name: str, step: int) -> Iterator[tuple[int, int]]:
    """Every bit, but of JSON one in each byte: its checksum is tested for every bit by itself."""
    for position, bit in _flips(fs, f"{DATA}/{name}", step):
        if not name.endswith(".json") or bit == position % 8:
            yield position, bit


def _passes(fs: ForgetfulFileSystem) -> bool:
    try:
        return totals(check(fs)).is_sound
    except RefusedError:
        return False
