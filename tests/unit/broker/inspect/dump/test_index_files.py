"""``.index`` and ``.timeindex``: entries, padding, and the comparison with the log."""

from collections.abc import Callable

import pytest

from seglog_broker.inspect.dump.kinds import DumpOptions, facts_of
from seglog_broker.inspect.facts import FileFound, IndexTotals, OffsetEntryFound, TimeEntryFound
from seglog_broker.storage.io.filesystem import read_file
from seglog_protocol.segment_files import encode_offset_entry, encode_time_entry
from tests.logs import LogOnDisk, add_bytes, batch_of_size, cut_file, flip_bit
from tests.support import each_case
from tests.unit.broker.inspect.dump.support import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    create,
    damage,
    facts,
    notes,
    only,
    overwrite,
    small_log,
)

T0 = 1_700_000_000_000


def test_entries_of_our_own_indexes_lead_where_they_should() -> None:
    disk = small_log()
    found = facts(disk.fs, OFFSET_INDEX, verify=True)
    assert found == [
        FileFound(OFFSET_INDEX, "offset index", 32),
        *(OffsetEntryFound(n, 2 + 2 * n, 200 + 200 * n) for n in range(4)),
        IndexTotals(OFFSET_INDEX, 4, 0, verified=True),
    ]
    found = facts(disk.fs, TIME_INDEX, verify=True)
    assert found == [
        FileFound(TIME_INDEX, "time index", 60),
        *(TimeEntryFound(n, T0 + offset * 1000, offset) for n, offset in enumerate((2, 4, 6, 8, 9))),
        IndexTotals(TIME_INDEX, 5, 0, verified=True),
    ]


def test_without_verification_the_log_is_not_opened() -> None:
    disk = small_log()
    disk.fs.unlink(LOG)
    assert len(only(facts(disk.fs, OFFSET_INDEX), OffsetEntryFound)) == 4
    found = facts(disk.fs, OFFSET_INDEX, verify=True)
    assert notes(found) == ["its entries were not compared with the log: there is no .log beside it"]
    assert damage(found) == []


def test_segments_with_a_base_offset_are_told_in_absolute_offsets() -> None:
    disk = small_log(20, segment_bytes=1000)
    second = OFFSET_INDEX.replace("00.index", "10.index")
    found = facts(disk.fs, second, verify=True)
    assert [entry.offset for entry in only(found, OffsetEntryFound)] == [12, 14, 16, 18]
    assert damage(found) == []


@each_case(
    ("path", "entry", "reason"),
    [
        (OFFSET_INDEX, encode_offset_entry(4, 450), "no batch begins at 450"),
        (OFFSET_INDEX, encode_offset_entry(4, 1000), "no batch begins at 1000, the log ends at 1000"),
        (OFFSET_INDEX, encode_offset_entry(3, 400), "the batch at 400 has offsets 4 to 4"),
        (OFFSET_INDEX, encode_offset_entry(2, 400), "its offset is not above the one before"),
        (OFFSET_INDEX, encode_offset_entry(4, 200), "its position is not above the one before"),
        (OFFSET_INDEX, encode_offset_entry(-4, 400), "it is negative"),
        (TIME_INDEX, encode_time_entry(T0 + 4000, 44), "the log has no batch with offset 44"),
        (TIME_INDEX, encode_time_entry(T0 + 3000, 4), f"the log has the later timestamp {T0 + 4000} up to offset 4"),
        (
            TIME_INDEX,
            encode_time_entry(T0 + 5000, 4),
            f"the largest timestamp of the batch with offset 4 is {T0 + 4000}",
        ),
        (TIME_INDEX, encode_time_entry(T0 + 2000, 4), "its timestamp is not above the one before"),
        (TIME_INDEX, encode_time_entry(T0 + 4000, 1), "its offset is below the one before"),
        (TIME_INDEX, encode_time_entry(-5, 4), "it is negative"),
    ],
)
def test_an_entry_that_says_otherwise_than_the_log_is_damage(path: str, entry: bytes, reason: str) -> None:
    disk, size = small_log(), len(entry)
    overwrite(disk.fs, path, size, entry)
    assert damage(facts(disk.fs, path, verify=True))[0] == (size, 2 * size, f"entry 1: {reason}")


def test_an_entry_for_several_batches_as_old_kafka_wrote_them_is_no_damage() -> None:
    disk = small_log()
    create(disk.fs, OFFSET_INDEX, encode_offset_entry(5, 200) + encode_offset_entry(9, 600))
    found = facts(disk.fs, OFFSET_INDEX, verify=True)
    assert damage(found) == []
    assert [entry.problem for entry in only(found, OffsetEntryFound)] == [
        "it names the end of several batches, as Kafka before 4.0 wrote it"
    ] * 2


def test_one_wrong_entry_does_not_spoil_the_next() -> None:
    disk = small_log()
    overwrite(disk.fs, OFFSET_INDEX, 8, encode_offset_entry(900, 90_000))
    found = damage(facts(disk.fs, OFFSET_INDEX, verify=True))
    assert found[0] == (8, 16, "entry 1: no batch begins at 90000, the log ends at 1000")
    assert len(found) == 3  # behind the end of the log nothing can be compared any more


def test_entries_beyond_damage_in_the_log_are_still_compared() -> None:
    disk = small_log()
    overwrite(disk.fs, LOG, 300, b"\xab" * 100)
    assert damage(facts(disk.fs, OFFSET_INDEX, verify=True)) == []
    overwrite(disk.fs, LOG, 400, b"\xab" * 100)
    assert damage(facts(disk.fs, OFFSET_INDEX, verify=True)) == [(8, 16, "entry 1: no batch begins at 400")]


@pytest.mark.parametrize("path", [OFFSET_INDEX, TIME_INDEX])
def test_half_an_entry_is_damage(path: str) -> None:
    disk = small_log()
    size = disk.fs.stat(path).size
    add_bytes(disk.fs, path, b"\1\2\3")
    found = facts(disk.fs, path)
    assert damage(found) == [(size, size + 3, "half an entry")]


@pytest.mark.parametrize("path", [OFFSET_INDEX, TIME_INDEX])
def test_zeros_behind_the_entries_are_padding_and_no_damage(path: str) -> None:
    disk = small_log()
    add_bytes(disk.fs, path, bytes(120_000))
    found = facts(disk.fs, path, verify=True)
    assert damage(found) == []
    (totals,) = only(found, IndexTotals)
    assert (totals.entries, totals.padding_bytes) == (4 if path == OFFSET_INDEX else 5, 120_000)
    assert notes(found)[0].startswith("120000 bytes of zeros follow the entries")


def test_zeros_between_entries_are_damage_told_once() -> None:
    disk = small_log()
    entries = read_file(disk.fs, OFFSET_INDEX)
    create(disk.fs, OFFSET_INDEX, entries[:8] + bytes(80_000) + entries[8:])
    assert damage(facts(disk.fs, OFFSET_INDEX, verify=True))[:1] == [(8, 65536, "only zeros, and entries follow")]


def test_an_only_entry_of_zeros_is_an_entry() -> None:
    """The last time index entry of a segment with one batch at offset 0, whose record has timestamp 0."""
    disk = LogOnDisk()
    disk.append_batch(batch_of_size(100, timestamp=0))
    disk.log.close()
    assert read_file(disk.fs, TIME_INDEX) == bytes(12)
    found = facts(disk.fs, TIME_INDEX, verify=True)
    assert only(found, TimeEntryFound) == [TimeEntryFound(0, 0, 0)]
    assert damage(found) == []


def test_an_empty_index_is_in_order() -> None:
    disk = small_log(1)
    assert facts(disk.fs, OFFSET_INDEX, verify=True) == [
        FileFound(OFFSET_INDEX, "offset index", 0),
        IndexTotals(OFFSET_INDEX, 0, 0, verified=True),
    ]


@pytest.mark.parametrize(("path", "entry"), [(OFFSET_INDEX, (12, 1200)), (TIME_INDEX, (T0 + 12_000, 12))])
def test_entries_of_batches_that_were_appended_meanwhile_are_no_damage(path: str, entry: tuple[int, int]) -> None:
    disk = small_log(11)
    encode: Callable[[int, int], bytes] = encode_offset_entry if path == OFFSET_INDEX else encode_time_entry
    cut_file(disk.fs, LOG, 900)
    add_bytes(disk.fs, path, encode(*entry))
    walk = facts_of(disk.fs, path, DumpOptions(verify=True))
    found = [next(walk), next(walk)]  # the log is open, its size is known
    add_bytes(disk.fs, LOG, b"more")
    found += walk
    assert damage(found) == []


def test_no_bit_of_an_offset_index_can_turn_unseen() -> None:
    disk = small_log()
    for position in range(disk.fs.stat(OFFSET_INDEX).size):
        flip_bit(disk.fs, OFFSET_INDEX, position)
        found = facts(disk.fs, OFFSET_INDEX, verify=True)
        assert damage(found) or any(entry.problem for entry in only(found, OffsetEntryFound))
        flip_bit(disk.fs, OFFSET_INDEX, position)
