"""Writing batches: Kafka's own bytes come out, and what was written is read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.batch_builder import BatchBuilder, NewRecord, compacted_batch, encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import HEADER_SIZE, INT64_MAX, INT64_MIN, parse_header
from seglog_protocol.records import Record
from tests.support import each_case
from tests.unit.protocol import golden

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
