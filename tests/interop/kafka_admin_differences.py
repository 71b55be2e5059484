"""Where seglog's answers about administration are not a real Kafka's, and why. Nothing else may differ."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.interop.kafka_cases import Difference
from tests.interop.kafka_wire import Plain

_AT_ONCE: Final = "seglog answers when the topic is made, so that the client need not ask again"
_COLLIDING: Final = "a name that collides is refused for good, where Kafka has its client ask until it gives up"
_BROKERS: Final = "a refused topic does not hide the brokers"
_NO_METADATA_LOG: Final = "there is no log of metadata: its leader has no epochs and no listener of its own"
_NO_TRANSACTIONS: Final = "Kafka looks for a coordinator whose topic is not made yet; here no id is known for good"
_SAME_REQUEST: Final = "topics of one request collide as well, which Kafka does not see"
_NO_LIST: Final = (
    "of a fetch that fails: null is what Kafka has where the partition is there, for clients it is the same"
)

_RULES: Final = "rules are there for when they are put in force, where Kafka without an authorizer knows none"

_BROKER: Final = {"node_id": 1, "host": "127.0.0.1", "port": "zero or more", "rack": None}
_SEEN: Final = {"brokers": [_BROKER], "cluster_id": "text", "controller_id": 1}


def _made(epoch: int) -> list[Plain]:
    return [
        {
            "error_code": 0,
            "partition_index": 0,
            "leader_id": 1,
            "leader_epoch": epoch,
            "replica_nodes": [1],
            "isr_nodes": [1],
            "offline_replicas": [],
        }
    ]


def _without_error(place: str = "") -> dict[str, Plain]:
    return {f"{place}error_code": 0, f"{place}error_message": None}


_DELETED: Final = [
    {
        "error_code": 0,
        "error_message": None,
        "resource_type": kind,
        "resource_name": name,
        "pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    for kind, name in ((2, "plain"), (3, "g"))
]

_FILTERS: Final = _without_error("filter_results.0.") | _without_error("filter_results.1.")

DIFFERENCES: Final[Mapping[str, Difference]] = {
    "unknown, created": Difference(
        _AT_ONCE,
        {"topics.0.error_code": 0, "topics.0.topic_id": "{id of made-12}", "topics.0.partitions": _made(0)},
    ),
    "created in version 1": Difference(_AT_ONCE, {"topics.0.error_code": 0, "topics.0.partitions": _made(-1)}),
    "collides": Difference(_COLLIDING, {"topics.0.error_code": 17}),
    "neither name nor id": Difference(
        "Kafka answers UNKNOWN_SERVER_ERROR to a request that is invalid", {**_SEEN, "topics.0.error_code": 42}
    ),
    "by id in version 10": Difference(_BROKERS, _SEEN),
    "null name in version 11": Difference(_BROKERS, _SEEN),
    **{
        title: Difference("no topic is made, so none has an id", {"topics.0.topic_id": "00" * 16})
        for title in ("only validated, version 7", "key twice")
    },
    "names of one request collide": Difference(
        _SAME_REQUEST,
        {
            "topics.1.error_code": 17,
            "topics.1.error_message": "Topic 'c_d' collides with existing topic: c.d",
            "topics.1.topic_id": "00" * 16,
            "topics.1.num_partitions": -1,
            "topics.1.replication_factor": -1,
            "topics.1.configs": [],
            "topics.0.topic_id": "00" * 16,
        },
    ),
    "largest timestamp after that": Difference(
        "the record with the largest timestamp is deleted: Kafka still names its offset, which no fetch gets",
        {
            "topics.0.partitions.0.leader_epoch": -1,
            "topics.0.partitions.0.offset": -1,
            "topics.0.partitions.0.timestamp": -1,
        },
    ),
    "an unknown kind beside a topic": Difference(
        "Kafka refuses the whole request; here each resource has its own result",
        {
            "results.0.error_code": 0,
            "results.0.error_message": "",
            "results.0.configs": [
                {
                    "name": "segment.ms",
                    "value": "604800000",
                    "read_only": False,
                    "config_source": 5,
                    "is_sensitive": False,
                    "synonyms": [],
                    "config_type": 5,
                    "documentation": None,
                }
            ],
        },
    ),
    **{
        f"the quorum, version {version}": Difference(_NO_METADATA_LOG, {"topics.0.partitions.0.leader_epoch": 0})
        for version in range(2)
    },
    "the quorum, version 2": Difference(
        _NO_METADATA_LOG, {"topics.0.partitions.0.leader_epoch": 0, "nodes.0.listeners.0.name": "PLAINTEXT"}
    ),
    **{f"acls, version {version}": Difference(_RULES, _without_error()) for version in (1, 2, 3)},
    **{
        f"acls made, version {version}": Difference(_RULES, _without_error("results.0.") | _without_error("results.1."))
        for version in (1, 2, 3)
    },
    **{f"acls deleted, version {version}": Difference(_RULES, _FILTERS) for version in (2, 3)},
    "acls deleted, version 1": Difference(
        _RULES, {**_FILTERS, **{f"filter_results.{number}.matching_acls": _DELETED for number in (0, 1)}}
    ),
    "replicas of nothing": Difference("nothing was asked, and nothing is said", {"error_message": None}),
    **{
        title: Difference(_NO_LIST, {"responses.0.partitions.0.aborted_transactions": []})
        for title in (
            "{id of plain} read with epoch 7 from 0, by id",
            "{id of plain} read with epoch -1 from -1, by id",
            "{id of plain} read with epoch 7 from -1, by id",
            "{id of plain} read with epoch -1 from 99, by id",
            "{id of plain} read with epoch -2 from 99, by id",
        )
    },
    "the same again": Difference(
        "Kafka gives the record's own timestamp as the time of its append, which it is not",
        {"responses.0.partition_responses.0.log_append_time_ms": -1},
    ),
    "transactions by id": Difference(
        _NO_TRANSACTIONS, {"transaction_states.0.error_code": 105, "transaction_states.1.error_code": 105}
    ),
}

KAFKAS_WORDS: Final = frozenset(
    {
        "DescribeCluster", "ElectLeaders", "AlterPartitionReassignments", "DescribeAcls", "CreateAcls", "DeleteAcls",
        "DescribeClientQuotas", "AlterClientQuotas", "DescribeUserScramCredentials", "AlterUserScramCredentials",
    }
)  # fmt: skip
"""Apis that refuse in Kafka's own sentences. In the others seglog's say more: what is wrong, and what to do."""


def differences(api: str, kafka: Plain, ours: Plain, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places where two answers differ, with the value of each."""
    match kafka, ours:
        case dict(), dict():
            fields = kafka.keys() | ours.keys()
            if kafka.get("error_code") and kafka["error_code"] == ours.get("error_code") and api not in KAFKAS_WORDS:
                fields = fields - {"error_message"}
            fields = fields - {"batch_index_error_message"}  # one stands for all: it is the partition's
            for field in sorted(fields):
                yield from differences(api, kafka.get(field), ours.get(field), f"{place}.{field}" if place else field)
        case list(), list() if len(kafka) == len(ours) and any(isinstance(item, dict) for item in kafka):
            for number, (theirs, own) in enumerate(zip(kafka, ours, strict=True)):
                yield from differences(api, theirs, own, f"{place}.{number}")
        case _ if kafka != ours:
            yield place, kafka, ours
