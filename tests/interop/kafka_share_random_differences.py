"""Where answers in random stories of share groups may differ from a real Kafka's, and why. No others may."""

from collections.abc import Callable
from typing import Any, Final

from tests.interop.kafka_random_differences import Difference, Reason, explains


def _acquired(answer: Any) -> dict[tuple[str, int], Any]:
    """What was given, by the partition."""
    return {
        (topic["topic_id"], part["partition_index"]): part
        for topic in answer["responses"]
        for part in topic["partitions"]
        if part["acquired_records"]
    }


def _missing(holds: Callable[[Difference, tuple[str, int], Any], bool]) -> Callable[[Difference], bool]:
    """Whether this holds of a partition of which Kafka gives nothing, and of what is given of it here."""

    def is_missing(difference: Difference) -> bool:
        kafka, ours = map(_acquired, difference.answers)
        return any(holds(difference, place, part) for place, part in ours.items() if place not in kafka)

    return is_missing


def _is_of_next_segment(difference: Difference) -> bool:
    """Whether the last segment of the compacted topic, which has one record, is what Kafka has not."""
    kafka, ours = (str(_acquired(answer).get(("{id of holes}", 0))) for answer in difference.answers)
    return "'120 to 120" in ours and "'120 to 120" not in kafka


def _is_cut(difference: Difference, place: tuple[str, int], _: Any) -> bool:
    deleted = [case.fields["topics"][0] for case in difference.before if case.api == "DeleteRecords"]
    places = [(f"{{id of {topic['name']}}}", topic["partitions"][0]["partition_index"]) for topic in deleted]
    return place in places


REASONS: Final = (
    Reason(
        "Kafka fails with a NullPointerException where nothing in flight begins before what is acknowledged",
        "ShareFetch|ShareAcknowledge",
        r".*",
        lambda difference: difference.answers[0]["error_code"] == -1,
        ends=True,
    ),
    Reason(
        "Kafka fails where it has read aborted records before the start",
        "ShareFetch",
        r"responses.*",
        lambda difference: "'error_code': -1" in str(difference.answers[0]),
        ends=True,
    ),
    Reason(
        "Kafka fails to delete a group that AlterShareGroupOffsets has given a partition that there is not",
        "DeleteGroups",
        r".*error_code",
        lambda difference: difference.kafka == -1,
    ),
    Reason(
        "where no record is young enough for by_duration Kafka answers OFFSET_NOT_AVAILABLE until there is one; here a"
        " group begins at the end",
        "ShareFetch",
        r"responses.*",
        lambda difference: "'error_code': 78" in str(difference.answers[0]),
        ends=True,
    ),
    Reason(
        "where a group begins is on the disk before its first record is given; in Kafka with its first acknowledgement",
        "DescribeShareGroupOffsets",
        r".*(start_offset|lag)",
        lambda difference: difference.kafka == -1,
    ),
    Reason(
        "Kafka writes an acknowledgement with the start of before it, and the start behind it with the next one",
        "DescribeShareGroupOffsets",
        r".*start_offset",
        lambda difference: 0 <= difference.kafka < difference.ours,
    ),
    Reason(
        "of two mistakes each names one",
        "ShareFetch|ShareAcknowledge",
        r".*error_code",
        lambda difference: 0 not in (difference.kafka, difference.ours),
    ),
    Reason(
        "a fetch of nothing looks at no partition; Kafka names those that there are not",
        "ShareFetch",
        r"responses.*",
        lambda difference: difference.case.fields.get("max_bytes") == 0,
    ),
    Reason("Kafka reads one segment at a time", "ShareFetch", r"responses.*", _is_of_next_segment, ends=True),
    Reason(
        "the first fetch after DeleteRecords finds in Kafka that its offset is gone, and gives nothing",
        "ShareFetch",
        r"responses.*",
        _missing(_is_cut),
        ends=True,
    ),
    Reason(
        "a fetch goes on behind aborted records; Kafka's gives nothing where it acquired nothing else",
        "ShareFetch",
        r"responses.*",
        _missing(lambda _difference, _place, part: part["records"][0].endswith("marker")),
        ends=True,
    ),
)


def reason_of(difference: Difference) -> Reason | None:
    """The first that explains it."""
    return next((reason for reason in REASONS if explains(reason, difference)), None)
