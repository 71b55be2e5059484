"""What is asked of the records of a batch; what is asked of its header is tested with the requests."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.batch_checks import (
    RECORDS_NAMED_MAX,
    RecordRules,
    check_batch,
    check_records,
    check_small_records,
    record_rules,
)
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec, compress
from seglog_protocol.errors import InvalidRecordError, InvalidTimestampError
from seglog_protocol.record_batch import parse_header, seal_batch
from tests.support import each_case

NOW = 1_700_000_000_000


@each_case(
    ("policy", "timestamps", "before_max_ms", "rules"),
    [
        ("delete", "CreateTime", None, None),
        ("delete", "CreateTime", 1000, RecordRules(needs_key=False, earliest=NOW - 1000, before_max_ms=1000)),
        ("delete", "LogAppendTime", 1000, None),
        ("compact", "LogAppendTime", 1000, RecordRules(needs_key=True, earliest=None, before_max_ms=1000)),
    ],
)
def test_records_are_decompressed_only_for_a_rule_that_can_refuse_one(
    policy: str, timestamps: str, before_max_ms: int | None, rules: RecordRules | None
) -> None:
    config = TopicConfig(cleanup_policy=(policy,), message_timestamp_type=timestamps)
    if before_max_ms is not None:
        config = replace(config, message_timestamp_before_max_ms=before_max_ms)
    assert record_rules(config, NOW) == rules


KEYED = RecordRules(needs_key=True, earliest=NOW - 1000, before_max_ms=1000)


def refusal(data: bytes, rules: RecordRules = KEYED) -> InvalidRecordError | InvalidTimestampError:
    with pytest.raises((InvalidRecordError, InvalidTimestampError)) as caught:
        check_records(parse_header(data), memoryview(data), rules)
    assert isinstance(caught.value, InvalidRecordError | InvalidTimestampError)
    return caught.value


@each_case("codec", list(Codec))
def test_every_bad_record_is_named(codec: Codec) -> None:
    records = [(NOW, b"k"), (NOW, None), (5, b"k"), (NOW, b"k"), (6, None), (7, b"k"), (-1, b"k")]
    error = refusal(encode_batch([(timestamp, key, b"v", ()) for timestamp, key in records], codec=codec))
    assert isinstance(error, InvalidTimestampError)
    assert (error.record, list(error.records), error.timestamp) == (1, [1, 2, 4, 5], 5)
    assert "record 2 has timestamp 5" in error.message
    assert "record 1 has no key, which a compacted topic needs (and 1 more of the batch)" in error.message


@each_case("codec", list(Codec))
@each_case("policy", ["delete", "compact"])
def test_a_compressed_record_may_have_as_many_bytes_as_the_topic_says(codec: Codec, policy: str) -> None:
    """Kafka counts a record without its own length, and does not look at what comes without compression."""
    config = TopicConfig(max_decompressed_message_bytes=100, cleanup_policy=(policy,))
    rules = record_rules(config, NOW)
    assert rules is not None
    for size, is_refused in (92, False), (93, codec is not Codec.NONE):  # with 8 bytes around it
        data = encode_batch([(NOW, b"k", b"v" * each, ()) for each in (1, size, 1)], codec=codec)
        if is_refused:
            assert "a record has 101 bytes without compression" in refusal(data, rules).message
        else:
            check_records(parse_header(data), memoryview(data), rules)
        with nullcontext() if not is_refused else pytest.raises(InvalidRecordError):
            assert check_small_records(parse_header(data), memoryview(data), rules)


@pytest.mark.parametrize("records", [b"\x80", b"\x01", b"\x7e\0"])
def test_a_record_whose_length_cannot_be_is_refused_where_lengths_are_looked_at(records: bytes) -> None:
    header = parse_header(encode_batch([(NOW, b"k", b"v", ())], codec=Codec.ZSTD))
    packed = seal_batch(header, compress(Codec.ZSTD, records))
    rules = RecordRules(needs_key=False, earliest=None, before_max_ms=1000, size_max=100)
    assert "cannot be read" in refusal(packed, rules).message


def test_no_more_are_named_than_the_batch_has_room_for_uncompressed() -> None:
    data = encode_batch([(NOW, None, None, ())] * 50_000, codec=Codec.ZSTD)
    error = refusal(data)
    assert 0 < len(error.records) < len(data) / 5
    assert "(and 49999 more of the batch)" in error.message
    plain = encode_batch([(NOW, None, None, ())] * (RECORDS_NAMED_MAX + 1))
    assert list(refusal(plain).records) == list(range(RECORDS_NAMED_MAX))
    small = encode_batch([(NOW, None, None, ())] * 3)
    assert list(refusal(small).records) == [0, 1, 2]


def test_timestamps_in_the_future_are_named() -> None:
    data = encode_batch([(time, b"k", b"v", ()) for time in (NOW, 2 * NOW, NOW - 5000, 3 * NOW)])
    with pytest.raises(InvalidTimestampError) as caught:
        check_batch(memoryview(data), replace(TopicConfig(), message_timestamp_before_max_ms=1000), NOW)
    assert (caught.value.record, list(caught.value.records), caught.value.timestamp) == (1, [1, 2, 3], 3 * NOW)
