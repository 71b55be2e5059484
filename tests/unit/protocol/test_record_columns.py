import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_protocol.batch_builder import NewRecord, compacted_batch, encode_batch
from seglog_protocol.batch_columns import intact, plausible, read_batches
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX, Codec, compress
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import (
    HEADER_SIZE,
    INT64_MAX,
    INT64_MIN,
    LOG_APPEND_TIME_BIT,
    parse_header,
    seal_batch,
    verify_crc,
    why_implausible,
)
from seglog_protocol.record_columns import DECODED_RECORDS, LOCKSTEP_MIN, OPENED_BYTES, open_batches
from seglog_protocol.records import decode_records, encode_record
from tests.support import each_case, examples
from tests.unit.protocol import golden

_Row = tuple[int, int, bytes | None, bytes | None]

_CODECS = st.sampled_from(list(Codec))
_FIELD = st.none() | st.binary(max_size=6) | st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 8191, b"z" * 9000])
_HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
_TIMESTAMP = st.sampled_from([-1, 0, 1000, 1064, 10**6, 2**40, -(2**40)]) | st.integers(-1, 2**50)
_RECORD = st.tuples(_TIMESTAMP, _FIELD, _FIELD, _HEADERS)


@st.composite
def _batch(draw: st.DrawFn) -> bytes:
    """A batch with a right checksum, whole or with records that something happened to."""
    records: list[NewRecord] = draw(st.lists(_RECORD, min_size=1, max_size=5))
    codec = draw(_CODECS)
    encoded = encode_batch(records, log_append_time=draw(st.none() | st.just(5)))
    header = parse_header(encoded)
    opened = bytearray(encoded[HEADER_SIZE:])
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        place = draw(st.integers(0, max(0, len(opened) - 1)))
        match draw(st.integers(0, 3)):
            case 0 if opened:
                opened[place] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
            case 1:
                opened[place:place] = draw(st.binary(max_size=3))
            case 2:
                del opened[place : place + draw(st.integers(1, 3))]
            case _:
                header = header._replace(record_count=max(0, header.record_count + draw(st.sampled_from([-1, 1]))))
    header = header._replace(
        attributes=header.attributes | codec, last_offset_delta=max(header.last_offset_delta, header.record_count - 1)
    )
    stored = compress(codec, bytes(opened)) if opened or draw(st.booleans()) else b""
    return seal_batch(header, stored)


def _expected(batch: bytes) -> list[_Row] | None:
    """What the loop in ``records`` reads, or None where it raises."""
    try:
        records = decode_records(parse_header(batch), batch)
    except CorruptRecordError:
        return None
    return [(record.offset, record.timestamp, record.key, record.value) for record in records]


def _read(
    data: bytes,
    *,
    size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX,
    opened_bytes: int = OPENED_BYTES,
    records_max: int = DECODED_RECORDS,
) -> list[list[_Row] | None]:
    batches = read_batches(data)
    rows: list[list[_Row] | None] = []
    for opened in open_batches(batches, size_limit=size_limit, opened_bytes=opened_bytes, records_max=records_max):
        found = opened.records
        assert len(found) <= records_max or opened.last - opened.first == 1
        assert opened.errors.keys() <= set(range(opened.first, opened.last))
        for number in range(opened.last - opened.first):
            if number in found.malformed or opened.first + number in opened.errors:
                assert found.first_record[number] == found.first_record[number + 1]
                rows.append(None)
                continue
            header = batches.header(opened.first + number)
            of_batch: list[_Row] = []
            for index in range(int(found.first_record[number]), int(found.first_record[number + 1])):
                assert found.list_number[index] == number
                key_start, key_length = int(found.key_start[index]), int(found.key_length[index])
                value_start, value_length = int(found.value_start[index]), int(found.value_length[index])
                timestamp = header.base_timestamp + int(found.timestamp_delta[index])
                of_batch.append(
                    (
                        header.base_offset + int(found.offset_delta[index]),
                        header.max_timestamp if header.is_log_append_time else timestamp,
                        None if key_length < 0 else bytes(found.data[key_start : key_start + key_length]),
                        None if value_length < 0 else bytes(found.data[value_start : value_start + value_length]),
                    )
                )
            rows.append(of_batch)
    assert len(rows) == len(batches)
    return rows


@settings(max_examples=examples(400))
@given(
    st.lists(_batch(), min_size=1, max_size=8),
    st.sampled_from([1, LOCKSTEP_MIN]),
    st.sampled_from([0, 100, 1 << 24]),
    st.sampled_from([0, 7, DECODED_RECORDS]),
)
def test_columns_hold_what_the_loop_reads_and_refuse_what_it_refuses(
    encoded: list[bytes], times: int, opened_bytes: int, records_max: int
) -> None:
    found = _read(b"".join(encoded * times), opened_bytes=opened_bytes, records_max=records_max)
    assert found == [_expected(batch) for batch in encoded] * times


@given(st.binary(max_size=40), st.integers(0, 4), st.sampled_from([1, LOCKSTEP_MIN]))
def test_any_bytes_are_read_or_refused_like_by_the_loop(opened: bytes, count: int, times: int) -> None:
    encoded = golden.batch_of(opened, count)
    assert _read(encoded * times) == [_expected(encoded)] * times


_LONG = encode_batch([(1, None, b"", ())] * 1_600)
_RUNS = st.lists(st.tuples(st.integers(1, 400), st.sampled_from([0, 1, 60, 100, 10_000])), min_size=1, max_size=4)


@settings(max_examples=examples(60))
@given(st.lists(_RUNS, min_size=1, max_size=4), st.data())
def test_records_of_one_size_and_of_many(batches: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    """Records of one size are found many at a time and those of others all the same."""
    encoded = [
        bytearray(encode_batch([(1, None, bytes(size), ()) for count, size in runs for _ in range(count)]))
        for runs in batches
    ]
    for batch in encoded:
        if data.draw(st.booleans()):
            batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] ^= data.draw(st.integers(0, 255))
    encoded += [bytearray(_LONG)] * (LOCKSTEP_MIN - 1)  # so that all of them are read in lockstep
    expected = [_expected(bytes(batch)) for batch in encoded[: len(batches)]]
    assert _read(b"".join(encoded))[: len(batches)] == expected


@pytest.mark.parametrize("headers", [1, 20, 100])
def test_a_header_name_that_is_no_text(headers: int) -> None:
    """Many headers are checked and one name that is no text spoils its own batch only."""
    good = encode_batch([(1, b"k", b"v", [(f"h{n}é", None if n % 2 else b"x") for n in range(headers)])] * 30)
    bad = bytearray(encode_batch([(1, b"k", b"v", [("name", b"")])] * 3)[HEADER_SIZE:])
    bad[bad.index(b"name")] = 0xFF
    encoded = [good, golden.batch_of(bytes(bad), 3), good]
    expected = [_expected(batch) for batch in encoded]
    assert [rows is None for rows in expected] == [False, True, False]
    assert _read(b"".join(encoded)) == expected


@each_case("base", [INT64_MIN, -1, 0, INT64_MAX])
@each_case("delta", [INT64_MIN, -1, 0, 1, INT64_MAX])
@each_case("attributes", [0, LOG_APPEND_TIME_BIT])
def test_timestamps_beyond_int64_are_refused_where_they_count(base: int, delta: int, attributes: int) -> None:
    header = parse_header(golden.TWO_RECORDS)._replace(
        base_timestamp=base, record_count=1, last_offset_delta=0, attributes=attributes
    )
    encoded = seal_batch(header, encode_record(delta, 0, b"k", b"v"))
    assert _read(encoded) == [_expected(encoded)]


@pytest.mark.parametrize("length", [5, 6])
def test_a_number_of_too_many_bytes_is_refused(length: int) -> None:
    record = encode_record(0, 0, b"k", b"v")
    overlong = bytes([record[0] | 0x80, *[0x80] * (length - 2), 0]) + record[1:]
    encoded = golden.batch_of(overlong)
    assert _read(encoded) == [_expected(encoded)]
    assert (_expected(encoded) is None) == (length == 6)


@each_case("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_stream_that_opens_to_more_than_the_limit_is_an_error_of_that_batch_alone(codec: Codec) -> None:
    small, large = ([(0, b"k", b"v", ())], [(0, b"k", bytes(100_000), ())])
    encoded = [encode_batch(small, codec=codec), encode_batch(large, codec=codec), encode_batch(small)]
    assert [rows is None for rows in _read(b"".join(encoded), size_limit=50_000)] == [False, True, False]


def test_batches_that_are_not_wanted_are_not_opened() -> None:
    encoded = [encode_batch([(0, b"k", b"v", ())], codec=Codec.ZSTD), encode_batch([(0, b"k", b"w", ())])]
    batches = read_batches(b"".join(encoded))
    broken = bytearray(batches.data)
    broken[HEADER_SIZE : HEADER_SIZE + 4] = b"????"
    batches = read_batches(bytes(broken))
    (opened,) = open_batches(batches, batches.position > 0)
    assert not opened.errors
    assert len(opened.records) == 1


def test_what_compaction_leaves_is_read_with_its_offsets() -> None:
    encoded = encode_batch([(n, b"k%d" % n, b"v", ()) for n in range(10)], base_offset=100, codec=Codec.LZ4)
    header = parse_header(encoded)
    records = decode_records(header, encoded)
    left = [compacted_batch(header, kept, delete_horizon=9) for kept in (records[3:4], records[::3], [])]
    rows = _read(b"".join(left))
    assert rows == [_expected(batch) for batch in left]
    assert [row[0] for row in rows[1] or ()] == [100, 103, 106, 109]


@settings(max_examples=examples(200))
@given(st.lists(st.binary(max_size=80) | _batch(), max_size=6))
def test_headers_as_columns_are_those_that_are_parsed_one_by_one(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    batches = read_batches(data)
    verdicts = list(zip(plausible(batches).tolist(), intact(batches).tolist(), strict=True))
    position = 0
    for number in range(len(batches)):
        header = parse_header(data, position)
        assert batches.header(number) == header
        assert (batches.position[number], batches.end[number]) == (position, position + header.size)
        assert bytes(batches.batch(number)) == data[position : position + header.size]
        assert verdicts[number] == (why_implausible(header) is None, verify_crc(data, position, header))
        position += header.size
    if position + HEADER_SIZE <= len(data):
        header = parse_header(data, position)
        assert why_implausible(header) is not None or position + header.size > len(data)


@given(st.lists(st.lists(_RECORD, min_size=1, max_size=5), min_size=1, max_size=6), _CODECS, st.data())
def test_chosen_records_of_good_batches_are_read_alone(
    rows: list[list[NewRecord]], codec: Codec, data: st.DataObject
) -> None:
    base, encoded = 7, []
    for batch in rows:
        encoded.append(encode_batch(batch, codec=codec if len(batch) % 2 else Codec.NONE, base_offset=base))
        base += len(batch) + len(batch) % 3  # a gap between some
    batches = read_batches(b"".join(encoded))
    expected = [row for batch in encoded for row in _expected(batch) or ()]
    chosen = data.draw(st.sets(st.sampled_from(expected).map(lambda row: row[0])))
    found: list[_Row] = []
    for opened in open_batches(batches, only=np.array(sorted(chosen), np.int64), opened_bytes=100):
        records = opened.records
        for index in range(len(records)):
            header = batches.header(opened.first + int(records.list_number[index]))
            start, length = int(records.key_start[index]), int(records.key_length[index])
            key = None if length < 0 else bytes(records.data[start : start + length])
            start, length = int(records.value_start[index]), int(records.value_length[index])
            value = None if length < 0 else bytes(records.data[start : start + length])
            timestamp = header.base_timestamp + int(records.timestamp_delta[index])
            found.append((header.base_offset + int(records.offset_delta[index]), timestamp, key, value))
        assert records.first_record.tolist() == [
            int((records.list_number < number).sum()) for number in range(opened.last - opened.first + 1)
        ]
    assert found == [row for row in expected if row[0] in chosen]
