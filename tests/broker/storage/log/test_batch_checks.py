"""What is asked of the records of a batch; what is asked of its header is tested with the requests."""

from dataclasses import replace

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.batch_checks import RecordRules, record_rules

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
