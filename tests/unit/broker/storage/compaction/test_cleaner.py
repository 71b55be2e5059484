"""The rules of compaction one by one, and all of them beside a simple model."""

import dataclasses
import errno
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seglog_broker.storage.compaction.cleaner import clean
from seglog_broker.storage.compaction.job import UNREADABLE, CleaningJob, SourceSegment
from seglog_broker.storage.compaction.offset_map import ENTRY_BYTES
from seglog_broker.storage.compaction.source import PIECE_BYTES_MAX
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, Fault, ForgetfulFileSystem
from seglog_broker.workers.jobs import CLEANING
from seglog_broker.workers.messages import answer_line, decoded, parse_reply, parse_request, request_line
from seglog_protocol import segment_files as names
from seglog_protocol.batch_builder import NewRecord, compacted_batch, encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, rewrite_offset_and_epoch, seal_batch
from seglog_protocol.records import Record, decode_records
from seglog_protocol.transaction_files import TXN_INDEX_ENTRY, AbortedTransaction
from tests.cleaning import DIRECTORY, NOW, RETENTION, Log, run
from tests.logs import add_bytes, flip_bit, old_message
from tests.support import each_case, examples
from tests.unit.protocol import golden

_PRODUCER = 42


def _batch(log: Log, *rows: tuple[bytes | None, bytes | None], at: int | None = None, **fields: int | Codec) -> bytes:
    """Records with these keys and values at the log's end, or at ``at``."""
    records: list[NewRecord] = [(NOW - 1000 + number, key, value, ()) for number, (key, value) in enumerate(rows)]
    return encode_batch(records, base_offset=log.end if at is None else at, **fields)  # type: ignore[arg-type]


def _roll(log: Log, *keys: bytes, **fields: int) -> None:
    """A closed segment with a batch for each key."""
    first = log.end
    log.roll([_batch(log, (key, b"at %d" % (first + n)), at=first + n, **fields) for n, key in enumerate(keys)])


def _seen(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in log.records()]


def _left(log: Log) -> list[tuple[int, int, int]]:
    """(base offset, last offset, records) of every batch."""
    return [(header.base_offset, header.last_offset, header.record_count) for header, _ in log.batches()]


def _marker(log: Log, *, commit: bool, epoch: int = 1, producer: int = _PRODUCER, offset: int | None = None) -> bytes:
    base = golden.COMMIT_MARKER
    header = parse_header(base)._replace(
        base_offset=log.end if offset is None else offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_timestamp=NOW - 1000,
        max_timestamp=NOW - 1000,
    )
    records = bytearray(base[HEADER_SIZE:])
    records[8] = int(commit)  # the low byte of the key's type
    return seal_batch(header, bytes(records))


# --- Golden vectors ---------------------------------------------------------------------------------------------------


@each_case(
    ("row", "kept", "cleaned"),
    [
        ((b"x", b"y"), {"delete_retention_ms": 100}, golden.IDEMPOTENT_COMPACTED),
        ((b"k", b"new"), {}, golden.IDEMPOTENT_EMPTIED),
    ],
)
def test_a_cleaned_batch_is_kafkas_byte_for_byte(
    row: tuple[bytes, bytes], kept: dict[str, int], cleaned: bytes
) -> None:
    log = Log()
    log.roll([golden.IDEMPOTENT], base=5)
    log.roll([_batch(log, row, at=7)])
    result = log.clean(now_ms=5000, **kept)
    assert next(batch for _, batch in log.batches()) == cleaned
    assert result.keyless == 1
    assert result.tombstones_kept == len(kept)


# --- Which records stay -----------------------------------------------------------------------------------------------


@each_case("codec", list(Codec))
def test_a_rewritten_batch_is_what_the_reference_makes_of_its_records(codec: Codec) -> None:
    log = Log()
    rows: list[NewRecord] = [(NOW - 10**n, b"k%d" % n, bytes(n * 30), [("h", b"x" * n)]) for n in range(12)]
    batch = encode_batch(rows, codec=codec)
    log.roll([batch, _batch(log, *((b"k%d" % n, b"new") for n in (0, 3, 4, 11)), at=12)])
    log.clean()
    header = parse_header(batch)
    kept = [record for record in decode_records(header, batch) if record.offset not in {0, 3, 4, 11}]
    assert log.batches()[0][1] == compacted_batch(header, kept)


@pytest.mark.parametrize("horizon", [False, True])
def test_records_with_the_time_of_their_append_keep_it(horizon: bool) -> None:
    log = Log()
    rows: list[NewRecord] = [(5, b"a", b"1", ()), (9, b"b", None if horizon else b"2", ())]
    batch = encode_batch(rows, log_append_time=777)
    log.roll([batch, _batch(log, (b"a", b"3"), at=2)])
    log.clean()
    header = parse_header(batch)
    kept = decode_records(header, batch)[1:]
    assert log.batches()[0][1] == compacted_batch(header, kept, delete_horizon=NOW + RETENTION if horizon else None)
    assert log.records()[0].timestamp == 777


def test_a_key_equal_to_a_markers_key_does_not_remove_the_marker() -> None:
    log = Log()
    log.roll([_batch(log, (b"k", b"v"), producer_id=_PRODUCER, producer_epoch=1, transactional=True)])
    log.roll([_marker(log, commit=True)])
    log.roll([_batch(log, (b"\x00\x00\x00\x01", b"user's"))])
    log.clean()
    assert [header.is_control for header, _ in log.batches()] == [False, True, False]


# --- Tombstones -------------------------------------------------------------------------------------------------------


def test_tombstones_that_stay_until_their_horizon_and_then_go_are_counted() -> None:
    log = Log()
    log.roll([_batch(log, (b"b", b"x"), (b"a", None))])
    _roll(log, b"end")
    for now, counts in ((NOW, (1, 0)), (NOW + RETENTION - 1, (1, 0)), (NOW + RETENTION, (0, 1))):
        result = log.clean(now_ms=now)
        assert (result.tombstones_kept, result.tombstones_dropped) == counts
        assert log.batches()[0][0].delete_horizon == NOW + RETENTION


# --- The map ----------------------------------------------------------------------------------------------------------


def test_gaps_between_segments_are_stepped_over() -> None:
    log = Log()
    _roll(log, b"a")
    log.roll([_batch(log, (b"a", b"2"), at=100)], base=100)
    assert log.clean(upper_bound=100).first_dirty == 100
    assert log.clean(first_dirty=100, upper_bound=500).first_dirty == 500


# --- Groups -----------------------------------------------------------------------------------------------------------


def test_small_segments_are_merged_up_to_the_size_of_one() -> None:
    log = Log()
    for number in range(6):
        _roll(log, b"k%d" % number)
    size = log.fs.stat(log.path(0)).size
    result = log.clean(segment_bytes=2 * size)
    assert [group.sources for group in result.groups] == [(0, 1), (2, 3), (4, 5)]
    assert [group.bytes_before for group in result.groups] == [2 * size] * 3
    log.verify()


def test_index_sizes_limit_a_group_too() -> None:
    log = Log()
    for _ in range(4):
        _roll(log, *(b"k%d" % (log.end + n) for n in range(6)))
    size = log.fs.stat(log.path(0, names.OFFSET_INDEX_SUFFIX)).size
    assert size > log.fs.stat(log.path(0, names.TIME_INDEX_SUFFIX)).size > 0
    result = log.clean(segment_index_bytes=2 * size)
    assert [len(group.sources) for group in result.groups] == [2, 2]


@each_case(
    ("rows", "base", "end", "groups"),
    [
        ([(b"b", b"1")], 2**31 - 1, 2**31, [(0, 2**31 - 1)]),
        ([(b"b", b"1")], 2**31, 2**31 + 1, [(0,), (2**31,)]),
        ([], 2**32, 2**33, [(0, 2**32)]),  # an empty segment merges however far away
    ],
)
def test_segments_merge_as_long_as_relative_offsets_fit(
    rows: list[tuple[bytes, bytes]], base: int, end: int, groups: list[tuple[int, ...]]
) -> None:
    log = Log()
    _roll(log, b"a")
    log.roll([_batch(log, row, at=base) for row in rows], base=base)
    log.end = end
    assert [group.sources for group in log.clean().groups] == groups
    log.verify()


def test_what_is_clean_already_is_left_alone() -> None:
    log = Log()
    _roll(log, b"a", b"b")
    assert isinstance(log.fs, ForgetfulFileSystem)
    before = log.fs.snapshot()
    result = log.clean()
    assert [group.unchanged for group in result.groups] == [True]
    assert log.fs.snapshot() == before


def test_new_files_are_as_old_as_their_last_source_and_all_on_the_disk() -> None:
    fs = ForgetfulFileSystem(now_ms=99)
    log = Log(fs)
    for number in range(3):
        _roll(log, b"k")
        fs.set_mtime(log.path(number), 1000 + number)
    result = run(fs, log.job())
    fs.sync_directory("/")
    fs.sync_directory(DIRECTORY)
    left = fs.crash(POWER_LOSS).snapshot()
    for suffix in (names.LOG_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX):
        path = log.path(0, suffix) + names.CLEANED_SUFFIX
        assert path in left
        assert suffix != names.LOG_SUFFIX or len(left[path]) == result.groups[0].bytes_after
    again = Log(fs := ForgetfulFileSystem(now_ms=99))
    for number in range(2):
        _roll(again, b"k")
        fs.set_mtime(again.path(number), 1000 + number)
    again.clean()
    assert {fs.stat(again.path(0, s)).mtime_ms for s in names.SEGMENT_SUFFIXES if fs.exists(again.path(0, s))} == {1001}


def test_a_dry_run_finds_the_same_and_writes_nothing() -> None:
    log = Log()
    _roll(log, b"a", b"b", b"a")
    _roll(log, b"a", b"c")
    assert isinstance(log.fs, ForgetfulFileSystem)
    operations = len(log.fs.operations)
    told = run(log.fs, log.job(dry_run=True))
    assert len(log.fs.operations) == operations
    done = run(log.fs, log.job())
    assert told.bytes_written == 0 < done.bytes_written
    assert dataclasses.replace(done, bytes_written=0) == told
    assert [(loss.base_offset, loss.records) for loss in told.losses] == [(0, 2), (3, 0)]


# --- Producers and transactions ---------------------------------------------------------------------------------------


def _idempotent(log: Log, key: bytes, sequence: int, *, at: int | None = None, transactional: bool = False) -> bytes:
    fields = {"producer_id": _PRODUCER, "producer_epoch": 1, "transactional": transactional}
    return _batch(log, (key, b"v"), at=at, base_sequence=sequence, **fields)


def test_the_last_batch_of_a_producer_stays_empty_until_it_writes_again() -> None:
    log = Log()
    log.roll([_idempotent(log, b"k", 0)])
    _roll(log, b"k", b"x")
    first_dirty = log.clean().first_dirty
    assert _left(log) == [(0, 0, 0), (1, 1, 1), (2, 2, 1)]
    assert log.batches()[0][0].last_sequence == 0
    log.roll([_idempotent(log, b"y", 1)])
    log.clean(first_dirty=first_dirty)
    assert _left(log) == [(1, 1, 1), (2, 2, 1), (3, 3, 1)]


def test_a_later_batch_above_the_upper_bound_counts_and_an_expired_producer_does_not() -> None:
    log = Log()
    log.roll([_idempotent(log, b"k", 0)])
    _roll(log, b"k")
    log.roll([_idempotent(log, b"y", 1)])
    log.clean(upper_bound=2)
    assert _left(log) == [(1, 1, 1), (2, 2, 1)]
    other = Log()
    other.roll([_idempotent(other, b"k", 0)])
    _roll(other, b"k")
    other.clean(producer_id_expiration_ms=1000)
    assert _left(other) == [(1, 1, 1)]


def _index(log: Log, base: int) -> list[AbortedTransaction]:
    path = log.path(base, names.TXN_INDEX_SUFFIX)
    if not log.fs.exists(path):
        return []
    return [AbortedTransaction._make(fields) for fields in TXN_INDEX_ENTRY.iter_unpack(read_file(log.fs, path))]


def _aborted_log() -> Log:
    """An aborted transaction at 0 and 2 with its marker at 3, a record of another producer at 1, a second segment."""
    log = Log()
    log.roll(
        [
            _idempotent(log, b"k", 0, transactional=True),
            _batch(log, (b"k", b"good"), at=1),
            _idempotent(log, b"m", 1, at=2, transactional=True),
            _marker(log, commit=False, offset=3),
        ]
    )
    entry = AbortedTransaction(0, _PRODUCER, 0, 3, 4)
    add_bytes(log.fs, log.path(0, names.TXN_INDEX_SUFFIX), TXN_INDEX_ENTRY.pack(*entry))
    _roll(log, b"end")
    return log


def test_aborted_records_go_and_never_hide_good_ones() -> None:
    log = _aborted_log()
    log.clean(segment_bytes=1)
    # The last batch of its producer stays without its records; so does the marker, whose transaction left batches.
    assert _left(log) == [(1, 1, 1), (2, 2, 0), (3, 3, 1), (4, 4, 1)]
    assert [row[1:] for row in _seen(log) if row[0] == 1] == [(b"k", b"good")]
    assert _index(log, 0) == [AbortedTransaction(0, _PRODUCER, 0, 3, 4)]
    assert not log.batches()[2][0].has_delete_horizon
    log.verify()


def test_an_abort_marker_goes_after_its_batches_and_its_horizon() -> None:
    log = _aborted_log()
    gone = {"producer_id_expiration_ms": 0, "segment_bytes": 1}
    first_dirty = log.clean(**gone).first_dirty
    assert _left(log) == [(1, 1, 1), (3, 3, 1), (4, 4, 1)]
    log.clean(first_dirty=first_dirty, now_ms=NOW + 5, **gone)
    assert log.batches()[1][0].delete_horizon == NOW + 5 + RETENTION
    assert _index(log, 0) == []
    log.clean(first_dirty=first_dirty, now_ms=NOW + 5 + RETENTION - 1, **gone)
    assert len(_left(log)) == 3
    log.clean(first_dirty=first_dirty, now_ms=NOW + 5 + RETENTION, **gone)
    assert _left(log) == [(1, 1, 1), (4, 4, 1)]


def test_a_transaction_that_ends_in_a_later_segment_is_known_as_aborted() -> None:
    log = Log()
    log.roll([_batch(log, (b"k", b"good")), _idempotent(log, b"k", 0, at=1, transactional=True)])
    log.roll([_marker(log, commit=False)])
    entry = AbortedTransaction(0, _PRODUCER, 1, 2, 3)
    add_bytes(log.fs, log.path(2, names.TXN_INDEX_SUFFIX), TXN_INDEX_ENTRY.pack(*entry))
    log.clean(upper_bound=2)
    assert _left(log) == [(0, 0, 1), (1, 1, 0), (2, 2, 1)]
    assert _index(log, 2) == [entry]


def test_a_commit_marker_goes_when_no_batch_of_its_transaction_is_left() -> None:
    log = Log()
    log.roll([_idempotent(log, b"k", 0, transactional=True), _marker(log, commit=True, offset=1)])
    _roll(log, b"k", b"end")
    gone = {"producer_id_expiration_ms": 0}
    first_dirty = log.clean(**gone).first_dirty
    assert _left(log) == [(1, 1, 1), (2, 2, 1), (3, 3, 1)]
    log.clean(first_dirty=first_dirty, **gone)
    assert log.batches()[0][0].delete_horizon == NOW + RETENTION
    log.clean(first_dirty=first_dirty, now_ms=NOW + RETENTION, **gone)
    assert _left(log) == [(2, 2, 1), (3, 3, 1)]


def test_a_marker_that_alone_has_its_producers_epoch_stays_as_an_empty_batch() -> None:
    log = Log()
    log.roll([_idempotent(log, b"k", 0, transactional=True), _marker(log, commit=True, epoch=2, offset=1)])
    _roll(log, b"k", b"end")
    first_dirty = log.clean().first_dirty
    log.clean(first_dirty=first_dirty)
    log.clean(first_dirty=first_dirty, now_ms=NOW + RETENTION, producer_id_expiration_ms=2 * RETENTION)
    assert _left(log) == [(1, 1, 0), (2, 2, 1), (3, 3, 1)]
    assert log.batches()[0][0].producer_epoch == 2


# --- Damage -----------------------------------------------------------------------------------------------------------


def _damaged_log() -> tuple[Log, bytes]:
    """Three batches of which the second has a flipped bit, and the bytes of that one."""
    log = Log()
    _roll(log, b"a")
    batches = [_batch(log, (b"a", b"1" * 50)), _batch(log, (b"b", b"2" * 50), at=2), _batch(log, (b"c", b"3"), at=3)]
    log.roll(batches)
    _roll(log, b"a")
    position = len(batches[0]) + len(batches[1]) - 5
    flip_bit(log.fs, log.path(1), position)
    return log, read_file(log.fs, log.path(1))[len(batches[0]) :][: len(batches[1])]


def _known(log: Log, spoilt: bytes) -> None:
    start = read_file(log.fs, log.path(1)).index(spoilt)
    log.damaged[1] = [DamagedRange(2, 3, 1, start, start + len(spoilt))]


def _no_header(log: Log, spoilt: bytes) -> None:
    with log.fs.open(log.path(1), writable=True) as file:
        file.pwritev([b"\xff" * HEADER_SIZE], read_file(log.fs, log.path(1)).index(spoilt))


@each_case(
    ("hurt", "ends"),
    [
        (lambda _log, _spoilt: None, [3]),
        (_known, [3]),
        (_no_header, [3]),
        (lambda log, _: add_bytes(log.fs, log.path(1), b"torn" * 30), [3, 4]),
    ],
)
def test_damaged_bytes_stay_in_their_place_and_are_reported_there(
    hurt: Callable[[Log, bytes], None], ends: list[int]
) -> None:
    log, spoilt = _damaged_log()
    hurt(log, spoilt)
    before = read_file(log.fs, log.path(1))
    (group,) = log.clean().groups
    assert [hole.end_offset for hole in group.damaged] == ends
    hole = group.damaged[0]
    assert (hole.start_offset, hole.segment, hole.reason) == (2, 0, "damaged")
    for hole in group.damaged:
        assert read_file(log.fs, log.path(0))[hole.position : hole.end_position] in before
    assert len(spoilt) == group.damaged[0].end_position - group.damaged[0].position
    assert _seen(log) == [(3, b"c", b"3"), (4, b"a", b"at 4")]
    log.verify()


def test_messages_of_kafkas_old_formats_stay_as_they_are() -> None:
    log = Log()
    _roll(log, b"a")
    _roll(log, b"a", b"b")
    messages = old_message(3) + old_message(4)
    add_bytes(log.fs, log.path(1), messages)
    log.roll([_batch(log, (b"a", b"1"), at=5)], base=5)
    [hole] = log.clean().groups[0].damaged
    assert (hole.start_offset, hole.end_offset) == (3, 5)
    assert read_file(log.fs, log.path(0))[hole.position : hole.end_position] == messages


def test_a_wrong_offset_under_a_right_checksum_is_damage_and_nothing_else_is() -> None:
    log = Log()
    batches = [bytearray(_batch(log, (b"k%d" % n, b"v"), at=n)) for n in range(4)]
    log.roll([bytes(batch) for batch in batches])
    _roll(log, b"end")
    rewrite_offset_and_epoch(batches[1], 0, 3, 0)
    with log.fs.open(log.path(0), writable=True) as file:
        file.pwritev([batches[1]], len(batches[0]))
    result = log.clean()
    assert [(hole.start_offset, hole.end_offset) for hole in result.groups[0].damaged] == [(1, 2)]
    log.damaged[0] = list(result.groups[0].damaged)
    assert result.records_kept == 4


@pytest.mark.parametrize("kind", ["unreadable records", "bomb"])
def test_a_batch_that_cannot_be_opened_stays_and_is_reported(kind: str) -> None:
    log = Log()
    if kind == "bomb":
        batch = _batch(log, (b"k", bytes(300_000)), codec=Codec.ZSTD)
    else:
        good = _batch(log, (b"k", b"v"))
        batch = seal_batch(parse_header(good), good[HEADER_SIZE:] + b"?")
    placed = bytearray(batch)
    rewrite_offset_and_epoch(placed, 0, 1, 0)
    log.roll([_batch(log, (b"a", b"1")), bytes(placed)])
    _roll(log, b"a", b"k")
    result = log.clean(decompressed_batch_bytes_max=100_000)
    (found,) = result.groups[0].unreadable
    assert (found.start_offset, found.end_offset, found.reason) == (1, 2, UNREADABLE)
    assert read_file(log.fs, log.path(0))[found.position : found.end_position] == placed
    assert result.groups[0].damaged == ()
    assert [header.base_offset for header, _ in log.batches()] == [1, 2, 3]
    log.verify()


def test_batches_larger_than_a_piece_are_cleaned() -> None:
    log = Log()
    for _ in range(3):
        log.roll(
            [
                _batch(log, (b"a", b"x" * (PIECE_BYTES_MAX + 1)), (b"b%d" % log.end, b"y")),
                _batch(log, (b"c", b"z"), at=log.end + 2),
            ]
        )
    log.clean()
    assert [row[0] for row in _seen(log)] == [1, 4, 6, 7, 8]
    log.verify()


# --- Bad days ---------------------------------------------------------------------------------------------------------


def _busy_log() -> Log:
    log = _aborted_log()
    for _ in range(4):
        _roll(log, b"k", b"a", b"b", b"k")
    return log


def _operations() -> int:
    log = _busy_log()
    assert isinstance(log.fs, ForgetfulFileSystem)
    before = len(log.fs.operations)
    run(log.fs, log.job(segment_bytes=600))
    return len(log.fs.operations) - before


@each_case("where", range(_operations()))
def test_a_failure_of_any_operation_leaves_the_sources_and_nothing_else(where: int) -> None:
    log = _busy_log()
    fs = log.fs
    assert isinstance(fs, ForgetfulFileSystem)
    before, open_before = fs.snapshot(), fs.open_files
    seen = [0]

    def fail(path: str) -> bool:
        seen[0] += 1
        return seen[0] == where + 1

    for name in ("open", "pwritev", "truncate", "fdatasync", "set_mtime"):
        fs.inject(Fault(name, lambda path: path.endswith(names.CLEANED_SUFFIX) and fail(path), errno.ENOSPC))
    with pytest.raises(OSError, match="ENOSPC"):
        run(fs, log.job(segment_bytes=600))
    assert fs.snapshot() == before
    assert fs.open_files == open_before


def test_a_crash_anywhere_touches_only_cleaned_files_and_the_next_round_succeeds() -> None:
    log = _busy_log()
    fs = log.fs
    assert isinstance(fs, ForgetfulFileSystem)
    before = fs.snapshot()
    left: list[ForgetfulFileSystem] = []
    fs.on_operation = lambda _: left.append(fs.found_after(PROCESS_KILL))
    expected = run(fs, log.job(segment_bytes=600))
    fs.on_operation = None
    assert len(left) > 20
    for found in left:
        beside = {path: data for path, data in found.snapshot().items() if not path.endswith(names.CLEANED_SUFFIX)}
        assert beside == before
        assert run(found, log.job(segment_bytes=600)) == expected
        assert found.snapshot() == fs.snapshot()


def test_a_source_that_is_gone_is_an_error_and_leaves_nothing() -> None:
    log = _busy_log()
    log.fs.unlink(log.path(log.bases[-1]))
    with pytest.raises(FileNotFoundError):
        run(log.fs, log.job())
    assert not any(name.endswith(names.CLEANED_SUFFIX) for name in log.fs.list_directory(DIRECTORY))


def test_bytes_read_and_written_go_through_the_throttle() -> None:
    log = _busy_log()
    now, slept = [0.0], [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds
        now[0] += seconds

    def monotonic() -> float:
        now[0] += 0.2
        return now[0]

    throttle = Throttle(1000.0, monotonic, sleep)
    result = clean(log.fs, log.job(), throttle)
    assert throttle.total == result.bytes_read + result.bytes_written
    assert now[0] >= throttle.total / 1000 * 0.9
    assert slept[0] > 0


# --- Jobs -------------------------------------------------------------------------------------------------------------


def test_jobs_and_results_survive_json() -> None:
    log, _ = _damaged_log()
    job = log.job(bytes_per_second=5.0)
    assert decoded(CleaningJob, parse_request(request_line(CLEANING, job)).job) == job
    result = run(log.fs, job)
    assert result.groups[0].damaged
    assert parse_reply(CLEANING, answer_line(result)) == result


@each_case(
    ("changes", "words"),
    [
        ({"segments": ()}, "no segment"),
        ({"segments": (SourceSegment(5), SourceSegment(3))}, "do not rise"),
        ({"upper_bound": 4, "segments": (SourceSegment(0), SourceSegment(4))}, "do not rise"),
        ({"first_dirty": 99}, "first dirty offset 99"),
        ({"first_dirty": -1}, "first dirty offset -1"),
        ({"later_segments": (1,)}, "later segments"),
        ({"bytes_per_second": 0.0}, "no rate"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(changes: dict[str, object], words: str) -> None:
    log = Log()
    _roll(log, b"a")
    _roll(log, b"b")
    with pytest.raises(ValueError, match=words):
        log.job(**changes)


@each_case(
    "changes",
    [
        {"now_ms": "1"},
        {"now_ms": True},
        {"dry_run": 1},
        {"segments": {}},
        {"segments": [1]},
        {"more": 1},
        {"now_ms": 1.5},
    ],
)
def test_json_of_another_shape_is_refused(changes: dict[str, object]) -> None:
    log = Log()
    _roll(log, b"a")
    with pytest.raises(ValueError, match=r"CleaningJob|SourceSegment"):
        decoded(CleaningJob, json.loads(json.dumps(dataclasses.asdict(log.job()) | changes)))


# --- Compaction compared with a simple model: a list of records, a dict of keys, and slow code for the same rules -----


_KEY = st.sampled_from([None, b"", b"a", b"b", b"cc", b"dd", b"eee", b"a long key" * 8])
_VALUE = st.none() | st.sampled_from([b"", b"1", b"22", b"v" * 70])
_HEADERS = st.sampled_from([(), (("h", b"x"),), (("ä", None), ("", b""))])
_TIMESTAMP = st.sampled_from([-1, 0, 5, 1000, 1001, 1 << 40])
_ROW = st.tuples(_TIMESTAMP, _KEY, _VALUE, _HEADERS)


@dataclass(frozen=True)
class _NewBatch:
    rows: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]
    codec: Codec
    append_time: int | None
    gap: int  # offsets left out before it, as an earlier compaction would


_BATCH = st.builds(
    _NewBatch,
    st.lists(_ROW, min_size=1, max_size=5),
    st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, *Codec]),
    st.sampled_from([None, None, 7, 1 << 40]),
    st.sampled_from([0, 0, 0, 3]),
)


@dataclass
class _ModelBatch:
    base: int
    last: int
    rows: list[Record]
    horizon: int | None = None
    damaged: bool = False


@dataclass
class _Model:
    batches: list[_ModelBatch] = field(default_factory=list)

    def records(self) -> list[Record]:
        return [row for batch in self.batches if not batch.damaged for row in batch.rows]

    def clean(self, first_dirty: int, bases: list[int], upper: int, bytes_max: int, now: int) -> int:
        """One round over the offsets below ``upper``; returns the new first dirty offset."""
        offsets: dict[bytes, int] = {}
        size, latest, full = 0, first_dirty - 1, False
        for base, next_base in zip(bases, [*bases[1:], upper], strict=True):
            if next_base <= first_dirty or full:
                continue
            for batch in self.batches:
                if batch.damaged or full or not base <= batch.base < next_base or batch.last < first_dirty:
                    continue
                for row in batch.rows:
                    if row.key is None or row.offset < first_dirty:
                        continue
                    if offsets and size + ENTRY_BYTES + len(row.key) > bytes_max:
                        full = True
                        break
                    size += 0 if row.key in offsets else ENTRY_BYTES + len(row.key)
                    offsets[row.key] = latest = row.offset
                if not full:
                    latest = max(latest, batch.last)
            if not full:
                latest = next_base - 1
        left = []
        for batch in self.batches:
            if batch.damaged or batch.base > latest or batch.base >= upper:
                left.append(batch)
                continue
            batch.rows = [row for row in batch.rows if self._stays(batch, row, offsets, latest, now)]
            if not batch.rows:
                batch.horizon = None
            elif batch.horizon is None and any(row.value is None for row in batch.rows):
                batch.horizon = now + RETENTION
            if batch.rows or batch.last + 1 == upper:
                left.append(batch)
        self.batches = left
        return latest + 1

    @staticmethod
    def _stays(batch: _ModelBatch, row: Record, offsets: dict[bytes, int], latest: int, now: int) -> bool:
        if row.offset > latest:
            return True
        if row.key is None or row.offset < offsets.get(row.key, -1):
            return False
        return row.value is not None or batch.horizon is None or now < batch.horizon


def _grow(log: Log, model: _Model, segments: list[list[_NewBatch]]) -> None:
    for batches in segments:
        encoded = []
        offset = log.end
        for new in batches:
            base = offset + new.gap
            offset = base + len(new.rows)
            encoded.append(encode_batch(new.rows, codec=new.codec, base_offset=base, log_append_time=new.append_time))
            rows = [
                Record(base + number, new.append_time or row[0], *row[1:3], tuple(row[3]))
                for number, row in enumerate(new.rows)
            ]
            model.batches.append(_ModelBatch(base, offset - 1, rows))
        log.roll(encoded)


@settings(
    max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.data())
def test_rounds_of_cleaning_leave_what_a_dict_says(data: st.DataObject) -> None:
    log, model = Log(), _Model()
    first_dirty, now = 0, NOW
    for _ in range(data.draw(st.integers(1, 4), "rounds")):
        _grow(
            log,
            model,
            data.draw(st.lists(st.lists(_BATCH, min_size=1, max_size=4), min_size=1, max_size=3), "segments"),
        )
        if data.draw(st.booleans(), "damage"):
            _damage(data, log, model)
        now += data.draw(st.sampled_from([0, 1, RETENTION - 1, RETENTION]), "time")
        bytes_max = data.draw(st.sampled_from([0, 400, 700, 1 << 20]), "map bytes")
        before = list(log.bases)
        expected = model.clean(first_dirty, before, log.end, bytes_max, now)
        result = log.clean(
            first_dirty=first_dirty,
            now_ms=now,
            map_bytes=bytes_max,
            map_load_factor=1.0,
            segment_bytes=data.draw(st.sampled_from([1, 500, 1 << 20]), "segment bytes"),
        )
        assert result.first_dirty == expected
        first_dirty = result.first_dirty
        log.verify()
        assert log.records() == model.records()
        assert [(header.base_offset, header.last_offset, header.delete_horizon) for header, _ in log.batches()] == [
            (batch.base, batch.last, batch.horizon) for batch in model.batches if not batch.damaged
        ]
        assert sum(group.bytes_before - group.bytes_after for group in result.groups) == sum(
            loss.size for loss in result.losses
        )
        assert result.records_read - result.records_kept == sum(loss.records for loss in result.losses)


def _damage(data: st.DataObject, log: Log, model: _Model) -> None:
    """Change the value of one undamaged batch, so that its checksum is wrong."""
    whole = [batch for batch in model.batches if not batch.damaged]
    if not whole:
        return
    chosen = data.draw(st.sampled_from(whole), "damaged batch")
    base = max(base for base in log.bases if base <= chosen.base)
    (place,) = [at + len(batch) - 1 for header, batch, at in log.located(base) if header.base_offset == chosen.base]
    flip_bit(log.fs, log.path(base), place)
    chosen.damaged = True
