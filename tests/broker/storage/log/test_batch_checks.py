"""What is asked of the records of a batch; what is asked of its header is tested with the requests."""

from dataclasses import replace

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.batch_checks import (
    RECORDS_NAMED_MAX,
    RecordRules,
    check_batch,
    check_records,
    record_rules,
)
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.errors import InvalidRecordError, InvalidTimestampError
from seglog_protocol.record_batch import parse_header

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("codec", list(Codec))
def test_every_bad_record_is_named(codec: Codec) -> None:
    records = [(NOW, b"k"), (NOW, None), (5, b"k"), (NOW, b"k"), (6, None), (7, b"k"), (-1, b"k")]
    error = refusal(encode_batch([(timestamp, key, b"v", ()) for timestamp, key in records], codec=codec))
    assert isinstance(error, InvalidTimestampError)
    assert (error.record, list(error.records), error.timestamp) == (1, [1, 2, 4, 5], 5)
    assert "record 2 has timestamp 5" in error.message
    assert "record 1 has no key, which a compacted topic needs (and 1 more of the batch)" in error.message


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
