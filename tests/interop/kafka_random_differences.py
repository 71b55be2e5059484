"""Where answers to random requests may differ from a real Kafka's, and why. Any other difference fails.

Sentences of errors are each broker's own.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tests.interop import kafka_group_differences
from tests.interop.kafka_cases import Case
from tests.interop.kafka_random import EMPTY
from tests.interop.kafka_wire import Plain
from tests.interop.peer import KAFKA_VERSION


class Difference(NamedTuple):
    """One difference: the request, where in the answer, both values there, both answers, and what was asked before."""

    case: Case
    path: str
    kafka: Any
    ours: Any
    answers: tuple[Any, Any]
    before: tuple[Case, ...] = ()


class Reason(NamedTuple):
    """Why answers differ: of which apis, at which places, with which values; ``ends``: states differ behind it."""

    why: str
    apis: str
    path: str
    holds: Callable[[Difference], bool] = lambda _: True
    ends: bool = False


def _partitions(responses: list[dict[str, Plain]]) -> list[str]:
    """The results of all partitions, each with its topic."""
    return sorted(
        json.dumps([topic["topic"], topic["topic_id"], partition])
        for topic in responses
        for partition in topic["partitions"]
    )


def _codes(*pairs: tuple[int, int]) -> Callable[[Difference], bool]:
    """Kafka's error code and ours."""
    return lambda place: (place.kafka, place.ours) in pairs


def _kafka_has_fewer(place: Difference) -> bool:
    """Whether all settings that Kafka 4.3 tells of have the same values here; some are described otherwise."""
    theirs, own = ({(each["name"], each["value"]) for each in settings} for settings in (place.kafka, place.ours))
    return _IS_4_3 and theirs <= own


_IS_4_3: Final = KAFKA_VERSION.startswith("4.3.")
_ANY: Final = r".*"
_CODE: Final = r".*error_code"

REASONS: Final = (
    Reason("seglog offers fewer apis, versions and features", "ApiVersions", r"(api_keys|.*_features.*)"),
    Reason("Kafka 4.4 has more keys than 4.3", "DescribeConfigs|CreateTopics", r".*configs", _kafka_has_fewer),
    Reason("Kafka 4.4 describes keys in other words", "DescribeConfigs", r".*documentation", lambda _: _IS_4_3),
    Reason(
        "Kafka 4.3 assigns nothing anew when the last member has left",
        "ConsumerGroupDescribe",
        r".*assignment_epoch",
        lambda place: _IS_4_3 and place.kafka < place.ours,
    ),
    Reason("there is no log of metadata: see DescribeQuorum in docs/KAFKA.md", "DescribeQuorum", _ANY),
    Reason(
        "Kafka looks for a coordinator whose topic is not made yet; here no id is known for good",
        "DescribeTransactions",
        _ANY,
    ),
    Reason(
        "Kafka looks for a coordinator whose topic is not made yet; here it is made when it is needed",
        "InitProducerId|AddPartitionsToTxn|AddOffsetsToTxn|EndTxn|TxnOffsetCommit",
        r".*(error_code|producer_id|producer_epoch)",
    ),
    Reason(
        "a marker without a producer is refused with a code that says so", "WriteTxnMarkers", _CODE, _codes((-1, 42))
    ),
    Reason(
        "version -1 of a transaction is Kafka's own sign for one that is not known: it answers UNKNOWN_SERVER_ERROR; to"
        " any other version that there is not both answer as to the first",
        "WriteTxnMarkers",
        _CODE,
        lambda place: (
            (place.kafka, place.ours) == (-1, 0)
            and -1 in {marker.get("transaction_version") for marker in place.case.fields["markers"]}
        ),
    ),
    Reason(
        "Kafka answers once about a partition that is to be in two places",
        "AlterReplicaLogDirs",
        r"results\.\d+\.partitions",
        lambda place: all(result in place.ours for result in place.kafka),
    ),
    Reason(
        "a topic that is only validated has no id",
        "CreateTopics",
        r".*topic_id",
        lambda place: place.kafka == "of no topic",
    ),
    Reason(
        "of two mistakes in a request each names one",
        "CreateTopics|AlterConfigs|IncrementalAlterConfigs|CreatePartitions",
        _CODE,
        lambda place: bool(place.kafka and place.ours),
    ),
    Reason(
        "segments may be smaller than Kafka's least, one MiB",
        "AlterConfigs|IncrementalAlterConfigs",
        _CODE,
        lambda place: (place.kafka, place.ours) == (40, 0) and "segment.bytes" in str(place.case.fields),
    ),
    Reason(
        "Kafka keeps an empty group of a commit that it has refused, until it is restarted",
        "ListGroups",
        "groups",
        lambda place: (
            all(group in place.kafka for group in place.ours)
            and {group["group_id"] for group in place.kafka if group not in place.ours} <= {*EMPTY}
        ),
    ),
    Reason("the same: there is no such group", "DescribeGroups", _CODE, _codes((0, 69))),
    Reason(
        "the same: there is no such group",
        "DescribeGroups",
        r".*group_state",
        lambda place: (place.kafka, place.ours) == ("Empty", "Dead"),
    ),
    Reason(
        "the same: nobody may do anything with it",
        "DescribeGroups",
        r".*authorized_operations",
        lambda place: (place.kafka, place.ours) == (3400, -(1 << 31)),  # all operations, and "not asked for"
    ),
    Reason(
        "Kafka answers UNKNOWN_SERVER_ERROR to a member epoch without a member", "OffsetFetch", _CODE, _codes((-1, 25))
    ),
    Reason("the same: there is nothing to delete", "DeleteGroups", _CODE, _codes((0, 69))),
    Reason(
        "the same: there is nothing to delete",
        "OffsetDelete",
        _ANY,
        lambda place: (place.answers[0]["error_code"], place.answers[1]["error_code"]) == (0, 69),
    ),
    Reason(
        "Kafka answers UNKNOWN_SERVER_ERROR to an owner without type", "CreateDelegationToken", _CODE, _codes((-1, 64))
    ),
    Reason(
        "Kafka answers UNKNOWN_SERVER_ERROR to a topic without name and id",
        "Metadata",
        _ANY,
        lambda place: -1 in {topic["error_code"] for topic in place.answers[0]["topics"]},
    ),
    Reason(
        "Kafka answers UNKNOWN_SERVER_ERROR to an empty name",
        "DescribeTopicPartitions",
        r"(topics|next_cursor).*",
        lambda place: -1 in {topic["error_code"] for topic in place.answers[0]["topics"]},
    ),
    Reason("nothing is asked for, in a way that there is not", "ElectLeaders", "error_code", _codes((0, 42))),
    Reason("nothing is asked for", "AlterPartitionReassignments", "allow_replication_factor_change"),
    Reason(
        "Kafka refuses a whole request for a resource of an unknown kind; here each resource has its own result",
        "DescribeConfigs",
        r"results\.\d+\.(error_code|configs)",
        lambda place: 42 in {result["error_code"] for result in place.answers[0]["results"]},
    ),
    Reason(
        "when its leader has left, any member may lead a group: Kafka's is chosen by hashes",
        "JoinGroup",
        r"leader|members|skip_assignment",
        lambda place: place.answers[0]["leader"] != place.answers[1]["leader"],
    ),
    Reason(
        "of a group's mistakes and a partition's each names one; the code for a group makes a member join again",
        "OffsetCommit",
        _CODE,
        _codes((3, 25), (3, 22), (3, 27), (3, 113), (69, 22), (69, 25), (25, 22)),
    ),
    Reason("of two mistakes in a request each names one", "DeleteRecords", _CODE, _codes((44, 1))),
    Reason(
        "Kafka answers UNKNOWN_SERVER_ERROR to a topic without an id",
        "Fetch",
        r"error_code|responses",
        lambda place: place.answers[0]["error_code"] == -1,
    ),
    Reason(
        "Kafka may name a topic once for its errors and once for its records",
        "Fetch",
        "responses",
        lambda place: _partitions(place.kafka) == _partitions(place.ours),
    ),
    Reason("of two mistakes in a request each names one", "Produce", _CODE, _codes((87, 21), (2, 21))),
    Reason("bytes that are no batch: each has its own name for them", "Produce", _CODE, _codes((2, 87), (2, 3))),
    Reason(
        "the batch of a producer without sequence may have bad records as well",
        "Produce",
        r".*record_errors",
        lambda place: not place.kafka,
    ),
    Reason(
        "Kafka gives a repeated batch its own timestamp as the time of its append, which it is not",
        "Produce",
        r".*log_append_time_ms",
        lambda place: place.ours == -1,
    ),
)


def unexplained(case: Case, kafka: Plain, ours: Plain) -> Iterator[Difference]:
    """The places where two answers to a request differ without a reason."""
    answers = _pruned(kafka), _pruned(ours)
    for path, theirs, own in kafka_group_differences.differences(case.api, *answers):
        place = Difference(case, path, theirs, own, answers)
        if not any(explains(reason, place) for reason in REASONS):
            yield place


def explains(reason: Reason, place: Difference) -> bool:
    """True if the difference has this reason."""
    return (
        re.fullmatch(reason.apis, place.case.api) is not None
        and re.fullmatch(reason.path, place.path) is not None
        and reason.holds(place)
    )


def _pruned(value: Plain) -> Plain:
    """Without topics of which no partition is named: Kafka leaves them out of most answers."""
    match value:
        case dict():
            return {name: _pruned(item) for name, item in value.items()}
        case list() if all(isinstance(item, int) for item in value):
            return sorted(value)  # numbers of partitions, brokers, operations
        case list():
            return [_pruned(item) for item in value if not (isinstance(item, dict) and _is_bare(item))]
    return value


def _is_bare(item: dict[str, Plain]) -> bool:
    """Whether it is a result of a topic that has nothing but its name and no partitions."""
    return any(item.get(name) == [] for name in ("partitions", "partition_responses")) and not item.get("error_code")
