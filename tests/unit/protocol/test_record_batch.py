"""Batches: Kafka's own bytes are read and written, rewritten in place, and found in a buffer."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seglog_protocol.batch_builder import BatchBuilder, NewRecord, compacted_batch, encode_batch
from seglog_protocol.checksum import crc32c
from seglog_protocol.compression import Codec
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import (
    HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    BatchHeader,
    add_sequence,
    iter_batches,
    outline,
    parse_header,
    rewrite_log_append_time,
    rewrite_offset_and_epoch,
    seal_batch,
    subtract_sequence,
    verify_crc,
    why_implausible,
)
from seglog_protocol.records import Record, decode_records
from tests.support import each_case
from tests.unit.protocol import golden


def test_the_checksum_has_the_published_check_value_and_goes_on_from_a_former_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"..123456789")[6:], crc32c(bytearray(b"1234"))) == 0xE3069283
    assert crc32c(b"") == 0


def test_two_records_are_read_as_kafka_wrote_them() -> None:
    header = parse_header(golden.TWO_RECORDS)
    assert header == BatchHeader(0, 85, -1, 2, 3851219455, 0, 1, 283843, 283843, -1, -1, -1, 2)
    assert (header.size, header.last_offset, header.next_offset) == (97, 1, 2)
    assert (header.codec, header.last_sequence, header.delete_horizon) == (Codec.NONE, -1, None)
    assert golden.read(golden.TWO_RECORDS) == golden.TWO_RECORDS_READ


# --- Rewriting in place -----------------------------------------------------------------------------------------------


def test_log_append_time_is_written_in_place_and_whole_as_in_kafka() -> None:
    records: list[NewRecord] = [(10, b"k", b"v", ()), (12, b"k", b"w", ())]
    batch = bytearray(encode_batch(records))
    rewrite_offset_and_epoch(batch, 0, 100, 7)
    checksum = parse_header(batch).crc
    rewrite_log_append_time(batch, 0, 5000)
    assert batch == golden.LOG_APPEND_TIME
    assert parse_header(batch).crc != checksum
    assert encode_batch(records, base_offset=100, leader_epoch=7, log_append_time=5000) == batch
    assert golden.read(batch) == [Record(100, 5000, b"k", b"v", ()), Record(101, 5000, b"k", b"w", ())]


@given(
    offset=st.integers(0, INT64_MAX - 2),
    epoch=st.integers(0, INT32_MAX),
    before=st.binary(max_size=20),
    after=st.binary(max_size=20),
)
def test_offset_and_epoch_leave_the_checksum_valid_and_the_neighbours_alone(
    offset: int, epoch: int, before: bytes, after: bytes
) -> None:
    buffer = bytearray(before + golden.TWO_RECORDS + after)
    rewrite_offset_and_epoch(memoryview(buffer), len(before), offset, epoch)
    header = parse_header(buffer, len(before))
    assert (header.base_offset, header.leader_epoch) == (offset, epoch)
    assert header.crc == parse_header(golden.TWO_RECORDS).crc
    assert verify_crc(buffer, len(before), header)
    assert buffer[: len(before)] == before
    assert buffer[len(before) + header.size :] == after
    batch = memoryview(buffer)[len(before) :][: header.size]
    assert [record.offset for record in decode_records(header, batch)] == [offset, offset + 1]


def test_every_flipped_bit_behind_the_checksum_is_noticed() -> None:
    for position in range(17, len(golden.TWO_RECORDS)):
        for bit in range(8):
            batch = bytearray(golden.TWO_RECORDS)
            batch[position] ^= 1 << bit
            assert not verify_crc(batch, 0, parse_header(batch))


def test_a_batch_that_reaches_beyond_the_buffer_does_not_match_its_checksum() -> None:
    header = parse_header(golden.TWO_RECORDS)
    assert not verify_crc(golden.TWO_RECORDS[:-1], 0, header)
    assert not verify_crc(golden.TWO_RECORDS, 1, header)
    assert not verify_crc(golden.TWO_RECORDS, 0, header._replace(batch_length=-1))


def test_a_header_of_fewer_bytes_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="61"):
        parse_header(golden.TWO_RECORDS[:60])
    with pytest.raises(ValueError, match="61"):
        parse_header(golden.TWO_RECORDS, 37)


# --- Iterating --------------------------------------------------------------------------------------------------------

ALL_GOLDEN = [
    golden.TWO_RECORDS,
    golden.COMMIT_MARKER,
    golden.IDEMPOTENT,
    golden.IDEMPOTENT_COMPACTED,
    golden.IDEMPOTENT_EMPTIED,
    golden.LOG_APPEND_TIME,
]


def test_batches_come_out_as_they_stand_in_the_buffer_without_a_copy() -> None:
    buffer = bytearray(b"".join(ALL_GOLDEN))
    found = list(iter_batches(buffer))
    assert [bytes(view) for _, view in found] == ALL_GOLDEN
    assert [header for header, _ in found] == [parse_header(batch) for batch in ALL_GOLDEN]
    assert all(view.obj is buffer for _, view in found)


def test_a_tail_cut_at_any_byte_ends_the_batches_quietly() -> None:
    buffer = b"".join(ALL_GOLDEN)
    for cut in range(len(buffer) + 1):
        whole, size = 0, 0
        while whole < len(ALL_GOLDEN) and size + len(ALL_GOLDEN[whole]) <= cut:
            size += len(ALL_GOLDEN[whole])
            whole += 1
        assert [bytes(view) for _, view in iter_batches(buffer[:cut])] == ALL_GOLDEN[:whole]


@pytest.mark.parametrize("zeros", [0, 1, 11])
def test_a_few_zero_bytes_behind_the_last_batch_are_a_torn_tail(zeros: int) -> None:
    assert len(list(iter_batches(golden.TWO_RECORDS + bytes(zeros)))) == 1


@each_case("zeros", [12, 17, 18, 300])
def test_more_zero_bytes_are_no_batch_and_the_error_says_where(zeros: int) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        list(iter_batches(golden.TWO_RECORDS + bytes(zeros)))
    assert caught.value.position == len(golden.TWO_RECORDS)


@each_case("magic", [0, 1, 3, 127, 128, 255])
def test_another_magic_is_refused_even_before_the_batch_is_whole(magic: int) -> None:
    batch = bytearray(golden.TWO_RECORDS)
    batch[16] = magic
    for size in (17, 60, len(batch)):
        with pytest.raises(CorruptRecordError, match="magic"):
            list(iter_batches(batch[:size]))


@each_case("batch_length", [-(2**31), -1, 0, 13, 14, 48])
def test_a_length_too_small_for_a_batch_is_refused(batch_length: int) -> None:
    batch = golden.TWO_RECORDS[:8] + batch_length.to_bytes(4, "big", signed=True) + golden.TWO_RECORDS[12:]
    with pytest.raises(CorruptRecordError):
        list(iter_batches(batch))


@each_case(
    ("field", "value", "reason"),
    [
        ("magic", 1, "old message format 1"),
        ("magic", 3, "magic is 3"),
        ("batch_length", 48, "length is 48"),
        ("base_offset", -1, "base offset"),
        ("last_offset_delta", -1, "last offset delta"),
        ("base_offset", INT64_MAX - 1, "no room"),
        ("record_count", -1, "records"),
        ("record_count", 3, "3 records in 2 offsets"),
    ],
)
def test_an_impossible_header_field_is_named(field: str, value: int, reason: str) -> None:
    header = parse_header(golden.TWO_RECORDS)._replace(**{field: value})
    found = why_implausible(header)
    assert found is not None
    assert reason in found
    with pytest.raises(CorruptRecordError):
        decode_records(header, golden.TWO_RECORDS)


@given(data=st.binary(max_size=300), prefix=st.sampled_from([b"", golden.TWO_RECORDS]))
def test_any_buffer_gives_batches_or_corruption(data: bytes, prefix: bytes) -> None:
    found = 0
    batches = iter_batches(prefix + data)
    while True:
        try:
            header, view = next(batches)
        except (StopIteration, CorruptRecordError):
            break
        assert header.size == len(view)
        found += len(view)
    assert len(prefix) <= found <= len(prefix + data)


@given(
    fields=st.dictionaries(
        st.sampled_from(["base_offset", "batch_length", "magic", "last_offset_delta", "record_count"]),
        st.sampled_from([-1, 0, 1, 2, 3, 48, 49, 84, 86, 2**31 - 1]),
    ),
    large=st.sampled_from([None, 2**61, 2**61 + 1, INT64_MAX - 2, INT64_MAX]),
    cut=st.integers(0, 110),
)
def test_an_outline_tells_and_refuses_what_iterating_does(fields: dict[str, int], large: int | None, cut: int) -> None:
    fields["magic"] = min(fields.get("magic", 2), 127)
    header = parse_header(golden.TWO_RECORDS)._replace(**fields)
    header = header if large is None else header._replace(base_offset=large)
    batch = seal_batch(header, golden.TWO_RECORDS[HEADER_SIZE:])
    if "batch_length" in fields:
        batch = batch[:8] + header.batch_length.to_bytes(4, "big", signed=True) + batch[12:]
    batch = batch[:16] + header.magic.to_bytes(1, "big", signed=True) + batch[17:]
    view = memoryview(golden.COMMIT_MARKER + batch + golden.TWO_RECORDS)[: len(golden.COMMIT_MARKER) + cut]
    batches = iter_batches(view[len(golden.COMMIT_MARKER) :])
    try:
        found, of = next(batches)
    except CorruptRecordError as error:
        with pytest.raises(CorruptRecordError, match=re.escape(error.message)):
            outline(view, len(golden.COMMIT_MARKER))
    except StopIteration:
        assert outline(view, len(golden.COMMIT_MARKER)) is None
    else:
        wanted = len(of), found.base_offset, found.last_offset, found.attributes
        assert outline(view, len(golden.COMMIT_MARKER)) == wanted


@given(sequence=st.integers(0, INT32_MAX), step=st.integers(0, INT32_MAX))
@example(sequence=INT32_MAX, step=1)
@example(sequence=0, step=1)
def test_sequences_wrap_as_in_kafka(sequence: int, step: int) -> None:
    added = sequence + step if sequence <= INT32_MAX - step else step - (INT32_MAX - sequence) - 1
    subtracted = sequence - step if sequence >= step else INT32_MAX - (step - sequence) + 1
    assert add_sequence(sequence, step) == added
    assert subtract_sequence(sequence, step) == subtracted


def test_the_last_sequence_of_a_batch_wraps() -> None:
    batch = encode_batch([(0, None, b"", ())] * 21, producer_id=1, producer_epoch=0, base_sequence=INT32_MAX - 10)
    assert parse_header(batch).last_sequence == 9


# --- Writing batches: Kafka's own bytes come out, and what was written is read again ----------------------------------


CODECS = list(Codec)


def test_two_records_are_written_as_kafka_writes_them() -> None:
    records = [(283843, b"key1", b"value1", ()), (1234, b"key2", b"value2", ())]
    assert encode_batch(records) == golden.TWO_RECORDS


def test_a_commit_marker_is_written_and_read_as_in_kafka() -> None:
    key, value = bytes.fromhex("00000001"), bytes.fromhex("000000000009")
    batch = encode_batch(
        [(1000, key, value, ())],
        base_offset=7,
        leader_epoch=3,
        producer_id=42,
        producer_epoch=1,
        transactional=True,
        control=True,
    )
    assert batch == golden.COMMIT_MARKER
    header = parse_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert header.last_sequence == -1
    assert golden.read(batch) == [Record(7, 1000, key, value, ())]


def test_null_keys_null_values_and_null_headers_are_written_and_read_as_in_kafka() -> None:
    records: list[NewRecord] = [(1000, None, b"v", [("h", None)]), (1001, b"k", None, ())]
    batch = encode_batch(records, base_offset=5, leader_epoch=3, producer_id=42, producer_epoch=1, base_sequence=10)
    assert batch == golden.IDEMPOTENT
    assert parse_header(batch).last_sequence == 11
    assert golden.read(batch) == golden.IDEMPOTENT_READ


def test_a_compacted_batch_is_written_and_read_as_in_kafka() -> None:
    original = parse_header(golden.IDEMPOTENT)
    batch = compacted_batch(original, golden.IDEMPOTENT_READ[1:], delete_horizon=5100)
    assert batch == golden.IDEMPOTENT_COMPACTED
    header = parse_header(batch)
    assert header.has_delete_horizon
    assert header.delete_horizon == 5100
    assert (header.base_offset, header.last_offset, header.record_count) == (5, 6, 1)
    assert golden.read(batch) == golden.IDEMPOTENT_READ[1:]


def test_a_later_compaction_inherits_the_delete_horizon() -> None:
    header = parse_header(golden.IDEMPOTENT_COMPACTED)
    again = compacted_batch(header, golden.read(golden.IDEMPOTENT_COMPACTED), delete_horizon=999_999)
    assert again == golden.IDEMPOTENT_COMPACTED


@pytest.mark.parametrize("before", [golden.IDEMPOTENT, golden.IDEMPOTENT_COMPACTED])
def test_a_batch_that_is_kept_empty_is_a_bare_header_as_in_kafka(before: bytes) -> None:
    batch = compacted_batch(parse_header(before), [])
    assert batch == golden.IDEMPOTENT_EMPTIED
    assert len(batch) == HEADER_SIZE
    assert golden.read(batch) == []


def test_compaction_refuses_records_that_are_not_of_the_batch() -> None:
    header = parse_header(golden.IDEMPOTENT)
    for offsets in ([4], [7], [6, 5], [5, 5]):
        with pytest.raises(ValueError, match="offset"):
            compacted_batch(header, [Record(offset, 0, b"k", b"v", ()) for offset in offsets])


@each_case("codec", CODECS)
def test_codec_and_append_time_after_compaction(codec: Codec) -> None:
    """Compaction keeps codec and append time and drops the codec of an emptied batch."""
    batch = encode_batch([(1, b"k", b"v", ()), (2, b"k", None, ())], codec=codec, log_append_time=77)
    kept = compacted_batch(parse_header(batch), golden.read(batch)[1:])
    header = parse_header(kept)
    assert (header.codec, header.is_log_append_time, header.base_timestamp) == (codec, True, 77)
    assert golden.read(kept) == [Record(1, 77, b"k", None, ())]
    emptied = parse_header(compacted_batch(header, []))
    assert (emptied.codec, emptied.max_timestamp, emptied.is_log_append_time) == (Codec.NONE, 77, True)


timestamps = st.integers(-1, 2**60) | st.integers(1_700_000_000_000, 1_700_000_100_000)
maybe_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=8), maybe_bytes), max_size=3).map(tuple)
record_lists = st.lists(st.tuples(timestamps, maybe_bytes, maybe_bytes, header_lists), min_size=1, max_size=30)


@given(records=record_lists, codec=st.sampled_from(CODECS), base_offset=st.integers(0, 2**62))
def test_whatever_is_written_is_read_again(records: list[NewRecord], codec: Codec, base_offset: int) -> None:
    batch = encode_batch(records, codec=codec, base_offset=base_offset)
    assert golden.read(batch) == [(base_offset + delta, *record) for delta, record in enumerate(records)]
    header = parse_header(batch)
    assert header.codec is codec
    assert header.max_timestamp == max(record[0] for record in records)
    assert header.base_timestamp == records[0][0]


@given(records=record_lists, limit=st.integers(0, 2000))
def test_the_size_is_known_before_the_batch_is_built(records: list[NewRecord], limit: int) -> None:
    builder = BatchBuilder()
    assert builder.size == HEADER_SIZE
    taken = 0
    for record in records:
        before = builder.size
        if builder.try_append(*record, size_max=limit):
            taken += 1
            assert builder.size <= limit or taken == 1
        else:
            assert builder.size == before
            roomy = BatchBuilder()
            for other in [*records[:taken], record]:
                roomy.append(*other)
            assert roomy.size > limit
            break
    assert builder.record_count == taken
    assert builder.size == len(builder.build()) == len(encode_batch(records[:taken]))


@given(records=record_lists, data=st.data())
def test_compaction_keeps_the_range_and_the_records_it_is_given(records: list[NewRecord], data: st.DataObject) -> None:
    batch = encode_batch(records, base_offset=2**40, leader_epoch=4, producer_id=9, producer_epoch=2, base_sequence=7)
    original = parse_header(batch)
    mask = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    kept = [record for record, keep in zip(golden.read(batch), mask, strict=True) if keep]
    horizon = data.draw(st.none() | st.integers(0, 2**60))
    result = compacted_batch(original, kept, delete_horizon=horizon)
    header = parse_header(result)
    assert golden.read(result) == kept
    for name in ("base_offset", "last_offset", "last_sequence", "leader_epoch", "producer_id", "producer_epoch"):
        assert getattr(header, name) == getattr(original, name)
    assert header.delete_horizon == (horizon if kept else None)
    if all(mask) and horizon is None:
        assert result == batch


def test_a_builder_can_be_built_again_and_grow_between() -> None:
    builder = BatchBuilder()
    builder.append(5, b"a", None)
    first = builder.build()
    assert builder.build() == first
    builder.append(4, b"b", None, [("ä", b"")])
    assert [record.key for record in golden.read(builder.build(Codec.ZSTD, 19))] == [b"a", b"b"]
    assert golden.read(builder.build()) == [Record(0, 5, b"a", None, ()), Record(1, 4, b"b", None, (("ä", b""),))]


def test_batches_that_cannot_be_encoded() -> None:
    """A batch without records and one with timestamps too far apart are the caller's mistakes."""
    with pytest.raises(ValueError, match="record"):
        BatchBuilder().build()
    with pytest.raises(ValueError, match="too far apart"):
        encode_batch([(INT64_MIN, None, b"", ()), (INT64_MAX, None, b"", ())])


def test_records_without_timestamps_give_a_batch_without_one() -> None:
    header = parse_header(encode_batch([(-1, None, b"", ())] * 3))
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)


def test_batches_of_more_records_than_two_byte_varints_can_number_are_read_again() -> None:
    records: list[NewRecord] = [(number * 1000, None, b"", ()) for number in range(10_000)]
    assert golden.read(encode_batch(records)) == [(offset, *record) for offset, record in enumerate(records)]
