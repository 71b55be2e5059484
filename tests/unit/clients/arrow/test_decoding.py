"""Batches as columns: the same records as from the loop that reads them one by one, headers too."""

from collections.abc import Iterable
from itertools import pairwise
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.arrow import decoding
from seglog.arrow.decoding import LOCKSTEP_MIN, DecodedRecords, decode_headers
from seglog.arrow.fitting import Misfit
from seglog.arrow.schema import SCHEMA, schema_of
from seglog_protocol import record_columns
from seglog_protocol.batch_builder import compacted_batch, encode_batch
from seglog_protocol.batch_columns import read_batches
from seglog_protocol.compression import Codec, compress
from seglog_protocol.errors import CorruptRecordError, DecompressedTooLargeError
from seglog_protocol.record_batch import (
    HEADER_SIZE,
    INT64_MAX,
    iter_batches,
    parse_header,
    rewrite_log_append_time,
    rewrite_offset_and_epoch,
    seal_batch,
)
from seglog_protocol.record_columns import RecordColumns, open_batches
from seglog_protocol.records import Headers, Record, decode_records, encode_record
from tests.support import each_case, examples
from tests.unit.clients.arrow.tables import decode, records_of
from tests.unit.protocol import golden
from tests.unit.protocol.golden import batch_of

_ALL = schema_of(headers=True)
_FIELD = st.none() | st.binary(max_size=6) | st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 9000])
_PAIRS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
_TIMESTAMP = st.sampled_from([-1, 0, 1064, 2**40]) | st.integers(-1, 2**50)
_RECORD = st.tuples(_TIMESTAMP, _FIELD, _FIELD, _PAIRS)


@st.composite
def _log(draw: st.DrawFn) -> bytes:
    """Batches one behind the other: of any codec, with append times, markers, and what compaction leaves."""
    batches = b""
    offset = draw(st.sampled_from([0, 5, 2**40]))
    for records in draw(st.lists(st.lists(_RECORD, min_size=1, max_size=5), min_size=1, max_size=6)):
        batch = bytearray(encode_batch(records, codec=draw(st.sampled_from(list(Codec))), control=draw(_SELDOM)))
        rewrite_offset_and_epoch(batch, 0, offset, 3)
        if draw(_SELDOM):
            rewrite_log_append_time(batch, 0, 77)
        if draw(_SELDOM):
            header = parse_header(batch)
            kept = [record for record in decode_records(header, batch) if draw(st.booleans())]
            batch = bytearray(compacted_batch(header, kept, delete_horizon=draw(st.none() | st.just(5))))
        batches += batch
        offset += len(records) + draw(st.sampled_from([0, 0, 3]))
    return batches


_SELDOM = st.sampled_from([False, False, False, True])


def _expected(data: bytes) -> list[Record]:
    """What the loop reads that reads records one by one."""
    headers = [(header, batch) for header, batch in iter_batches(data) if not header.is_control]
    return [record for header, batch in headers for record in decode_records(header, batch)]


def _rows(decoded: Iterable[DecodedRecords]) -> list[Record]:
    rows: list[Record] = []
    for part in decoded:
        assert part.table.schema == _ALL
        of_part = records_of(part.table)
        assert part.offsets.tolist() == [record.offset for record in of_part]
        rows += of_part
    return rows


def _rows_and_error(data: bytes, **options: int) -> tuple[list[Record], CorruptRecordError]:
    rows: list[Record] = []
    parts = decode(data, "t", 4, _ALL, **options)
    with pytest.raises(CorruptRecordError) as caught:
        rows.extend(row for part in parts for row in _rows([part]))
    return rows, caught.value


@settings(max_examples=examples(200))
@given(_log(), st.data(), st.sampled_from([0, 100, 1 << 24]))
def test_tables_hold_what_the_loop_reads_within_the_offsets_asked_for(
    data: bytes, choices: st.DataObject, records_at_a_time: int
) -> None:
    expected = _expected(data)
    offsets = st.sampled_from(sorted({0, *(record.offset for record in expected), INT64_MAX}))
    start, end = choices.draw(offsets), choices.draw(offsets)
    with mock.patch.object(record_columns, "DECODED_RECORDS", records_at_a_time):
        assert _rows(decode(data, "t", 4, _ALL)) == expected
    assert _rows(decode(data, "t", 4, _ALL, records_max=records_at_a_time)) == expected
    with mock.patch.object(record_columns, "DECODED_RECORDS", records_at_a_time):
        assert _rows(decode(data, "t", 4, _ALL, start=start, end=end)) == [
            record for record in expected if start <= record.offset < end
        ]


@given(_log(), st.permutations(_ALL.names), st.integers(1, len(_ALL.names)))
def test_some_columns_are_those_columns_of_the_whole_table_in_the_order_asked_for(
    data: bytes, names: list[str], count: int
) -> None:
    chosen = names[:count]
    whole = pa.Table.from_batches([part.table for part in decode(data, "t", 4, _ALL)], _ALL)
    some = pa.Table.from_batches([part.table for part in decode(data, "t", 4, schema_of(chosen))], schema_of(chosen))
    assert some.equals(whole.select(chosen))


@given(st.binary(max_size=40), st.integers(0, 4))
def test_records_that_are_none_are_refused_with_the_words_of_the_loop(opened: bytes, count: int) -> None:
    good, bad = encode_batch([(1, b"k", b"v", ())]), bytearray(batch_of(opened, count))
    rewrite_offset_and_epoch(bad, 0, 1, 0)
    try:
        expected, words = decode_records(parse_header(bad), bad), ""
    except CorruptRecordError as error:
        expected, words = [], error.message
    if words:
        rows, found = _rows_and_error(good + bytes(bad) + good)
        assert (found.message, found.start_offset) == (words, 1)
        assert (found.topic, found.partition, found.next_offset) == ("t", 4, parse_header(bad).next_offset)
    else:
        rows = _rows(decode(good + bytes(bad), "t", 4, _ALL))
    assert rows == [Record(0, 1, b"k", b"v", ()), *expected]


@each_case("batch", [golden.TWO_RECORDS, golden.TWO_RECORDS_LZ4, golden.TWO_RECORDS_SNAPPY, golden.TWO_RECORDS_ZSTD])
def test_batches_that_kafka_wrote_become_its_columns(batch: bytes) -> None:
    (part,) = decode(batch, "t", 4)
    assert part.table.schema == SCHEMA
    assert part.table.select(["key", "value", "topic", "partition", "offset", "timestampType"]).to_pylist() == [
        {"key": b"key1", "value": b"value1", "topic": "t", "partition": 4, "offset": 0, "timestampType": 0},
        {"key": b"key2", "value": b"value2", "topic": "t", "partition": 4, "offset": 1, "timestampType": 0},
    ]
    assert part.table.column("timestamp").cast(pa.int64()).to_pylist() == [283_843_000, 1_234_000]


def test_a_marker_of_kafka_is_no_row_and_compacted_batches_keep_offsets_and_times() -> None:
    assert list(decode(golden.COMMIT_MARKER, "t", 4)) == []
    assert _rows(decode(golden.IDEMPOTENT, "t", 4, _ALL)) == golden.IDEMPOTENT_READ
    (compacted,) = decode(golden.IDEMPOTENT_COMPACTED, "t", 4, _ALL)
    assert _rows([compacted]) == golden.IDEMPOTENT_READ[1:]
    assert [tuple(gap) for gap in compacted.gaps] == [("t", 4, 5, 6, "compacted")]
    (emptied,) = decode(golden.IDEMPOTENT_EMPTIED, "t", 4, _ALL)
    assert [tuple(gap) for gap in emptied.gaps] == [("t", 4, 5, 7, "compacted")]
    assert not _rows([emptied])


@given(_log(), st.data())
def test_gaps_and_rows_together_are_all_offsets_of_the_batches(data: bytes, choices: st.DataObject) -> None:
    headers = [header for header, _ in iter_batches(data) if not header.is_control]
    inside = {offset for header in headers for offset in range(header.base_offset, header.next_offset)}
    bounds = st.sampled_from([0, *sorted(inside), INT64_MAX])
    start, end = choices.draw(bounds), choices.draw(bounds)
    parts = list(decode(data, "t", 4, schema_of(["offset"]), start=start, end=end))
    rows = [offset for part in parts for offset in part.offsets.tolist()]
    gaps = [offset for part in parts for gap in part.gaps for offset in range(gap.start, gap.end)]
    assert sorted(rows + gaps) == sorted(offset for offset in inside if start <= offset < end)


def test_append_time_is_the_time_of_every_record_and_named_as_its_kind() -> None:
    batch = bytearray(encode_batch([(1000, None, b"a", ()), (-1, None, b"b", ())]))
    rewrite_log_append_time(batch, 0, 5_000)
    created = encode_batch([(1000, None, b"c", ()), (-1, None, b"d", ())], base_offset=2)
    (part,) = decode(bytes(batch) + created, "t", 4, schema_of(["timestampType", "timestamp"]))
    assert part.table.column("timestamp").cast(pa.int64()).to_pylist() == [5_000_000, 5_000_000, 1_000_000, None]
    assert part.table.column("timestampType").to_pylist() == [1, 1, 0, 0]


@each_case("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_bomb_is_an_error_of_its_batch(codec: Codec) -> None:
    bomb = encode_batch([(0, None, bytes(200_000), ())], codec=codec, base_offset=1)
    data = encode_batch([(0, None, b"v", ())], codec=codec) + bomb
    rows, error = _rows_and_error(data, decompressed_batch_bytes_max=100_000)
    assert isinstance(error, DecompressedTooLargeError)
    assert (error.start_offset, error.next_offset, len(rows)) == (1, 2, 1)


def test_a_codec_that_does_not_exist_is_an_error_of_its_batch() -> None:
    header = parse_header(golden.TWO_RECORDS)
    _, error = _rows_and_error(seal_batch(header._replace(attributes=5), golden.TWO_RECORDS[HEADER_SIZE:]))
    assert "codec 5" in error.message
    assert (error.partition, error.start_offset, error.next_offset) == (4, 0, 2)


@given(_log(), st.data())
def test_a_last_batch_that_is_cut_short_is_left_out(data: bytes, choices: st.DataObject) -> None:
    ends, size = [0], 0
    for header, _ in iter_batches(data):
        size += header.size
        ends.append(size)
    cut = choices.draw(st.integers(0, len(data)))
    whole = max(end for end in ends if end <= cut)
    assert _rows(decode(data[:cut], "t", 4, _ALL)) == _expected(data[:whole])


@settings(max_examples=examples(200))
@given(_log(), st.data(), st.sampled_from([0, 4, 1 << 24]))
def test_columns_that_headers_tell_are_those_of_opened_batches(
    data: bytes, choices: st.DataObject, records_at_a_time: int
) -> None:
    names = ["offset", "timestampType", "topic", "partition"]
    offsets = st.sampled_from(sorted({0, *(record.offset for record in _expected(data)), INT64_MAX}))
    bounds = {"start": choices.draw(offsets), "end": choices.draw(offsets)}
    opened = [part.table.select(names) for part in decode(data, "t", 4, _ALL, **bounds)]
    with mock.patch.object(decoding, "DECODED_RECORDS", records_at_a_time):
        told = [part.table for part in decode(data, "t", 4, schema_of(names), **bounds)]
    schema = schema_of(names)
    assert pa.Table.from_batches(told, schema).equals(pa.Table.from_batches(opened, schema))


def test_batches_are_not_opened_where_headers_are_enough() -> None:
    """Complete batches are not opened where headers are enough but only up to what they may hold."""
    header = parse_header(golden.TWO_RECORDS)
    unopenable = seal_batch(header._replace(attributes=Codec.ZSTD), b"no stream")
    (part,) = decode(unopenable, "t", 4, schema_of(["offset"]))
    assert part.offsets.tolist() == [0, 1]
    many = 1 << 30
    boastful = header._replace(record_count=many, last_offset_delta=many - 1)
    for codec in (Codec.NONE, Codec.ZSTD):
        batch = seal_batch(boastful._replace(attributes=codec), compress(codec, bytes(1000)))
        with pytest.raises(CorruptRecordError, match="announces"):
            list(decode(batch, "t", 4, schema_of(["offset"])))


def test_a_time_beyond_microseconds_is_an_error_that_says_how_to_read_on() -> None:
    data = encode_batch([(0, None, b"a", ()), (INT64_MAX // 100, None, b"b", ()), (-7, None, b"c", ())])
    _, error = _rows_and_error(data)
    assert (error.start_offset, error.next_offset) == (1, 2)
    assert "leave out the column timestamp" in error.message
    assert len(list(decode(data, "t", 4, schema_of(["value"])))) == 1
    told = list[Misfit]()
    (part,) = decode(data, "t", 4, on_misfit=told.append)
    assert part.table.column("timestamp").cast(pa.int64()).to_pylist() == [0, None, -7000]
    reason = f"of a time that microseconds cannot hold ({INT64_MAX // 100} ms)"
    assert told == [Misfit("t", 4, 1, reason, b"b")]


def test_a_stream_that_is_empty_where_compaction_took_everything_is_no_error() -> None:
    header = parse_header(golden.TWO_RECORDS)
    data = seal_batch(header._replace(record_count=0, attributes=Codec.ZSTD), b"")
    (part,) = decode(data, "t", 4, _ALL)
    assert (part.table.num_rows, [gap[2:4] for gap in part.gaps]) == (0, [(0, 2)])
    filled = seal_batch(header._replace(record_count=0, attributes=Codec.ZSTD), compress(Codec.ZSTD, b"\x00"))
    _rows_and_error(filled)


def test_more_than_arrow_can_count_is_refused_and_not_wrapped() -> None:
    batch = encode_batch([(0, None, b"a", ()), (0, None, b"b", ())])
    with mock.patch.object(decoding, "INT32_MAX", 3), pytest.raises(ValueError, match="smaller pieces"):
        list(decode(batch, "t", 4))


def test_columns_that_do_not_exist_or_come_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="no column 'ofset'; there are key, value, topic"):
        schema_of(["ofset"])
    for columns in ([], ["key", "key"]):
        with pytest.raises(ValueError, match="one column or more"):
            schema_of(columns)
    assert schema_of(["headers", "key"], headers=True).names == ["headers", "key"]
    assert schema_of(["key"], headers=True).names == ["key", "headers"]


_HEADERS = st.lists(st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70)), max_size=5)


def _records(batch: bytes) -> RecordColumns:
    (opened,) = open_batches(read_batches(batch))
    assert not opened.records.malformed
    return opened.records


def _read(records: RecordColumns, first: int = 0, last: int | None = None) -> list[Headers]:
    edges, *fields = (numbers.tolist() for numbers in decode_headers(records, first, last))
    pairs = [
        (bytes(records.data[key : key + size]).decode(), None if length < 0 else bytes(records.data[at : at + length]))
        for key, size, at, length in zip(*fields, strict=True)
    ]
    return [tuple(pairs[start:stop]) for start, stop in pairwise(edges)]


@given(st.lists(_HEADERS, min_size=1, max_size=12), st.sampled_from([1, LOCKSTEP_MIN]), st.data())
def test_columns_hold_the_headers_that_the_loop_reads(headers: list[Headers], times: int, data: st.DataObject) -> None:
    headers = headers * times
    batch = encode_batch([(0, None, b"v", found) for found in headers])
    expected = [record.headers for record in golden.read(batch)]
    first = data.draw(st.integers(0, len(headers)))
    last = data.draw(st.integers(first, len(headers)))
    assert _read(_records(batch)) == expected
    assert _read(_records(batch), first, last) == expected[first:last]


@pytest.mark.parametrize("counts", [[300], [0, 1, 300, 2], [3] * 40 + [200] * 2])
def test_records_with_many_headers_are_read_to_their_end(counts: list[int]) -> None:
    headers: list[Headers] = [
        [(f"é{n}" * (n % 40), None if n % 3 == 0 else bytes(n)) for n in range(count)] for count in counts
    ]
    batch = encode_batch([(0, b"k", None, found) for found in headers])
    assert _read(_records(batch)) == [tuple(found) for found in headers]


def test_any_negative_length_is_no_value_and_numbers_may_be_longer_than_they_need() -> None:
    plain = encode_record(0, 0, None, b"v", [("k", b"")])
    # The header's value length, 0, as -2 and as a varint of two bytes.
    for length, expected in ((b"\x03", None), (b"\x80\x00", b"")):
        body = plain[1:-1] + length
        batch = golden.batch_of(bytes([2 * len(body)]) + body)
        assert _read(_records(batch)) == [(("k", expected),)] == [record.headers for record in golden.read(batch)]
