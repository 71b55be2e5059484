"""``.log`` files: the facts of valid batches, and that damage is reported and skipped."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.inspect.dump.kinds import DumpOptions, facts_of
from seglog_broker.inspect.facts import Batch, FileFound, LogTotals, RecordFound
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import BatchHeader, rewrite_offset_and_epoch, seal_batch
from tests.logs import LogOnDisk, add_bytes, batch, batch_of_size, cut_file, flip_bit
from tests.support import each_case
from tests.unit.broker.inspect.dump.support import LOG, damage, facts, notes, only, overwrite, small_log
from tests.unit.protocol import golden


def test_every_batch_of_our_own_log_is_shown_with_its_position() -> None:
    disk = LogOnDisk()
    disk.append(b"one", b"two", timestamp=1000, key=b"k")
    disk.append_batch(encode_batch([(2000, None, b"three", ())], codec=Codec.ZSTD))
    found = facts(disk.fs, LOG)
    file, first, second, totals = found
    size = disk.fs.stat(LOG).size
    assert file == FileFound(LOG, "segment log", size)
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert (first.position, first.base_offset, first.last_offset, first.record_count) == (0, 0, 1, 2)
    assert (first.codec, first.timestamp_type, first.max_timestamp, first.leader_epoch) == (
        "none",
        "CreateTime",
        1000,
        0,
    )
    assert (first.crc_ok, first.problem, first.delete_horizon, first.producer_id) == (True, None, None, -1)
    assert (second.position, second.base_offset, second.codec) == (first.size, 2, "zstd")
    assert totals == LogTotals(LOG, 2, 3, 3, 2000, 0)


def test_fields_of_producers_and_compaction_are_shown() -> None:
    disk = LogOnDisk()
    add_bytes(disk.fs, LOG, golden.IDEMPOTENT_COMPACTED)
    (first,) = only(facts(disk.fs, LOG), Batch)
    assert (first.producer_id, first.producer_epoch, first.base_sequence, first.last_sequence) == (42, 1, 10, 11)
    assert (first.delete_horizon, first.record_count, first.leader_epoch) == (5100, 1, 3)


def test_records_come_after_their_batch() -> None:
    disk = LogOnDisk()
    for codec in Codec:
        disk.append_batch(encode_batch([(5, b"k", b"v", (("h", None),)), (6, None, None, ())], codec=codec))
    found = facts(disk.fs, LOG, records=True)
    assert [type(fact) for fact in found[1:-1]] == [Batch, RecordFound, RecordFound] * len(Codec)
    assert only(found, RecordFound)[:2] == [
        RecordFound(0, 5, b"k", b"v", (("h", None),)),
        RecordFound(1, 6, None, None, ()),
    ]


def test_end_markers_are_shown_in_words() -> None:
    disk = LogOnDisk()
    add_bytes(disk.fs, LOG, golden.COMMIT_MARKER)
    (record,) = only(facts(disk.fs, LOG, records=True), RecordFound)
    assert (record.offset, record.marker, record.coordinator_epoch) == (7, "COMMIT", 9)


def test_a_batch_with_a_wrong_checksum_is_shown_and_named() -> None:
    disk = small_log()
    flip_bit(disk.fs, LOG, 380)
    found = facts(disk.fs, LOG)
    batches = only(found, Batch)
    assert [(b.position, b.crc_ok) for b in batches] == [(n * 100, n != 3) for n in range(10)]
    assert damage(found) == [(300, 400, "its checksum does not match")]
    assert found.index(batches[3]) + 1 == found.index(next(fact for fact in found if fact.kind == "damage"))
    assert only(found, LogTotals) == [LogTotals(LOG, 9, 9, 10, 1_700_000_009_000, 100)]


@each_case(
    ("hurt", "found"),
    [
        (
            lambda fs: overwrite(fs, LOG, 300, b"\xab" * 150),
            (300, 500, "no batch begins here: its magic is -85, not 2"),
        ),
        (
            lambda fs: cut_file(fs, LOG, 920),
            (900, 920, "20 bytes, fewer than the 61 of a batch header; no valid batch follows"),
        ),
        (
            lambda fs: cut_file(fs, LOG, 999),
            (900, 999, "the header announces a batch of 100 bytes, only 99 are there; no valid batch follows"),
        ),
    ],
)
def test_invalid_bytes_and_a_torn_tail_are_damage_and_skipped(
    hurt: Callable[[FileSystem], None], found: tuple[int, int, str]
) -> None:
    disk = small_log()
    hurt(disk.fs)
    told = facts(disk.fs, LOG)
    assert damage(told) == [found]
    whole = [position for position in range(0, 1000, 100) if not found[0] <= position < found[1]]
    assert [one.position for one in only(told, Batch)] == whole


def test_preallocated_space_is_named_as_such() -> None:
    disk = small_log()
    add_bytes(disk.fs, LOG, bytes(3_000_000))
    (found,) = damage(facts(disk.fs, LOG))
    assert found[:2] == (1000, 3_001_000)
    assert found[2].startswith("only zeros")


def test_a_log_that_grows_meanwhile_is_no_damage() -> None:
    disk = LogOnDisk()
    for _ in range(3):
        disk.append_batch(batch_of_size(100))
    on_its_way = bytearray(batch_of_size(100))
    rewrite_offset_and_epoch(on_its_way, 0, 3, 0)
    add_bytes(disk.fs, LOG, bytes(on_its_way[:80]))
    walk = facts_of(disk.fs, LOG, DumpOptions())
    found = [next(walk)]
    add_bytes(disk.fs, LOG, bytes(on_its_way[80:]))
    found += walk
    assert damage(found) == []
    assert len(only(found, Batch)) == 3
    assert notes(found) == ["it grew from 380 to 400 bytes while it was read: a broker is writing to it"]


@pytest.mark.parametrize("position", [7, 3])
def test_an_offset_that_was_changed_is_damage_though_no_checksum_covers_it(position: int) -> None:
    """Set to 1 or raised by 2^32: reported once, and the batches after it are not affected."""
    disk = small_log()
    overwrite(disk.fs, LOG, 500 + position, b"\1")
    found = facts(disk.fs, LOG)
    assert len(only(found, Batch)) == 10
    assert [where[:2] for where in damage(found)] == [(500, 600)]


def test_an_offset_below_the_segments_is_damage() -> None:
    disk = small_log(3)
    moved = LOG.replace("00.log", "02.log")
    disk.fs.rename(LOG, moved)
    assert [reason for _, _, reason in damage(facts(disk.fs, moved))] == [
        "its base offset 0 lies below the segment's, 2",
        "its base offset 1 lies below the segment's, 2",
    ]


def test_records_that_cannot_be_opened_are_damage_of_their_batch_only() -> None:
    disk = LogOnDisk()
    disk.append(b"good")
    spoilt = seal_batch(BatchHeader(1, 0, 0, 2, 0, int(Codec.ZSTD), 0, 5, 5, -1, -1, -1, 1), b"no such stream")
    add_bytes(disk.fs, LOG, spoilt)
    after = bytearray(batch(b"after"))
    rewrite_offset_and_epoch(after, 0, 2, 0)
    add_bytes(disk.fs, LOG, bytes(after))
    assert damage(facts(disk.fs, LOG)) == []
    found = facts(disk.fs, LOG, records=True)
    assert [record.value for record in only(found, RecordFound)] == [b"good", b"after"]
    ((start, _, reason),) = damage(found)
    assert start == only(found, Batch)[1].position
    assert reason.startswith("its records cannot be read: ")


def test_a_bomb_is_refused_within_bounds() -> None:
    disk = LogOnDisk(TopicConfig())
    add_bytes(disk.fs, LOG, encode_batch([(1, None, bytes(65 << 20), ())], codec=Codec.ZSTD))
    ((_, _, reason),) = damage(facts(disk.fs, LOG, records=True))
    assert "67108864 bytes" in reason


@given(st.data())
def test_every_byte_of_a_damaged_log_is_shown_exactly_once(data: st.DataObject) -> None:
    """Batches and damaged ranges cover the file without a hole, and all unchanged batches are shown."""
    disk = small_log(6)
    position = data.draw(st.integers(0, 599))
    spoilt = data.draw(st.binary(min_size=1, max_size=min(150, 600 - position)))
    before = read_file(disk.fs, LOG)
    overwrite(disk.fs, LOG, position, spoilt)
    now = read_file(disk.fs, LOG)
    touched = {at // 100 for at in range(600) if before[at] != now[at]}
    found = facts(disk.fs, LOG)
    good = {b.position: b.position + b.size for b in only(found, Batch) if b.crc_ok}
    bad = {start: end for start, end, reason in damage(found) if start is not None and start not in good}
    stretches = sorted((good | bad).items())
    assert [start for start, _ in stretches] == [0, *(end for _, end in stretches[:-1])]
    assert stretches[-1][1] == 600
    if not any(before[at] != now[at] and at % 100 < 21 for at in range(600)):  # what no checksum covers
        assert {100 * number for number in range(6) if number not in touched} <= set(good)
