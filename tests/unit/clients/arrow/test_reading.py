"""Topics as tables: what a reader gives, its gaps and errors, and the pieces that are decoded at a time."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seglog
from seglog.arrow import ArrowReader, reading
from seglog.arrow.reading import one_buffer, pieces
from seglog.arrow.schema import SCHEMA
from seglog.core.records import FetchedBatch
from seglog_protocol.batch_builder import compacted_batch, encode_batch
from seglog_protocol.batch_columns import BatchColumns, read_batches
from seglog_protocol.compression import Codec
from seglog_protocol.errors import (
    ClientClosedError,
    CorruptRecordError,
    NotReachableError,
    UnknownTopicError,
)
from seglog_protocol.record_batch import CRC_POSITION, parse_header, rewrite_offset_and_epoch
from seglog_protocol.records import decode_records
from seglog_protocol.segment_files import LOG_SUFFIX, segment_file_name
from tests.support import each_case, examples
from tests.unit.clients.fake_broker import FakeBroker, fake_broker


def fill(broker: FakeBroker, count: int, *, partition: int = 0, per_batch: int = 3, codec: Codec = Codec.NONE) -> None:
    """Records "0", "1", ... whose timestamps are a second apart."""
    log = broker.logs["t"][partition]
    with broker.changed:
        for start in range(0, count, per_batch):
            numbers = range(start, min(start + per_batch, count))
            log.append(encode_batch([(n * 1000, b"k", b"%d" % n, [("h", b"x")]) for n in numbers], codec=codec))
        broker.changed.notify_all()


def offsets(broker: FakeBroker, **options: Any) -> dict[int, list[int]]:
    """The offsets that a reader gives, by partition."""
    found: dict[int, list[int]] = {}
    for batch in seglog.read_arrow(broker.address, "t", columns=["offset", "partition"], **options):
        for offset, partition in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found.setdefault(partition, []).append(offset)
    return found


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker(topics={"t": 2}) as running:
        fill(running, 20)
        fill(running, 7, partition=1, codec=Codec.ZSTD)
        yield running


def test_a_path_as_text_is_told_from_an_address_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for text in ("data", str(tmp_path / "nowhere"), "./data"):
        with pytest.raises(ValueError, match=re.escape(f"pass pathlib.Path({text!r})")):
            seglog.read_arrow(text, "t")
    with pytest.raises(ValueError, match="is a path, not an address; write HOST:PORT"):
        seglog.write_arrow("./data", "t", pa.table({"value": ["v"]}))
    with pytest.raises(ValueError, match="another kind of URL"):
        seglog.read_arrow("http://localhost:9192", "t")


def test_keys_and_values_are_text_where_that_is_asked_for(broker: FakeBroker) -> None:
    raw = seglog.read_arrow(broker.address, "t", headers=True).read_all()
    read = seglog.read_arrow(broker.address, "t", headers=True, decode="utf8", batch_rows=3)
    text = read.read_all()
    assert text.schema == read.schema
    assert [field.type for field in text.schema if field.name in {"key", "value"}] == [pa.string()] * 2
    assert text.cast(raw.schema) == raw


def test_what_is_no_text_is_named_and_nothing_of_its_batch_is_passed_over(broker: FakeBroker) -> None:
    with broker.changed:
        for content in (b"\xc3\xa9", None, b"ab\xff", b"\xff"):
            broker.logs["t"][1].append(encode_batch([(0, None, content, [])]))
    reader = seglog.read_arrow(broker.address, "t", partitions=[1], decode="utf8", batch_rows=1)
    with pytest.raises(ValueError, match=r"the value of offset 9 in t-1 is no UTF-8 \(byte 0xff at 2\); read without"):
        reader.read_all()
    assert reader.positions() == {1: 9}
    with pytest.raises(ValueError, match="values are bytes, string, json, avro, protobuf, not 'latin1'"):
        seglog.read_arrow(broker.address, "t", decode="latin1")  # type: ignore[arg-type]


def test_values_that_do_not_fit_are_named_or_null(broker: FakeBroker) -> None:
    with broker.changed:
        for content in (b'{"id":1}', b'{"id":"x"}', None, b"{", b'{"id":2}'):
            broker.logs["t"][1].append(encode_batch([(0, b"k\xff", content, [])]))
    values = seglog.Values("json", "id bigint")
    place: dict[str, Any] = {"partitions": [1], "since": 7, "batch_rows": 2}
    reader = seglog.read_arrow(broker.address, "t", decode=values, **place)
    with pytest.raises(ValueError, match=r"the value of offset 8 in t-1 is JSON of another shape \(.*; read without"):
        reader.read_all()
    met: list[seglog.Misfit] = []
    table = seglog.read_arrow(broker.address, "t", decode=values, on_misfit=met.append, **place).read_all()
    assert table["value"].to_pylist() == [{"id": 1}, None, None, None, {"id": 2}]
    assert table["key"].to_pylist() == [b"k\xff"] * 5
    assert [misfit[:3] for misfit in met] == [("t", 1, 8), ("t", 1, 10)]
    assert met[1][3:] == ("no JSON (Input data was truncated)", b"{")
    assert seglog.read_arrow(broker.address, "t", columns=["offset"], decode="json", **place).read_all().num_rows == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"since": 4, "until": 6}, {0: [4, 5], 1: [4, 5]}),
        ({"since": {0: 17}, "partitions": [0, 1], "until": {1: 2}}, {0: [17, 18, 19], 1: [0, 1]}),
        ({"since": "@5000", "until": "@8000", "partitions": [0]}, {0: [5, 6, 7]}),
        ({"since": "latest"}, {}),
        ({"partitions": [1], "batch_rows": 2}, {1: list(range(7))}),
    ],
)
def test_since_and_until_are_what_a_consumer_takes(
    broker: FakeBroker, options: dict[str, Any], expected: dict[int, list[int]]
) -> None:
    assert offsets(broker, **options) == expected


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 9), st.sampled_from([1, 150, 1 << 20]))
def test_any_range_in_any_pieces_is_exact(start: int, end: int, batch_rows: int, piece_bytes: int) -> None:
    with fake_broker() as broker, mock.patch.object(reading, "PIECE_BYTES", piece_bytes):
        fill(broker, 20)
        reader = seglog.read_arrow(broker.address, "t", since=start, until=end, batch_rows=batch_rows)
        batches = list(reader)
        found = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert found == list(range(start, end))
        assert all(0 < batch.num_rows <= batch_rows for batch in batches)
        assert reader.positions() == {0: max(start, end)}
        assert not list(reader.gaps)


def test_the_end_is_where_it_was_when_the_reader_was_made(broker: FakeBroker) -> None:
    reader = seglog.read_arrow(broker.address, "t", columns=["offset"])
    fill(broker, 5)
    assert reader.read_all().num_rows == 27
    following = seglog.read_arrow(broker.address, "t", since=reader.positions(), columns=["offset"])
    assert following.read_all().column("offset").to_pylist() == [20, 21, 22, 23, 24]
    assert following.positions() == {0: 25, 1: 7}


def test_it_can_stand_for_a_reader_of_pyarrow(broker: FakeBroker) -> None:
    with seglog.connect(broker.address) as client:
        expected = seglog.read_arrow(client, "t").read_all()
        assert pa.table(seglog.read_arrow(client, "t")) == expected
        assert pa.RecordBatchReader.from_stream(seglog.read_arrow(client, "t")).read_all() == expected
        assert seglog.read_arrow(client, "t").to_reader().read_all() == expected
        reader = seglog.read_arrow(client, "t")
        assert reader.schema == expected.schema == SCHEMA
        assert pa.Table.from_batches([reader.read_next_batch(), *reader]) == expected
        with pytest.raises(StopIteration):
            reader.read_next_batch()


def test_what_was_asked_for_wrongly_is_refused_before_anything_is_read(broker: FakeBroker) -> None:
    with pytest.raises(ValueError, match="no column 'values'"):
        seglog.read_arrow(broker.address, "t", columns=["values"])
    with pytest.raises(ValueError, match="batch_rows is 1 or more"):
        seglog.read_arrow(broker.address, "t", batch_rows=0)
    assert broker.requests == []
    with pytest.raises(UnknownTopicError):
        seglog.read_arrow(broker.address, "u")
    broker.stop()
    impatient = partial(seglog.connect, connect_timeout=0.1)
    with mock.patch.object(reading, "connect", impatient), pytest.raises(NotReachableError):
        seglog.read_arrow("127.0.0.1:1", "t")


def test_a_reader_that_is_closed_early(broker: FakeBroker) -> None:
    """A reader that is closed early hands out nothing and lets go of its connections."""
    reader = seglog.read_arrow(broker.address, "t", batch_rows=1)
    next(reader)
    reader.close()
    reader.close()
    unread = seglog.read_arrow(broker.address, "t")
    unread.close()
    for closed in (reader, unread):
        with pytest.raises(ClientClosedError, match="the reader is closed"):
            next(closed)
    # Their sockets, had they stayed open, would be a ResourceWarning when they are collected, which is an error.


# --- Gaps and errors --------------------------------------------------------------------------------------------------


def compact(broker: FakeBroker, number: int, kept: set[int]) -> None:
    """Keep only these offsets of one batch of partition 0."""
    batches = broker.logs["t"][0].batches
    header = parse_header(batches[number])
    records = decode_records(header, batches[number])
    batches[number] = compacted_batch(header, [record for record in records if record.offset in kept])


def test_every_gap_is_told_once_in_order_and_neighbours_are_one() -> None:
    with fake_broker() as broker:
        fill(broker, 18)
        compact(broker, 0, {1})
        compact(broker, 1, set())
        compact(broker, 2, {7})
        del broker.logs["t"][0].batches[4]
        told: list[seglog.ConsumerGap] = []
        with mock.patch.object(reading, "PIECE_BYTES", 150):
            reader = seglog.read_arrow(broker.address, "t", since=0, until=17, on_gap=told.append)
            assert reader.read_all().column("offset").to_pylist() == [1, 7, 9, 10, 11, 15, 16]
        expected = [(0, 1), (2, 7), (8, 9), (12, 15)]
        assert [(gap.start, gap.end) for gap in reader.gaps] == expected
        assert {gap.reason for gap in reader.gaps} == {"compacted", "missing"}
        assert [offset for gap in told for offset in range(gap.start, gap.end)] == [
            offset for start, end in expected for offset in range(start, end)
        ]


@settings(max_examples=examples(200))
@given(st.integers(0, 2), st.data())
def test_damage_is_an_error_behind_the_rows_before_it_and_reading_goes_on_behind_it(
    number: int, choices: st.DataObject
) -> None:
    with fake_broker() as broker:
        fill(broker, 12)
        batches = broker.logs["t"][0].batches
        damaged = bytearray(batches[number])
        # Not in the last offset's delta (23 to 26), by which the fake broker finds batches.
        flipped = choices.draw(st.sampled_from([*range(CRC_POSITION, 23), *range(27, len(damaged))]))
        damaged[flipped] ^= 1 << choices.draw(st.integers(0, 7))
        batches[number] = bytes(damaged)
        start, end = 3 * number, 3 * number + 3
        reader = seglog.read_arrow(broker.address, "t")
        rows: list[int] = []
        with pytest.raises(CorruptRecordError) as caught:
            rows.extend(offset for batch in reader for offset in batch.column("offset").to_pylist())
        error = caught.value
        assert rows == list(range(start))
        assert (error.topic, error.partition, error.start_offset, error.next_offset) == ("t", 0, start, end)
        behind = seglog.read_arrow(broker.address, "t", since=reader.positions() | {error.partition: error.next_offset})
        assert behind.read_all().column("offset").to_pylist() == list(range(end, 12))


def test_limits_and_places_that_the_reader_was_given_are_those_of_its_consumer_and_its_tables() -> None:
    with fake_broker() as broker:
        fill(broker, 6)
        broker.logs["t"][0].append(encode_batch([(0, None, bytes(200_000), ())], codec=Codec.ZSTD))
        del broker.logs["t"][0].batches[0]
        broker.logs["t"][0].earliest = 3
        reader = seglog.read_arrow(
            broker.address, "t", since=0, on_out_of_range="earliest", decompressed_batch_bytes_max=100_000
        )
        assert next(reader).num_rows == 3
        with pytest.raises(CorruptRecordError, match="more than 100000 bytes"):
            reader.to_reader().read_all()  # also through pyarrow
        assert [tuple(gap) for gap in reader.gaps] == [("t", 0, 0, 3, "expired")]


# --- A stream is read once --------------------------------------------------------------------------------------------

AGAIN: Final[dict[str, Callable[[ArrowReader], object]]] = {
    "a loop": list,
    "read_all": lambda reader: reader.read_all(),
    "to_reader": lambda reader: reader.to_reader().read_all(),
    "Arrow's interface": pa.table,
}


@each_case("again", AGAIN.values(), ids=AGAIN.keys())
@each_case("is_empty", [False, True])
def test_a_reader_that_was_read_says_so_instead_of_giving_no_rows(
    again: Callable[[ArrowReader], object], is_empty: bool
) -> None:
    with fake_broker() as broker, seglog.connect(broker.address) as client:
        if not is_empty:
            broker.logs["t"][0].append(encode_batch([(1, None, b"x", ())]))
        reader = seglog.read_arrow(client, "t")
        assert reader.read_all().num_rows == (not is_empty)
        with pytest.raises(seglog.ClientClosedError, match=r"at its end.*once"):
            again(reader)
        with pytest.raises(seglog.ClientClosedError, match="at its end"):
            seglog.write_arrow(client, "t", reader)
        with pytest.raises(StopIteration):
            next(reader)  # as every iterator


def test_a_reader_that_met_an_error_does_not_end_as_if_it_had_read_all() -> None:
    with fake_broker() as broker, seglog.connect(broker.address) as client:
        for damaged in (False, True, False):
            batch = bytearray(encode_batch([(1, None, b"x", ())]))
            if damaged:
                batch[CRC_POSITION] ^= 1
            broker.logs["t"][0].append(bytes(batch))
        reader = seglog.read_arrow(client, "t")
        assert next(reader).num_rows == 1
        with pytest.raises(seglog.CorruptRecordError):
            next(reader)
        for go_on in (lambda: next(reader), reader.read_all, lambda: list(reader)):
            with pytest.raises(
                seglog.ClientClosedError, match=r"ended with an error .*checksum.*since=reader.positions"
            ):
                go_on()


def test_pieces_are_read_into_the_same_memory(tmp_path: Path) -> None:
    """So none is held by anything when the next one is read."""
    (tmp_path / "t-0").mkdir()
    log = b"".join(rewritten(encode_batch([(0, None, b"v" * 50_000, [])] * 2), 2 * number) for number in range(12))
    (tmp_path / "t-0" / segment_file_name(0, LOG_SUFFIX)).write_bytes(log)
    sizes: list[int] = []

    def noting(data: memoryview) -> BatchColumns:
        sizes.append(len(data.obj) if isinstance(data.obj, bytearray) else 0)
        return read_batches(data)

    with mock.patch.object(reading, "PIECE_BYTES", 201_000), mock.patch.object(reading, "read_batches", noting):
        assert seglog.read_arrow(tmp_path, "t").read_all().num_rows == 24
    first, *others = [size for size in sizes if size]
    assert others[:4] == [first - 1, first - 2, first - 3, first - 4], "each use takes a byte"


def rewritten(batch: bytes, offset: int) -> bytes:
    moved = bytearray(batch)
    rewrite_offset_and_epoch(moved, 0, offset, 0)
    return bytes(moved)


def batch(data: memoryview, partition: int = 0) -> FetchedBatch:
    header = parse_header(data, 0)
    return FetchedBatch("t", partition, header, data, header.base_offset, header.next_offset)


BATCH = encode_batch([(0, b"k", b"v" * 100, [])])
SIZE = len(BATCH)


def views(count: int) -> list[memoryview]:
    """Neighbours in one buffer."""
    whole = memoryview(BATCH * count)
    return [whole[start : start + SIZE] for start in range(0, len(whole), SIZE)]


@given(st.integers(0, 5), st.integers(1, 5), st.sampled_from([bytes, bytearray]))
def test_neighbours_are_looked_at_where_they_are(start: int, count: int, kind: type[bytes | bytearray]) -> None:
    whole = kind(b"0123456789" * 10)
    parts = [memoryview(whole)[place * 7 : place * 7 + 7] for place in range(start, start + count)]
    found = one_buffer(parts)
    assert bytes(found) == b"".join(parts)
    assert isinstance(found, memoryview)
    assert found.obj is whole


@pytest.mark.parametrize(
    "parts",
    [
        [memoryview(b"ab"), memoryview(b"cd")],
        [memoryview(b"abcd")[:1], memoryview(b"abcd")[2:]],
        [part := memoryview(b"abcd")[2:], memoryview(part.obj)[:2]],
    ],
    ids=["elsewhere", "with a hole", "the other way round"],
)
def test_what_does_not_lie_in_a_row_is_copied_together(parts: list[memoryview]) -> None:
    assert one_buffer(parts) == b"".join(parts)


def test_pieces_are_of_one_partition() -> None:
    """A piece is of one partition and ends with the buffer when it is worth decoding."""
    first, second = views(3), views(4)
    batches = [*map(batch, first), *map(batch, second), batch(second[0], 1)]
    assert [len(piece) for piece in pieces(batches, 5 * SIZE)] == [3, 4, 1], "each lies in one buffer"
    assert [len(piece) for piece in pieces(batches, 4 * SIZE)] == [3, 4, 1]
    assert [len(piece) for piece in pieces(batches, 2 * SIZE)] == [2, 1, 2, 2, 1]
    assert [len(piece) for piece in pieces(batches, 1000 * SIZE)] == [7, 1], "small ones are worth a copy"


@pytest.mark.parametrize(("piece_bytes", "sizes"), [(16 * SIZE, [3, 4, 1]), (32 * SIZE, [7, 1])])
def test_a_piece_that_is_worth_decoding_comes_before_more_is_fetched(piece_bytes: int, sizes: list[int]) -> None:
    received: list[memoryview] = []

    def fetched() -> Iterator[FetchedBatch]:
        for count in (3, 4, 1):
            received.extend(views(count))
            while received:
                yield batch(received.pop(0))

    assert [len(piece) for piece in pieces(fetched(), piece_bytes, lambda: bool(received))] == sizes
