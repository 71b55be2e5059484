"""Columns as batches: the same records as from the builder, where the producer puts them."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.arrow import encoding
from seglog.arrow.columns import check_columns, new_records
from seglog.arrow.encoding import ArrowEncoder, EncodedBatch, StickyPartitions, murmur2_of, partitions_for_keys
from seglog.core.partitioner import murmur2, partition_for_key
from seglog_protocol.batch_builder import NewRecord, encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.errors import UnknownPartitionError
from seglog_protocol.record_batch import INT64_MAX, parse_header, verify_crc
from seglog_protocol.records import decode_records
from tests.support import each_case, examples
from tests.unit.clients.arrow.tables import table_of

_FIELD = st.none() | st.binary(max_size=6) | st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 9000])
_PAIRS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3)
_TIMESTAMP = st.sampled_from([-1, 0, 1064, 2**40, 2**62]) | st.integers(-1, 2**50)
_RECORDS = st.lists(st.tuples(_TIMESTAMP, _FIELD, _FIELD, _PAIRS), max_size=20)
_NOW = 1_700_000_000_000


def _encode(table: pa.RecordBatch, partitions: int = 1, **options: int | Codec) -> list[EncodedBatch]:
    encoder = ArrowEncoder("t", partitions, choose=random.Random(5).randrange, **options)  # type: ignore[arg-type]
    return list(encoder.encode(new_records(table, _NOW)))


def _records(batches: Sequence[EncodedBatch]) -> list[NewRecord]:
    """What the batches hold, when each of them is what the builder makes of the same records."""
    found: list[NewRecord] = []
    for batch in batches:
        header = parse_header(batch.data)
        assert verify_crc(batch.data, 0, header)
        records = [(r.timestamp, r.key, r.value, r.headers) for r in decode_records(header, batch.data)]
        assert batch.record_count == len(records)
        assert encode_batch(records, codec=header.codec) == batch.data
        found += records
    return found


def _plain(records: Sequence[NewRecord]) -> list[NewRecord]:
    return [(timestamp, key, value, tuple(headers)) for timestamp, key, value, headers in records]


@settings(max_examples=examples(300))
@given(_RECORDS, st.sampled_from(list(Codec)), st.sampled_from([62, 200, 20_000, 1 << 20]), st.integers(1, 5))
def test_batches_are_byte_for_byte_those_of_the_builder_and_keep_their_bound(
    records: list[NewRecord], codec: Codec, batch_bytes: int, block_rows: int
) -> None:
    with mock.patch.object(encoding, "BLOCK_ROWS", block_rows):
        batches = _encode(table_of(records), codec=codec, batch_bytes=batch_bytes)
    assert _records(batches) == _plain(records)
    assert all(len(batch.data) <= batch_bytes or batch.record_count == 1 for batch in batches)


@given(_RECORDS, st.integers(1, 5), st.data())
def test_every_record_goes_to_its_partition(records: list[NewRecord], partitions: int, choices: st.DataObject) -> None:
    """Every record goes to its partition or where its key belongs and order holds there."""
    asked = [choices.draw(st.none() | st.integers(0, partitions - 1)) for _ in records]
    batches = _encode(table_of(records, asked), partitions, batch_bytes=300)
    expected: dict[int, list[NewRecord]] = {}
    keyless = 0
    for record, partition in zip(_plain(records), asked, strict=True):
        if partition is None and record[1] is None:
            keyless += 1
            continue
        where = partition_for_key(record[1] or b"", partitions) if partition is None else partition
        expected.setdefault(where, []).append(record)
    placed: dict[int, list[NewRecord]] = {}
    for batch in batches:
        placed.setdefault(batch.partition, []).extend(_records([batch]))
    assert sum(len(found) for found in placed.values()) == len(records)
    for partition, found in placed.items():
        rest = iter(found)
        assert all(record in rest for record in expected.get(partition, []))  # in this order
    assert sum(len(found) for found in expected.values()) + keyless == len(records)


def test_rows_in_pieces_and_slices_are_the_same_rows() -> None:
    source = random.Random(2)
    records: list[NewRecord] = [
        (n, source.randbytes(n % 9), None if n % 5 == 0 else source.randbytes(n % 70), [("h", b"x")] * (n % 3))
        for n in range(5_000)
    ]
    table = table_of(records)
    with mock.patch.object(encoding, "PIECE_BYTES", 1_000):
        assert _records(_encode(table)) == _plain(records)
    assert _records(_encode(table.slice(1_234, 2_000))) == _plain(records[1_234:3_234])
    placed = _encode(table.slice(1_234, 2_000), 4)
    assert sorted(map(repr, _records(placed))) == sorted(map(repr, _plain(records[1_234:3_234])))


def test_what_compression_makes_larger_is_divided_until_it_fits() -> None:
    source = random.Random(4)
    records: list[NewRecord] = [(0, None, source.randbytes(400), ()) for _ in range(40)]
    room = len(encode_batch(records[:4])) + 8  # for what the bound of a record's size exceeds it by
    assert {batch.record_count for batch in _encode(table_of(records), batch_bytes=room)} == {4}
    batches = _encode(table_of(records), codec=Codec.LZ4, batch_bytes=room)
    assert {batch.record_count for batch in batches} == {2}
    assert _records(batches) == _plain(records)


def test_timestamps_too_far_apart_for_one_batch_are_refused_as_by_the_builder() -> None:
    records: list[NewRecord] = [(-1, None, b"a", ()), (INT64_MAX, None, b"b", ())]
    with pytest.raises(ValueError, match="too far apart"):
        encode_batch(records)
    with pytest.raises(ValueError, match="too far apart"):
        _encode(table_of(records))


def test_a_partition_that_the_topic_does_not_have_is_named() -> None:
    with pytest.raises(UnknownPartitionError, match="t has no partition 3; it has 3, numbered from 0") as caught:
        _encode(table_of([(0, None, b"v", ())], [3]), 3)
    assert (caught.value.partition, caught.value.partitions) == (3, 3)
    with pytest.raises(ValueError, match="partition has -2 in row 0 of the table"):
        _encode(table_of([(0, None, b"v", ())], [-2]), 3)


# --- Columns as tables have them --------------------------------------------------------------------------------------


def _one(**columns: pa.Array) -> NewRecord:
    (record,) = _records(_encode(pa.record_batch(columns)))
    return record


@each_case(
    "column",
    [
        pa.array([b"ab"], pa.binary()),
        pa.array([b"ab"], pa.large_binary()),
        pa.array([b"ab"], pa.binary_view()),
        pa.array([b"ab"], pa.binary(2)),
        pa.array(["ab"], pa.string()),
        pa.array(["ab"], pa.large_string()),
        pa.array(["ab"], pa.string_view()),
        pa.array(["ab"]).dictionary_encode(),
        pa.array([b"ab"], pa.large_binary()).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_bytes_and_text_of_every_type_are_contents(column: pa.Array) -> None:
    assert _one(key=column, value=column, timestamp=pa.array([7])) == (7, b"ab", b"ab", ())


@each_case("column", [pa.array([1]), pa.array([[b"a"]]), pa.array([{"a": 1}]), pa.array([True])])
def test_other_types_are_refused_by_name(column: pa.Array) -> None:
    with pytest.raises(TypeError, match=f"the column value is {column.type}"):
        _one(value=column)


_MOMENT = datetime(2024, 7, 1, 12, 30, 0, 250_999, UTC)


@each_case(
    ("column", "expected"),
    [
        (pa.array([_MOMENT], pa.timestamp("us", "UTC")), 1_719_837_000_250),
        (pa.array([_MOMENT], pa.timestamp("ns", "Europe/Berlin")), 1_719_837_000_250),
        (pa.array([_MOMENT.replace(microsecond=0)], pa.timestamp("s", "UTC")), 1_719_837_000_000),
        (pa.array([5], pa.timestamp("ms", "UTC")), 5),
        (pa.array([None], pa.timestamp("ns", "UTC")), -1),
        (pa.array([5], pa.int16()), 5),
        (pa.array([-1], pa.int64()), -1),
        (pa.array([None], pa.uint64()), -1),
        (pa.nulls(1), -1),
    ],
)
def test_timestamps_of_any_unit_with_a_zone_and_milliseconds_are_times(column: pa.Array, expected: int) -> None:
    assert _one(value=pa.array([b"v"]), timestamp=column)[0] == expected


def test_times_that_mean_no_moment_are_refused() -> None:
    value = pa.array([b"v"])
    with pytest.raises(ValueError, match="no zone"):
        _one(value=value, timestamp=pa.array([5], pa.timestamp("us")))
    with pytest.raises(TypeError, match="timestamp is string"):
        _one(value=value, timestamp=pa.array(["2024-07-01"]))
    with pytest.raises(ValueError, match="none is below 0"):
        _one(value=value, timestamp=pa.array([-2]))
    for moment in (-2_000_000, -1):  # the latter would be -1 ms, which means none
        with pytest.raises(ValueError, match="before 1970"):
            _one(value=value, timestamp=pa.array([moment], pa.timestamp("us", "UTC")))


def test_without_the_columns_records_have_the_time_of_the_call_and_nulls() -> None:
    assert _one(value=pa.array([b"v"])) == (_NOW, None, b"v", ())
    assert _one(key=pa.array([b"k"])) == (_NOW, b"k", None, ())
    assert _one(key=pa.nulls(1), value=pa.nulls(1), headers=pa.nulls(1)) == (_NOW, None, None, ())


_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


@each_case(
    "kind",
    [
        pa.list_(_HEADER),
        pa.large_list(_HEADER),
        pa.list_(pa.struct([("value", pa.large_string()), ("key", pa.binary())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_headers_come_as_lists_of_structs_or_as_maps(kind: pa.DataType) -> None:
    pairs = [("a", b"1"), ("b", None), ("", b"")]
    as_structs = not pa.types.is_map(kind)
    rows = [[{"key": key, "value": value} for key, value in pairs] if as_structs else pairs, [], None]
    headers = pa.array([None, *rows], kind)
    expected = [(), tuple(pairs), (), ()]
    table = pa.record_batch({"value": pa.array([b"v"] * 4), "headers": headers})
    assert [record[3] for record in _records(_encode(table))] == expected
    assert [record[3] for record in _records(_encode(table.slice(1)))] == expected[1:]


def test_headers_of_other_shapes_and_without_a_key_are_refused() -> None:
    value = pa.array([b"v"])
    for kind in (pa.list_(pa.string()), pa.list_(pa.struct([("key", pa.string())])), pa.string()):
        shaped = pa.array([[{"key": "k"}] if pa.types.is_nested(kind) and kind != pa.list_(pa.string()) else "k"])
        with pytest.raises(TypeError, match="not a list of structs of key and value"):
            _one(value=value, headers=shaped)
    with pytest.raises(ValueError, match="a header has a key"):
        _one(value=value, headers=pa.array([[{"key": None, "value": b"x"}]], pa.list_(_HEADER)))


def test_columns_that_nobody_would_write_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no 'vaule'; the columns that are written are key, value"):
        check_columns(pa.schema([("vaule", pa.binary())]))
    with pytest.raises(ValueError, match="two columns 'value'"):
        check_columns(pa.schema([("value", pa.binary()), ("value", pa.binary())]))
    with pytest.raises(ValueError, match="or at least key"):
        check_columns(pa.schema([("offset", pa.int64())]))
    check_columns(pa.schema([("key", pa.binary()), ("offset", pa.int64()), ("timestampType", pa.int32())]))


def _laid_out(keys: list[bytes], between: bytes = b"") -> tuple[bytes, np.ndarray, np.ndarray]:
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = np.cumsum(lengths + len(between)) - lengths
    return b"".join(between + key for key in keys), starts, lengths


@each_case("lengths", [[0], [1, 2, 3], [5000], [12] * 100 + [70_001], list(range(100)), [8] * 40_000])
def test_keys_of_any_length_in_any_number(lengths: list[int]) -> None:
    source = random.Random(1)
    keys = [source.randbytes(length) for length in lengths]
    for between in (b"", b"-"):
        assert murmur2_of(*_laid_out(keys, between)).tolist() == [murmur2(key) for key in keys]
    assert partitions_for_keys(*_laid_out(keys), 7).tolist() == [partition_for_key(key, 7) for key in keys]


@given(st.lists(st.lists(st.integers(1, 300), max_size=20), max_size=5), st.integers(1, 4))
def test_records_without_a_key_stay_with_a_partition_until_a_batch_is_full(
    sizes: list[list[int]], partitions: int
) -> None:
    sticky = StickyPartitions(partitions, 500, random.Random(3).randrange)
    placed = [
        place for some in sizes for place in zip(some, sticky.place(np.array(some, np.int64)).tolist(), strict=True)
    ]
    filled = 0
    for (size, partition), (next_size, following) in pairwise(placed):
        assert 0 <= partition < partitions
        filled += size
        if (filled + next_size) // 500 == filled // 500:
            assert following == partition
        elif partitions > 1 and next_size <= 500:
            assert following != partition
