"""Where seglog's answers about groups of the consumer protocol are not Kafka's, and why. Nothing else may differ.

Sentences of errors are each broker's own.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.interop import kafka_admin_differences
from tests.interop.kafka_cases import Difference
from tests.interop.kafka_wire import Plain

_JOINS_AGAIN: Final = "UNKNOWN_MEMBER_ID makes a member join again, where GROUP_ID_NOT_FOUND ends a client"
_LENIENT: Final = "what is valid but for its form is taken"
_AT_ONCE: Final = "an expression is matched within the request that brings it, in Kafka beside it, for the next epoch"

_PLAIN: Final = {"topic_id": "{id of plain}", "partitions": [0, 1, 2, 3]}
_OTHER: Final = {"topic_id": "{id of other}", "partitions": [0, 1]}
_BOTH: Final = [_OTHER, _PLAIN]
_OFFSETS: Final = {"topic_id": "{id of __consumer_offsets}", "partitions": [0]}


_FIRST_EPOCH: Final = {f"groups.0.{name}": 1 for name in ("group_epoch", "assignment_epoch", "members.0.member_epoch")}


DIFFERENCES: Final[Mapping[str, Difference]] = {
    **{
        title: Difference(_JOINS_AGAIN, {"error_code": 25})
        for title in (
            "unknown: a heartbeat",
            "unknown: leaves",
            "unknown: a static member is away",
            "unknown: a static member's heartbeat",
            "offsets: a heartbeat",
            "classic: a heartbeat",
            "classic: a heartbeat by its member's name",
            "classic: its member leaves the other way",
        )
    },
    "unknown: twice, and another": Difference(
        "a group that is named twice is described once: the answer to one request has a bound",
        {
            "groups": [
                {
                    "error_code": 69,
                    "error_message": f"there is no group {group}",
                    "group_id": group,
                    "group_state": "",
                    "group_epoch": 0,
                    "assignment_epoch": 0,
                    "assignor_name": "",
                    "members": [],
                    "authorized_operations": -2147483648,
                }
                for group in ("nope", "unknown")
            ]
        },
    ),
    **{
        title: Difference(
            "ILLEGAL_GENERATION makes a member join again, as in older versions of the request",
            {"topics.0.partitions.0.error_code": 22},
        )
        for title in ("unknown: a commit of a member", "no name: a commit of a member")
    },
    **{
        title: Difference(_LENIENT, {"topics.0.partitions.0.error_code": 0})
        for title in ("pair: of the first, version 8", "pair: of the first, with the epoch before, version 8")
    },
    "pair: offsets for an empty name": Difference(
        _LENIENT,
        {
            "groups.0.error_code": 0,
            "groups.0.topics": [
                {
                    "name": "plain",
                    "topic_id": "00" * 16,
                    "partitions": [
                        {
                            "partition_index": number,
                            "committed_offset": offset,
                            "committed_leader_epoch": -1,
                            "metadata": metadata,
                            "error_code": 0,
                        }
                        for number, offset, metadata in ((0, 0, "m"), (1, -1, ""))
                    ],
                }
            ],
        },
    ),
    "mixed: a join of nonsense": Difference(
        "metadata that nobody can read is refused before the member gets an id", {"error_code": 23, "member_id": ""}
    ),
    "classic: a member of the other protocol finds it empty": Difference(
        "no epoch and no generation goes back", {"member_epoch": 5}
    ),
    "regex: joins": Difference(_AT_ONCE, {"assignment.topic_partitions": [_PLAIN]}),
    "regex: lives": Difference(_AT_ONCE, {"assignment": None, "member_epoch": 1}),
    "regex: described": Difference(_AT_ONCE, _FIRST_EPOCH),
    "regex: reads by name as well": Difference(_AT_ONCE, {"member_epoch": 2}),
    "regex: reads by no expression any more": Difference(_AT_ONCE, {"member_epoch": 2}),
    "regex: without an expression": Difference(
        _AT_ONCE, {"groups.0.group_epoch": 3, "groups.0.assignment_epoch": 3, "groups.0.members.0.member_epoch": 2}
    ),
    "both: by a name and an expression": Difference(_AT_ONCE, {"assignment.topic_partitions": _BOTH}),
    "both: says everything": Difference(_AT_ONCE, {"member_epoch": 1}),
    "both: a name and an expression": Difference(_AT_ONCE, _FIRST_EPOCH),
    "all: of all": Difference(_AT_ONCE, {"assignment.topic_partitions": [_OFFSETS, *_BOTH]}),
    "all: lives": Difference(_AT_ONCE, {"assignment": None, "member_epoch": 1}),
    "all: internal ones, too": Difference(_AT_ONCE, _FIRST_EPOCH),
    "timeout: a negative rebalance timeout": Difference(
        "only -1 says nothing in Kafka; here a time has to be one",
        {"error_code": 42, "member_id": None, "member_epoch": 0, "heartbeat_interval_ms": 0, "assignment": None},
    ),
}

OF_SHARE_GROUPS: Final[Mapping[str, Difference]] = {
    "jobs: before what there is": Difference(
        "an offset below -1 is none; Kafka begins at it, and delivers nothing",
        {"responses.0.partitions.0.error_code": 42},
    ),
}


def differences(api: str, kafka: Plain, ours: Plain) -> Iterator[tuple[str, Any, Any]]:
    """The places where two answers differ, with the value of each."""
    for place, theirs, own in kafka_admin_differences.differences(api, kafka, ours):
        if place.rpartition(".")[2] != "error_message":
            yield place, theirs, own
