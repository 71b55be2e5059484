"""Reading records: Kafka's own, every way of being damaged, and any bytes at all."""

import contextlib
import random
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seglog_protocol.batch_builder import NewRecord, encode_batch
from seglog_protocol.compression import Codec, compress
from seglog_protocol.errors import CorruptRecordError, DecompressedTooLargeError, DecompressionError
from seglog_protocol.record_batch import HEADER_SIZE, INT64_MAX, INT64_MIN, parse_header, verify_crc, why_implausible
from seglog_protocol.records import (
    Record,
    RecordReader,
    decode_records,
    encode_record,
    first_record_at,
    iter_records,
)
from tests.support import each_case
from tests.unit.protocol import golden

CODECS = list(Codec)


@pytest.mark.parametrize(
    ("batch", "codec"),
    [
        (golden.TWO_RECORDS_SNAPPY, Codec.SNAPPY),
        (golden.TWO_RECORDS_LZ4, Codec.LZ4),
        (golden.TWO_RECORDS_ZSTD, Codec.ZSTD),
    ],
)
def test_compressed_batches_of_kafka_hold_the_same_two_records(batch: bytes, codec: Codec) -> None:
    assert parse_header(batch).codec is codec
    assert golden.read(batch) == golden.TWO_RECORDS_READ


ONE = encode_record(0, 0, b"k", b"v", [("h", b"x")])


def with_length(body: bytes) -> bytes:
    assert len(body) < 64
    return bytes((len(body) << 1,)) + body


@each_case("codec", CODECS)
@each_case("count", [1, 3])
def test_a_record_count_that_is_not_the_number_of_records_is_corruption(codec: Codec, count: int) -> None:
    batch = encode_batch([(0, b"k", b"v", ()), (0, b"k", b"v", ())], codec=codec, base_offset=50)
    header = parse_header(batch)._replace(record_count=count, last_offset_delta=9)
    with pytest.raises(CorruptRecordError) as caught:
        decode_records(header, batch)
    assert (caught.value.start_offset, caught.value.next_offset) == (50, 60)


DAMAGED = {
    "nothing where a record should be": b"",
    "a length beyond the batch": b"\x20" + ONE[1:],
    "a length one too small": bytes((ONE[0] - 2,)) + ONE[1:],
    "a length one too large, filled": bytes((ONE[0] + 2,)) + ONE[1:] + b"\x00",
    "a negative length": b"\x01" + ONE[1:],
    "a length of six bytes": b"\x80\x80\x80\x80\x80\x00" + ONE[1:],
    "a key beyond the record": with_length(b"\x00\x00\x00\x7ek\x00\x00"),
    "a key of two gigabytes": with_length(b"\x00\x00\x00\xfe\xff\xff\xff\x0fk\x01\x00"),
    "a value beyond the record": with_length(b"\x00\x00\x00\x01\x7ev\x00"),
    "a negative offset delta": with_length(b"\x00\x00\x01\x01\x01\x00"),
    "an offset delta beyond the batch": with_length(b"\x00\x00\x02\x01\x01\x00"),
    "a timestamp delta of eleven bytes": with_length(b"\x00" + b"\x80" * 10 + b"\x00\x00\x01\x01\x00"),
    "a timestamp beyond int64": with_length(b"\x00" + b"\xfe" + b"\xff" * 8 + b"\x01\x00\x01\x01\x00"),
    "an absurd number of headers": with_length(b"\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f"),
    "a negative number of headers": with_length(b"\x00\x00\x00\x01\x01\x01"),
    "a null header key": with_length(b"\x00\x00\x00\x01\x01\x02\x01\x01"),
    "a header key beyond the record": with_length(b"\x00\x00\x00\x01\x01\x02\x7eh\x01"),
    "a header value beyond the record": with_length(b"\x00\x00\x00\x01\x01\x02\x02h\x7e"),
    "a header key that is not UTF-8": with_length(b"\x00\x00\x00\x01\x01\x02\x02\xff\x01"),
    "bytes behind the last record": ONE + b"\x00",
    "a second record": ONE + ONE,
}


@each_case("codec", CODECS)
@each_case("what", DAMAGED)
def test_a_damaged_record_is_corruption_that_names_its_offsets(what: str, codec: Codec) -> None:
    batch = golden.batch_of(compress(codec, DAMAGED[what]), attributes=int(codec), base_offset=5)
    header = parse_header(batch)
    assert verify_crc(batch, 0, header)
    with pytest.raises(CorruptRecordError) as caught:
        decode_records(header, batch)
    assert (caught.value.start_offset, caught.value.next_offset) == (5, 6)


def test_offsets_that_do_not_rise_are_corruption() -> None:
    same = encode_record(0, 0, None, b"v")
    with pytest.raises(CorruptRecordError, match="record 1"):
        golden.read(golden.batch_of(same + same, 2))


def test_records_before_the_damaged_one_are_read_one_by_one_but_not_all_or_nothing() -> None:
    batch = golden.batch_of(encode_record(0, 0, None, b"v") + encode_record(0, 1, None, b"w")[:-1], 2)
    records = iter_records(parse_header(batch), batch)
    assert next(records).value == b"v"
    with pytest.raises(CorruptRecordError):
        next(records)
    with pytest.raises(CorruptRecordError):
        golden.read(batch)


def test_any_negative_length_of_key_and_value_reads_as_none_as_in_kafka() -> None:
    assert golden.read(golden.batch_of(with_length(b"\x00\x00\x00\x03\x05\x00"))) == [Record(0, 283843, None, None, ())]


def test_a_varint_may_carry_its_number_in_more_bytes_than_needed() -> None:
    record = with_length(b"\x00\x82\x80\x80\x00\x80\x80\x80\x80\x00\x82\x80\x00k\x82\x00v\x80\x80\x80\x80\x00")
    assert golden.read(golden.batch_of(record)) == [Record(0, 283844, b"k", b"v", ())]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_corruption(codec: int) -> None:
    batch = golden.batch_of(ONE, attributes=codec)
    with pytest.raises(CorruptRecordError, match=f"codec {codec}"):
        golden.read(batch)
    assert parse_header(batch).codec_id == codec


@each_case("codec", CODECS[1:])
def test_a_damaged_stream_and_a_large_one_keep_their_own_error_and_gain_the_offsets(codec: Codec) -> None:
    batch = encode_batch([(0, None, bytes(10_000), ())], codec=codec, base_offset=3)
    header = parse_header(batch)
    with pytest.raises(DecompressedTooLargeError) as too_large:
        decode_records(header, batch, size_limit=9_999)
    assert (too_large.value.limit, too_large.value.start_offset, too_large.value.next_offset) == (9_999, 3, 4)
    damaged = golden.batch_of(b"no stream at all", attributes=int(codec), base_offset=3)
    with pytest.raises(DecompressionError) as corrupt:
        decode_records(parse_header(damaged), damaged)
    assert (corrupt.value.start_offset, corrupt.value.next_offset) == (3, 4)


@each_case("codec", CODECS)
def test_an_empty_batch_may_name_a_codec(codec: Codec) -> None:
    assert golden.read(golden.batch_of(b"", 0, attributes=int(codec))) == []


def test_a_batch_shorter_than_its_header_says_is_corruption() -> None:
    for size in range(HEADER_SIZE, len(golden.TWO_RECORDS)):
        with pytest.raises(CorruptRecordError, match="cut short"):
            decode_records(parse_header(golden.TWO_RECORDS), golden.TWO_RECORDS[:size])


@given(
    payload=st.binary(max_size=300),
    count=st.integers(0, 50),
    attributes=st.integers(0, 0x7F),
    base_timestamp=st.integers(INT64_MIN, INT64_MAX),
)
def test_any_record_bytes_give_records_or_corruption(
    payload: bytes, count: int, attributes: int, base_timestamp: int
) -> None:
    batch = golden.batch_of(payload, count, attributes=attributes, base_timestamp=base_timestamp)
    header = parse_header(batch)
    with contextlib.suppress(CorruptRecordError):
        first_record_at(header, batch, INT64_MAX, 0)
    try:
        records = decode_records(header, batch)
    except CorruptRecordError:
        return
    assert len(records) == count
    assert all(first.offset < second.offset for first, second in pairwise(records))
    assert all(INT64_MIN <= record.timestamp <= INT64_MAX for record in records)


def read_by(size: int, batch: bytes) -> tuple[list[Record], str]:
    """The records read ``size`` at a time, and the error after them."""
    reader = RecordReader(parse_header(batch), batch, Record, at_once=size)
    records: list[Record] = []
    try:
        while more := reader.read():
            assert len(more) <= size
            records += more
    except CorruptRecordError as error:
        assert not reader.is_finished
        return records, error.message
    assert reader.is_finished
    return records, ""


@given(st.lists(st.sampled_from([ONE, *DAMAGED.values()]), max_size=6), st.integers(0, 9), st.data())
def test_however_many_records_are_read_at_a_time(parts: list[bytes], cut: int, data: st.DataObject) -> None:
    """However many are read at a time the records and the error after them are the same."""
    records = [encode_record(number, number, b"k" * number, None) for number in range(data.draw(st.integers(0, 5)))]
    payload = b"".join([*records, *parts])[: -cut or None]
    batch = golden.batch_of(payload, data.draw(st.integers(0, len(payload) // 7)))
    one_by_one = read_by(1, batch)
    assert [read_by(size, batch) for size in (2, 3, 1000)] == [one_by_one] * 3
    assert all(first.offset < second.offset for first, second in pairwise(one_by_one[0]))


@given(
    times=st.lists(st.integers(-300, 300) | st.integers(INT64_MIN // 2, INT64_MAX // 2), max_size=8),
    sizes=st.lists(st.integers(0, 200), min_size=8, max_size=8),
    moment=st.integers(-301, 301),
    offset_min=st.integers(0, 9),
    damage=st.none() | st.tuples(st.integers(0, 200), st.integers(0, 255)),
    is_stamped=st.booleans(),
)
def test_the_first_record_at_a_time_is_the_one_that_reading_all_of_them_finds(
    times: list[int],
    sizes: list[int],
    moment: int,
    offset_min: int,
    damage: tuple[int, int] | None,
    is_stamped: bool,
) -> None:
    records = [encode_record(at, number, b"k", b"v" * sizes[number]) for number, at in enumerate(times)]
    payload = bytearray(b"".join(records))
    if damage is not None and damage[0] < len(payload):
        payload[damage[0]] = damage[1]
    batch = golden.batch_of(bytes(payload), len(times), attributes=8 * is_stamped)
    header = parse_header(batch)
    try:
        wanted = next(
            (
                (record.timestamp, record.offset)
                for record in decode_records(header, batch)
                if record.timestamp >= moment and record.offset >= offset_min
            ),
            None,
        )
    except CorruptRecordError:
        with contextlib.suppress(CorruptRecordError):
            first_record_at(header, batch, moment, offset_min)
    else:
        assert first_record_at(header, batch, moment, offset_min) == wanted


def test_records_are_made_as_the_kind_asked_for() -> None:
    """Records are made as the kind that is asked for with what is to stand before their fields."""

    class Placed(NamedTuple):
        topic: str
        partition: int
        offset: int
        timestamp: int
        key: bytes | None
        value: bytes | None
        headers: tuple[tuple[str, bytes | None], ...]

    reader = RecordReader(parse_header(golden.TWO_RECORDS), golden.TWO_RECORDS, Placed, ("t", 3))
    records = reader.read()
    assert [(record.topic, record.partition, record.offset) for record in records] == [("t", 3, 0), ("t", 3, 1)]
    assert [tuple(record[2:]) for record in records] == [tuple(record) for record in golden.TWO_RECORDS_READ]
    assert reader.read() == []


@each_case(("size", "at_once"), [(100, 128), (50_000, 20), (600_000, 1), (3_000_000, 1)])
def test_of_large_records_fewer_are_in_memory_at_a_time(size: int, at_once: int) -> None:
    batch = encode_batch([(0, None, bytes(size), ())] * (40 if size > 1000 else 1000))
    reader = RecordReader(parse_header(batch), batch, Record)
    assert len(reader.read()) == at_once


@given(data=st.binary(min_size=HEADER_SIZE, max_size=400))
@example(data=golden.TWO_RECORDS)
def test_any_bytes_give_a_header_and_then_records_or_corruption(data: bytes) -> None:
    header = parse_header(data)
    verify_crc(data, 0, header)
    try:
        decode_records(header, data)
    except CorruptRecordError:
        return
    assert why_implausible(header) is None


@each_case("codec", CODECS)
def test_any_damage_to_a_batch_gives_records_or_corruption(codec: Codec) -> None:
    records: list[NewRecord] = [(number, b"key", b"value" * number, [("header", b"x")]) for number in range(40)]
    batch = encode_batch(records, codec=codec)
    dice = random.Random(int(codec))
    for _ in range(3000):
        damaged = bytearray(batch)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(16, len(damaged))] = dice.randrange(256)
        header = parse_header(damaged)
        try:
            decode_records(header, damaged, size_limit=1 << 20)
        except CorruptRecordError:
            continue
