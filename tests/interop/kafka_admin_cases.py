"""What a Kafka is asked about administration, and its answers without what differs from run to run.

``python -m tests.interop.kafka_admin_cases`` asks a real Kafka and writes ``kafka_admin_answers.json``.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from seglog_protocol.batch_builder import encode_batch
from tests.interop.handover import ask as ask_again
from tests.interop.handover import produce
from tests.interop.kafka_cases import NO_ID, UNKNOWN_ID, Case, Fields, ask, create_topics, rewrite, settled, topic_ids
from tests.interop.kafka_wire import Plain, Wire
from tests.interop.peer import Kafka, kafka_script

ANSWERS: Final = Path(__file__).with_name("kafka_admin_answers.json")
BASE_TIME: Final = 1_700_000_000_000
"""The timestamps (ms) of records count from here."""

_NEW: Final = time.time_ns() // 1_000_000
"""A timestamp (ms) of now."""


def _topics(*topics: Fields, **more: Plain) -> Fields:
    return {"topics": list(topics), **more}


def _new(name: str, partitions: int = 1, replicas: int = 1, **more: Plain) -> Fields:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


def _more(name: str, count: int, *brokers: list[int]) -> Fields:
    return {"name": name, "count": count, "assignments": [{"broker_ids": ids} for ids in brokers] or None}


def _config(name: str, value: str | None) -> Fields:
    return {"name": name, "value": value}


def _assigned(*brokers: list[int], first: int = 0) -> list[Fields]:
    return [{"partition_index": number, "broker_ids": ids} for number, ids in enumerate(brokers, first)]


def _resource(kind: int, name: str, *keys: str) -> Fields:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}


def _changes(kind: int, name: str, *configs: tuple[str, int, str | None]) -> Fields:
    return {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": key, "config_operation": operation, "value": value} for key, operation, value in configs],
    }


def _moment(timestamp: int, topic: str = "records", partition: int = 0, epoch: int = -1) -> Fields:
    item = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": [item]}]}


def _epoch(known: int, asked: int, topic: str = "records", partition: int = 0) -> Fields:
    item = {"partition": partition, "current_leader_epoch": known, "leader_epoch": asked}
    return {"replica_id": -1, "topics": [{"topic": topic, "partitions": [item]}]}


def _delete(offset: int, topic: str = "records", partition: int = 0) -> Fields:
    return {
        "topics": [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
        "timeout_ms": 10_000,
    }


def _reassigned(replicas: list[int] | None, topic: str = "plain", partition: int = 0) -> Fields:
    return {"topics": [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}]}


def _acl(resource: int = 2, name: str = "plain") -> Fields:
    return {
        "resource_type": resource,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }


_ANY_ACL: Final = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def _quota(
    kind: str | None, name: str = "u", value: float = 9.0, key: str = "producer_byte_rate", **more: bool
) -> Fields:
    entity = [] if kind is None else [{"entity_type": kind, "entity_name": name}]
    op = {"key": key, "value": value, "remove": more.pop("remove", False)}
    return {"entries": [{"entity": entity, "ops": [op]}], "validate_only": True, **more}


def _resources(*resources: Fields, **more: bool) -> Fields:
    return {"resources": list(resources), **more}


def _plain(*keys: str, **more: bool) -> Fields:
    """Keys of the topic, described."""
    return _resources(_resource(2, "plain", *keys), **more)


def _all_of(name: str, *configs: Fields) -> Fields:
    return {"resource_type": 2, "resource_name": name, "configs": list(configs)}


def _placed(topic: str, *partitions: int, key: str = "topic") -> Fields:
    return {key: topic, "partitions": list(partitions)}


def _leaders(*places: Fields, **more: Plain) -> Fields:
    return {**more, "topic_partitions": list(places)}


def _moved(path: str, *topics: Fields) -> Fields:
    return {"dirs": [{"path": path, "topics": list(topics)}]}


def _quorum(topic: str, partition: int) -> Fields:
    return _topics({"topic_name": topic, "partitions": [{"partition_index": partition}]})


def _numbers(topic: str, *partitions: int) -> Fields:
    return {"name": topic, "partition_indexes": list(partitions)}


def _feature(name: str, level: int, **more: bool) -> Fields:
    return {"feature_updates": [{"feature": name, "max_version_level": level}], **more}


def _components(*components: Fields, strict: bool = False) -> Fields:
    return {"components": list(components)} | ({"strict": True} if strict else {})


def _named(*names: str, cursor: tuple[str, int] | None = None, **more: Plain) -> Fields:
    """Topics by name, perhaps from a place on."""
    at = {} if cursor is None else {"cursor": {"topic_name": cursor[0], "partition_index": cursor[1]}}
    return _topics(*({"name": name} for name in names), **at, **more)


def _component(kind: str, match_type: int, match: str | None = None) -> Fields:
    return {"entity_type": kind, "match_type": match_type, "match": match}


def _batch(*records: tuple[bytes | None, int], producer: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    """A batch of records by key and timestamp (ms)."""
    rows = [(timestamp, key, b"v", ()) for key, timestamp in records]
    return encode_batch(rows, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def _produced(
    records: bytes = _batch((b"k", BASE_TIME)), topic: str = "records", partition: int = 0, **more: Plain
) -> Fields:
    named = {"topic_id" if topic.startswith("{") or topic == UNKNOWN_ID else "name": topic}
    data = [{"index": partition, "records": records.hex()}]
    return {"acks": -1, "timeout_ms": 30_000, "topic_data": [{**named, "partition_data": data}], **more}


def _of_producer(epoch: int, sequence: int, producer: int = 4711) -> Fields:
    return _produced(_batch((b"k", BASE_TIME), producer=producer, epoch=epoch, sequence=sequence))


def _ids(producer: int, epoch: int, transactional: str | None = None) -> Fields:
    asked = {"transactional_id": transactional, "transaction_timeout_ms": 60_000}
    return {**asked, "producer_id": producer, "producer_epoch": epoch}


def _fetched(topic: str, partition: int = 0, *, epoch: int = -1, offset: int = 0, version: int = 12) -> Fields:
    named = {"topic_id" if version >= 13 else "topic": topic}
    item = {"partition": partition, "current_leader_epoch": epoch, "fetch_offset": offset, "partition_max_bytes": 9999}
    return {"replica_id": -1, "max_wait_ms": 0, "max_bytes": 9999, "topics": [{**named, "partitions": [item]}]}


def _each(versions: range, title: str, api: str, fields: Fields) -> list[Case]:
    return [Case(f"{title}, version {version}", api, version, fields) for version in versions]


def _of(api: str, version: int, fields_by_title: Mapping[str, Fields]) -> list[Case]:
    return [Case(title, api, version, fields) for title, fields in fields_by_title.items()]


_SOFTWARE: Final = {"client_software_name": "seglog", "client_software_version": "1"}

CASES: Final[tuple[Case, ...]] = (
    # --- The cluster ---
    *_each(range(2), "the cluster", "DescribeCluster", {"endpoint_type": 1}),
    Case("the cluster, version 2", "DescribeCluster", 2, {"endpoint_type": 1}),
    Case("with operations", "DescribeCluster", 2, {"include_cluster_authorized_operations": True}),
    Case("with fenced brokers", "DescribeCluster", 2, {"include_fenced_brokers": True}),
    Case("of controllers", "DescribeCluster", 1, {"endpoint_type": 2}),
    Case("of neither", "DescribeCluster", 1, {"endpoint_type": 3}),
    # --- Metadata ---
    *_each(range(14), "one topic", "Metadata", {"topics": [{"name": "plain"}]}),
    Case("empty list, all in version 0", "Metadata", 0, {"topics": []}),
    *_each(range(1, 14, 6), "empty list", "Metadata", {"topics": []}),
    *_each(range(1, 14, 6), "null", "Metadata", {"topics": None}),
    Case("unknown, not created", "Metadata", 12, _named("nope", allow_auto_topic_creation=False)),
    Case("unknown, created", "Metadata", 12, _named("made-12")),
    Case("it is there", "Metadata", 12, _named("made-12")),
    Case("created in version 1", "Metadata", 1, _named("made-1")),
    *_of(
        "Metadata",
        12,
        {
            "impossible": _named("a b"),
            "impossible, not created": _named("a b", allow_auto_topic_creation=False),
            "empty name": _named(""),
            "a dot": _named("."),
            "too long": _topics({"name": "x" * 250}),
            "collides": _named("a_b"),
            "the metadata log": _named("__cluster_metadata"),
        },
    ),
    Case("the metadata log in version 1", "Metadata", 1, _named("__cluster_metadata")),
    Case("twice", "Metadata", 12, _named("plain", "plain")),
    Case("by id", "Metadata", 12, _topics({"name": None, "topic_id": "{id of plain}"})),
    Case("by unknown id", "Metadata", 12, _topics({"name": None, "topic_id": UNKNOWN_ID})),
    Case("neither name nor id", "Metadata", 12, _topics({"name": None})),
    Case("by id in version 10", "Metadata", 10, _topics({"name": None, "topic_id": "{id of plain}"})),
    Case("null name in version 11", "Metadata", 11, _topics({"name": None})),
    Case("name and id", "Metadata", 12, _topics({"name": "plain", "topic_id": "{id of plain}"})),
    Case("name and other id", "Metadata", 12, _topics({"name": "plain", "topic_id": UNKNOWN_ID})),
    Case("a name and an id", "Metadata", 12, _topics({"name": "plain"}, {"name": None, "topic_id": "{id of other}"})),
    Case("topic operations", "Metadata", 12, _named("plain", include_topic_authorized_operations=True)),
    Case("cluster operations", "Metadata", 10, _named("plain", include_cluster_authorized_operations=True)),
    # --- DescribeTopicPartitions ---
    *_of(
        "DescribeTopicPartitions",
        0,
        {
            "one": _named("plain"),
            "all": _topics(),
            "unknown and known": _named("plain", "nope"),
            "impossible one": _named("a b"),
            "twice the same": _named("plain", "plain"),
            "a limit": _named("plain", response_partition_limit=1),
            "a limit and more topics": _named("other", "plain", response_partition_limit=1),
            "a limit that is used up, and one that is not there": _named("plain", "wrong", response_partition_limit=2),
            "limit 0": _named("plain", response_partition_limit=0),
            "from a cursor": _named("plain", "other", cursor=("plain", 1)),
            "behind the last": _named("plain", cursor=("plain", 9)),
            "cursor at no topic": _named("plain", cursor=("gone", 1)),
            "negative cursor": _named("plain", cursor=("plain", -1)),
        },
    ),
    # --- CreateTopics ---
    *_each(range(2, 8), "only validated", "CreateTopics", _topics(_new("valid", 3), validate_only=True)),
    *(Case(f"made in version {v}", "CreateTopics", v, _topics(_new(f"new-{v}", 2))) for v in range(2, 8)),
    *_of(
        "CreateTopics",
        7,
        {
            "exists": _topics(_new("plain")),
            "exists, only validated": _topics(_new("plain"), validate_only=True),
            "impossible name": _topics(_new("a b")),
            "empty topic name": _topics(_new("")),
            "name is a dot": _topics(_new(".")),
            "name of 250": _topics(_new("x" * 250)),
            "name of 249": _topics(_new("x" * 249)),
            "name collides": _topics(_new("a_b")),
            "names of one request collide": _topics(_new("c.d"), _new("c_d"), validate_only=True),
            "topic twice": _topics(_new("dup"), _new("dup", 2)),
            "topic twice beside another": _topics(_new("dup"), _new("dup", 2), _new("beside")),
            "no topics": _topics(),
            "defaults": _topics(_new("defaults", -1, -1)),
        },
    ),
    Case("defaults in version 3", "CreateTopics", 3, _topics(_new("defaults-3", -1, -1))),
    *_of(
        "CreateTopics",
        7,
        {
            "no partitions": _topics(_new("zero", 0)),
            "negative partitions": _topics(_new("minus", -2)),
            "no replicas": _topics(_new("none", 1, 0)),
            "negative replicas": _topics(_new("minus", 1, -2)),
            "three replicas": _topics(_new("three", 1, 3)),
            "three replicas, validated": _topics(_new("three", 1, 3), validate_only=True),
            "of the metadata log": _topics(_new("__cluster_metadata")),
            "of it, validated": _topics(_new("__cluster_metadata"), validate_only=True),
            "almost its name": _topics(_new("__cluster_metadata-0")),
            "a name in a log directory": _topics(_new("remote-log-index-cache")),
            "a name like a deleted one": _topics(_new("x.0123456789abcdef0123456789abcdef-delete")),
            "too many partitions": _topics(_new("many", 10_001), validate_only=True),
            "assigned": _topics(_new("assigned", -1, -1, assignments=_assigned([1], [1]))),
            "assigned and counted": _topics(_new("both", 2, 1, assignments=_assigned([1], [1]))),
            "assigned with replicas": _topics(_new("both", -1, 1, assignments=_assigned([1], [1]))),
            "assigned elsewhere": _topics(_new("far", -1, -1, assignments=_assigned([2]))),
            "assigned to two": _topics(_new("far", -1, -1, assignments=_assigned([1, 2]))),
            "assigned twice to one": _topics(_new("far", -1, -1, assignments=_assigned([1, 1]))),
            "assigned to none": _topics(_new("far", -1, -1, assignments=_assigned([]))),
            "assigned unevenly": _topics(_new("far", -1, -1, assignments=_assigned([1], []))),
            "assigned from 1": _topics(_new("far", -1, -1, assignments=_assigned([1], first=1))),
            "a partition twice": _topics(_new("far", -1, -1, assignments=[*_assigned([1]), *_assigned([1])])),
            "a negative broker": _topics(_new("far", -1, -1, assignments=_assigned([-1]))),
            "configured": _topics(_new("set", configs=[_config("retention.ms", "5000")])),
            "null value": _topics(_new("null", configs=[_config("retention.ms", None)])),
            "unknown key": _topics(_new("unset", configs=[_config("nope", "1")])),
            "bad value": _topics(_new("unset", configs=[_config("retention.ms", "soon")])),
            "bad value, validated": _topics(
                _new("unset", configs=[_config("retention.ms", "soon")]), validate_only=True
            ),
            "key twice": _topics(
                _new("keys", configs=[_config("retention.ms", "1"), _config("retention.ms", "2")]), validate_only=True
            ),
        },
    ),
    # --- CreatePartitions ---
    Case("enlarged, validated", "CreatePartitions", 3, _topics(_more("other", 2), validate_only=True)),
    Case("enlarged", "CreatePartitions", 3, _topics(_more("other", 2))),
    Case("enlarged in version 0", "CreatePartitions", 0, _topics(_more("other", 3))),
    *_of(
        "CreatePartitions",
        3,
        {
            "as before": _topics(_more("other", 3)),
            "fewer": _topics(_more("other", 1)),
            "none": _topics(_more("other", 0)),
            "less than none": _topics(_more("other", -1)),
            "far too many": _topics(_more("other", 10_010), validate_only=True),
            "of no topic": _topics(_more("nope", 2)),
            "of an impossible topic": _topics(_more("a b", 2)),
            "of a topic twice": _topics(_more("other", 4), _more("other", 5)),
            "placed": _topics(_more("other", 4, [1])),
            "placed too few": _topics(_more("other", 6, [1])),
            "placed nowhere": _topics({**_more("other", 5), "assignments": []}),
            "placed elsewhere": _topics(_more("other", 5, [2])),
            "placed on two": _topics(_more("other", 5, [1, 2])),
            "placed on no broker": _topics(_more("other", 5, [])),
        },
    ),
    # --- DeleteTopics ---
    Case("by name, version 1", "DeleteTopics", 1, {"topic_names": ["new-2"]}),
    Case("by name, version 5", "DeleteTopics", 5, {"topic_names": ["new-3", "nope"]}),
    *_of(
        "DeleteTopics",
        6,
        {
            "by name, version 6": _named("new-4"),
            "by topic id": _topics({"name": None, "topic_id": "{id of new-5}"}),
            "unknown name": _named("nope"),
            "unknown topic id": _topics({"name": None, "topic_id": UNKNOWN_ID}),
            "name and topic id": _topics({"name": "new-6", "topic_id": "{id of new-6}"}),
            "no name and no id": _topics({"name": None}),
            "name twice": _named("new-6", "new-6"),
            "id twice": _topics(*[{"name": None, "topic_id": "{id of new-6}"}] * 2),
            "a topic by name and by id": _topics({"name": "new-6"}, {"name": None, "topic_id": "{id of new-6}"}),
            "impossible topic": _named("a b"),
            "nothing to delete": _topics(),
        },
    ),
    # --- ListOffsets ---
    *_each(range(1, 12), "latest", "ListOffsets", _moment(-1)),
    *_each(range(1, 12), "earliest", "ListOffsets", _moment(-2)),
    *_each(range(6, 12), "largest timestamp", "ListOffsets", _moment(-3)),
    *_each(range(7, 12), "earliest local", "ListOffsets", _moment(-4)),
    *_each(range(8, 12), "latest tiered", "ListOffsets", _moment(-5)),
    *_each(range(10, 12), "earliest pending upload", "ListOffsets", _moment(-6)),
    *_of(
        "ListOffsets",
        11,
        {
            "no moment": _moment(-7),
            "largest timestamp of nothing": _moment(-3, "plain"),
            "earliest of nothing": _moment(-2, "plain"),
            "at the first": _moment(BASE_TIME),
            "before the first": _moment(0),
            "between": _moment(BASE_TIME + 150),
            "within a batch": _moment(BASE_TIME + 310),
            "after the last": _moment(BASE_TIME + 10_000),
        },
    ),
    Case("by time in version 1", "ListOffsets", 1, _moment(BASE_TIME + 150)),
    *_of(
        "ListOffsets",
        11,
        {
            "latest, committed": {**_moment(-1), "isolation_level": 1},
            "with its epoch": _moment(-1, epoch=0),
            "with a later epoch": _moment(-1, epoch=7),
            "moment in no topic": _moment(-1, "nope"),
            "moment in an impossible topic": _moment(-1, "a b"),
            "moment in no partition": _moment(-1, partition=9),
            "moment in a negative partition": _moment(-1, partition=-1),
            "a partition twice in one request": {
                "replica_id": -1,
                "topics": [*_moment(-1)["topics"], *_moment(-2)["topics"]],
            },
            "a partition twice in one topic": {
                "replica_id": -1,
                "topics": [
                    {
                        "name": "records",
                        "partitions": [
                            {"partition_index": 0, "timestamp": -1},
                            {"partition_index": 0, "timestamp": -2},
                        ],
                    }
                ],
            },
        },
    ),
    # --- OffsetForLeaderEpoch ---
    *_each(range(2, 5), "the current epoch", "OffsetForLeaderEpoch", _epoch(-1, 0)),
    *_of(
        "OffsetForLeaderEpoch",
        4,
        {
            "the epoch is known": _epoch(0, 0),
            "a later one is known": _epoch(5, 0),
            "a later one is asked for": _epoch(-1, 5),
            "an epoch that never was": _epoch(-1, -1),
            "an epoch of nothing": _epoch(-1, 0, "plain"),
            "an epoch of no topic": _epoch(-1, 0, "nope"),
            "an epoch of no partition": _epoch(-1, 0, partition=9),
            "an epoch of a negative partition": _epoch(-1, 0, partition=-1),
        },
    ),
    # --- DescribeProducers ---
    Case("producers", "DescribeProducers", 0, _topics(_numbers("a.b", 0), _numbers("plain", 0, 1, 9))),
    Case("producers of no topic", "DescribeProducers", 0, _topics(_numbers("nope", 0))),
    Case("producers of an impossible topic", "DescribeProducers", 0, _topics(_numbers("a b", 0))),
    Case("producers of no partition", "DescribeProducers", 0, _topics(_numbers("records"))),
    Case("producers of -1", "DescribeProducers", 0, _topics(_numbers("records", -1))),
    # --- DescribeLogDirs ---
    *_each(range(1, 6), "directories of a topic", "DescribeLogDirs", _topics(_placed("records", 0))),
    Case("directories of none", "DescribeLogDirs", 4, _topics()),
    Case("directories of two", "DescribeLogDirs", 4, _topics(_placed("records", 0, 9), _placed("nope", 0))),
    Case("directories of a topic twice", "DescribeLogDirs", 4, _topics(*[_placed("records", 0)] * 2)),
    Case("directories of no partition", "DescribeLogDirs", 4, _topics(_placed("records"))),
    # --- DeleteRecords ---
    Case("deleted in version 0", "DeleteRecords", 0, _delete(0)),
    *_of(
        "DeleteRecords",
        2,
        {
            "deleted within a batch": _delete(1),
            "deleted once more": _delete(1),
            "deleted backwards": _delete(0),
            "deleted behind the end": _delete(99),
            "deleted at -2": _delete(-2),
            "deleted in no topic": _delete(0, "nope"),
            "deleted in an impossible topic": _delete(0, "a b"),
            "deleted in no partition": _delete(0, partition=9),
            "deleted in a negative partition": _delete(0, partition=-1),
            "deleted in a compacted topic": _delete(-1, "compacted"),
        },
    ),
    Case("earliest after that", "ListOffsets", 11, _moment(-2)),
    Case("by time after that", "ListOffsets", 11, _moment(0)),
    Case("everything deleted", "DeleteRecords", 2, _delete(-1)),
    Case("largest timestamp after that", "ListOffsets", 11, _moment(-3)),
    Case("by time when all is deleted", "ListOffsets", 11, _moment(0)),
    # --- What is not there comes before what is wrong with it ---
    *(
        case
        for topic, partition in (("nope", 0), ("a b", 0), ("records", 9), ("records", -1))
        for case in (
            Case(f"{topic}-{partition} behind its end", "DeleteRecords", 2, _delete(-2, topic, partition)),
            Case(f"{topic}-{partition} with an epoch", "ListOffsets", 11, _moment(-1, topic, partition, 7)),
            Case(f"{topic}-{partition} at no moment", "ListOffsets", 11, _moment(-7, topic, partition, 7)),
            Case(f"{topic}-{partition} by epoch", "OffsetForLeaderEpoch", 4, _epoch(7, -2, topic, partition)),
            *(
                Case(
                    f"{topic}-{partition} read with epoch {epoch} from {offset}, version {version}",
                    "Fetch",
                    version,
                    _fetched(topic, partition, epoch=epoch, offset=offset),
                )
                for version in (9, 12)
                for epoch, offset in ((7, 0), (-1, -1), (7, -1), (-2, 99))
            ),
        )
    ),
    *(
        Case(
            f"{topic} read with epoch {epoch} from {offset}, by id",
            "Fetch",
            13,
            _fetched(topic, epoch=epoch, offset=offset, version=13),
        )
        for topic in ("{id of plain}", UNKNOWN_ID)
        for epoch, offset in ((7, 0), (-1, -1), (7, -1), (-1, 99), (-2, 99))
    ),
    Case("no moment with an epoch", "ListOffsets", 11, _moment(-7, epoch=7)),
    Case("an epoch of -2", "OffsetForLeaderEpoch", 4, _epoch(-1, -2)),
    Case("an epoch of -2, which is known", "OffsetForLeaderEpoch", 4, _epoch(-2, 0)),
    *(
        Case(
            f"operations of {name!r}, version {version}",
            "Metadata",
            version,
            _topics({"name": name}, include_topic_authorized_operations=True, allow_auto_topic_creation=False),
        )
        for version in (8, 12)
        for name in ("nope", "a b", "")
    ),
    Case(
        "operations of no id",
        "Metadata",
        12,
        _topics({"name": None, "topic_id": UNKNOWN_ID}, include_topic_authorized_operations=True),
    ),
    # --- Produce ---
    *_each(range(3, 13), "produced", "Produce", _produced()),
    Case("produced by id", "Produce", 13, _produced(topic="{id of records}")),
    Case("produced to no id", "Produce", 13, _produced(topic=UNKNOWN_ID)),
    Case("produced to no topic", "Produce", 12, _produced(topic="nope")),
    Case("produced to no partition", "Produce", 12, _produced(partition=9)),
    Case("produced with other acks", "Produce", 12, _produced(acks=7)),
    Case("produced with other acks to no topic", "Produce", 12, _produced(topic="nope", acks=7)),
    Case("produced nothing to no topic", "Produce", 12, _produced(b"", topic="nope")),
    *_each(
        range(7, 10),
        "without keys",
        "Produce",
        _produced(_batch(*[(key, BASE_TIME) for key in (b"k", None, b"l", None, None)]), "compacted"),
    ),
    *_of(
        "Produce",
        12,
        {
            "too old": _produced(_batch((b"k", _NEW), (b"k", 5), (b"k", 6), (b"k", -1)), "strict"),
            "without keys or too old": _produced(_batch((b"k", 5), (None, _NEW), (None, 6)), "strict"),
            "too new": _produced(_batch((b"k", _NEW), (b"k", 2 * _NEW), (b"k", 3 * _NEW)), "plain"),
            "too new, too old, no key": _produced(_batch((b"k", 2 * _NEW), (b"k", 5), (None, 5)), "strict"),
            "a producer without an epoch": _of_producer(-1, 0),
            "neither epoch nor sequence": _of_producer(-1, -1),
            "an epoch and no sequence": _of_producer(0, -1),
            "an epoch and no producer": _of_producer(0, 0, -1),
            "a producer with its epoch": _of_producer(0, 0),
            "the same again": _of_producer(0, 0),
            "without its epoch": _of_producer(-1, 0),
            "with the next epoch": _of_producer(1, 0),
            "with the epoch before": _of_producer(0, 1),
            "with a gap": _of_producer(1, 7),
        },
    ),
    *(
        Case(f"an id for {producer} with {epoch}, version {version}", "InitProducerId", version, _ids(producer, epoch))
        for version in (3, 5)
        for producer, epoch in ((5, -1), (-1, 5), (5, 5), (-1, -1), (-2, -2))
    ),
    Case("half an id for transactions", "InitProducerId", 5, _ids(5, -1, "t")),
    Case("an id for no transactions", "InitProducerId", 5, _ids(-1, -1, "")),
    # --- Configuration ---
    *(
        Case(
            f"throttled {value!r}",
            "IncrementalAlterConfigs",
            1,
            _resources(_changes(2, "plain", (f"{kind}.replication.throttled.replicas", 0, value)), validate_only=True),
        )
        for kind, value in (
            *(("leader", text) for text in ("*", "", " ", "0:1", "0:1,1:1", "0:1, 1:1", "0:1,", "0:1,0:1", "x", "1")),
            *(("follower", text) for text in ("a:b", "*,0:1", "0:1:2", "0:-1", ":1", "none")),
        )
    ),
    *_each(
        range(1, 5),
        "three keys",
        "DescribeConfigs",
        _plain("retention.ms", "nope", "cleanup.policy", include_synonyms=True),
    ),
    *_of(
        "DescribeConfigs",
        4,
        {
            "documented": _plain("retention.ms", include_documentation=True),
            "neither": _plain("retention.ms"),
            "no keys named": _resources({**_resource(2, "plain"), "configuration_keys": []}),
            "several resources": _resources(
                _resource(2, "plain", "segment.ms"),
                _resource(2, "nope"),
                _resource(4, "1", "queued.max.requests"),
                _resource(4, "", "queued.max.requests"),
                _resource(4, "7"),
            ),
            "an unknown kind beside a topic": _resources(_resource(2, "plain", "segment.ms"), _resource(99, "x")),
            "resource twice": _resources(_resource(2, "plain", "segment.ms"), _resource(2, "plain", "retention.ms")),
        },
    ),
    *(
        Case(
            f"set, version {version}",
            "IncrementalAlterConfigs",
            version,
            _resources(_changes(2, "plain", ("retention.ms", 0, "7000"))),
        )
        for version in range(2)
    ),
    Case("is set", "DescribeConfigs", 4, _plain("retention.ms", include_synonyms=True)),
    Case(
        "several are changed",
        "IncrementalAlterConfigs",
        1,
        _resources(
            _changes(2, "plain", ("cleanup.policy", 2, "compact")),
            _changes(2, "nope", ("retention.ms", 0, "1")),
            _changes(2, "other", ("nope", 0, "1")),
            _changes(2, "other-2", ("retention.ms", 0, None)),
            _changes(99, "x", ("retention.ms", 0, "1")),
            _changes(4, "1", ("queued.max.requests", 0, "3")),
        ),
    ),
    Case(
        "one resource twice",
        "IncrementalAlterConfigs",
        1,
        _resources(_changes(2, "plain", ("segment.ms", 0, "9000")), _changes(2, "plain", ("segment.ms", 0, "8000"))),
    ),
    Case("nothing to change", "IncrementalAlterConfigs", 1, _resources()),
    Case(
        "replaced, validated",
        "AlterConfigs",
        1,
        _resources(_all_of("plain", _config("retention.ms", "1000")), _all_of("nope"), validate_only=True),
    ),
    Case("replaced", "AlterConfigs", 0, _resources(_all_of("plain", _config("segment.ms", "6000")))),
    Case(
        "is replaced",
        "DescribeConfigs",
        4,
        _plain("retention.ms", "segment.ms", "cleanup.policy", include_synonyms=True),
    ),
    Case("resources", "ListConfigResources", 0, {}),
    Case("resources of all kinds", "ListConfigResources", 1, {"resource_types": []}),
    Case("topics and brokers", "ListConfigResources", 1, {"resource_types": [2, 4]}),
    Case("loggers and groups", "ListConfigResources", 1, {"resource_types": [8, 16, 32]}),
    Case("no such kind", "ListConfigResources", 1, {"resource_types": [2, 99]}),
    # --- The quorum, leaders, replicas ---
    *_each(range(3), "the quorum", "DescribeQuorum", _quorum("__cluster_metadata", 0)),
    Case("of another topic", "DescribeQuorum", 2, _quorum("plain", 0)),
    Case("of another partition", "DescribeQuorum", 2, _quorum("__cluster_metadata", 1)),
    Case("of nothing", "DescribeQuorum", 2, _topics()),
    *_each(range(3), "a leader", "ElectLeaders", _leaders(_placed("plain", 0))),
    *_of(
        "ElectLeaders",
        2,
        {
            "unclean": _leaders(_placed("plain", 0), election_type=1),
            "neither kind": _leaders(_placed("plain", 0), election_type=7),
            "all leaders": {"topic_partitions": None},
            "all leaders, unclean": {"election_type": 1, "topic_partitions": None},
            "no leaders": {"topic_partitions": []},
            "leaders of what is not there": _leaders(_placed("nope", 0), _placed("plain", 1, 9)),
            "one partition twice": _leaders(_placed("plain", 0, 0)),
        },
    ),
    Case("replicas as they are", "AlterPartitionReassignments", 0, _reassigned([1])),
    Case("version 1", "AlterPartitionReassignments", 1, _reassigned([1])),
    Case(
        "fixed number", "AlterPartitionReassignments", 1, {**_reassigned([1]), "allow_replication_factor_change": False}
    ),
    *_of(
        "AlterPartitionReassignments",
        0,
        {
            "moved elsewhere": _reassigned([2]),
            "more replicas": _reassigned([1, 2]),
            "a replica twice": _reassigned([1, 1]),
            "no replica": _reassigned([]),
            "a negative replica": _reassigned([-1]),
            "cancelled": _reassigned(None),
            "cancelled where there is none": _reassigned(None, "nope"),
            "replicas of no topic": _reassigned([1], "nope"),
            "replicas of no partition": _reassigned([1], partition=9),
            "replicas of nothing": _topics(),
        },
    ),
    Case("all reassignments", "ListPartitionReassignments", 0, {"topics": None}),
    Case("reassignments of a topic", "ListPartitionReassignments", 0, _topics(_numbers("plain", 0))),
    Case("reassignments of no topic", "ListPartitionReassignments", 0, _topics(_numbers("nope", 0))),
    Case("reassignments of nothing", "ListPartitionReassignments", 0, _topics()),
    Case("moved to where they are", "AlterReplicaLogDirs", 2, _moved("{log_dir}", _placed("plain", 0, 9, key="name"))),
    Case(
        "moved to no directory",
        "AlterReplicaLogDirs",
        2,
        _moved("/nowhere", _placed("plain", 0, key="name"), _placed("nope", 0, key="name")),
    ),
    Case("moved by a relative path", "AlterReplicaLogDirs", 1, _moved("here", _placed("plain", 0, key="name"))),
    Case("moved, of no topic", "AlterReplicaLogDirs", 2, _moved("{log_dir}", _placed("nope", 0, key="name"))),
    Case("nothing moved", "AlterReplicaLogDirs", 2, {"dirs": []}),
    # --- ACLs, quotas, users ---
    *_each(range(1, 4), "acls", "DescribeAcls", _ANY_ACL),
    *_each(range(1, 4), "acls made", "CreateAcls", {"creations": [_acl(), _acl(3, "g")]}),
    Case("no acls made", "CreateAcls", 3, {"creations": []}),
    *_each(range(1, 4), "acls deleted", "DeleteAcls", {"filters": [_ANY_ACL, _ANY_ACL]}),
    *_each(range(2), "all quotas", "DescribeClientQuotas", {"components": [], "strict": False}),
    *_of(
        "DescribeClientQuotas",
        1,
        {
            "quotas of users": _components(_component("user", 2), strict=True),
            "quotas of a client": _components(_component("client-id", 0, "c")),
            "quotas of an exact null": _components(_component("client-id", 0)),
            "quotas by default with a name": _components(_component("user", 1, "u")),
            "quotas of any with a name": _components(_component("user", 2, "u")),
            "quotas of no type": _components(_component("nope", 2)),
            "quotas of an empty type": _components(_component("", 2)),
            "quotas with no match": _components(_component("user", 9)),
            "quotas of a type twice": _components(*[_component("user", 2)] * 2),
            "quotas of a user and an address": _components(_component("user", 2), _component("ip", 2)),
        },
    ),
    *_of(
        "AlterClientQuotas",
        1,
        {
            "a quota, validated": _quota("user", "u", 9.0),
            "quota of no key": _quota("user", "u", 9.0, key="nope"),
            "quota of no entity": _quota(None),
            "quota of no type": _quota("nope", "u", 9.0),
            "quota of an empty name": _quota("user", "", 9.0),
            "negative quota": _quota("user", "u", -1.0),
            "half a byte": _quota("user", "u", 1.5),
            "a quota removed": _quota("user", "u", 0.0, remove=True, validate_only=False),
            "a quota is set": _quota("client-id", "c", 9.0, validate_only=False),
        },
    ),
    Case("all users", "DescribeUserScramCredentials", 0, {"users": None}),
    Case("no users", "DescribeUserScramCredentials", 0, {"users": []}),
    Case("a user", "DescribeUserScramCredentials", 0, {"users": [{"name": "u"}]}),
    Case("a user twice", "DescribeUserScramCredentials", 0, {"users": [{"name": "u"}, {"name": "u"}]}),
    Case("a user without a name", "DescribeUserScramCredentials", 0, {"users": [{"name": ""}]}),
    Case("a user removed", "AlterUserScramCredentials", 0, {"deletions": [{"name": "u", "mechanism": 1}]}),
    # --- Transactions, features ---
    *_each(range(3), "transactions", "ListTransactions", {}),
    Case("in a state", "ListTransactions", 2, {"state_filters": ["Ongoing", "Nope"]}),
    Case("by a pattern", "ListTransactions", 2, {"transactional_id_pattern": "a.*"}),
    Case("by no pattern", "ListTransactions", 2, {"transactional_id_pattern": "("}),
    Case("transactions by id", "DescribeTransactions", 0, {"transactional_ids": ["t", "u"]}),
    Case("no transactions", "DescribeTransactions", 0, {"transactional_ids": []}),
    Case("no features", "UpdateFeatures", 2, {"feature_updates": []}),
    Case("unknown feature", "UpdateFeatures", 2, _feature("nope", 1, validate_only=True)),
    Case("unknown feature, version 0", "UpdateFeatures", 0, _feature("nope", 1)),
    Case("unknown feature, version 1", "UpdateFeatures", 1, _feature("nope", 1, validate_only=True)),
    Case("a feature too new", "UpdateFeatures", 2, _feature("metadata.version", 999, validate_only=True)),
    *_each(range(3, 6), "the versions", "ApiVersions", _SOFTWARE),
    Case("a node of no cluster", "ApiVersions", 5, {**_SOFTWARE, "node_id": 1}),
    Case("a cluster without a node", "ApiVersions", 5, {**_SOFTWARE, "cluster_id": "another"}),
    Case("a node of another cluster", "ApiVersions", 5, {**_SOFTWARE, "cluster_id": "another", "node_id": 1}),
)

PREPARED: Final = (
    _new("plain", 2),
    _new("other"),
    _new("records", configs=[_config("retention.ms", "-1")]),
    _new("a.b"),
    _new("compacted", configs=[_config("cleanup.policy", "compact")]),
    _new(
        "strict",
        configs=[_config("cleanup.policy", "compact"), _config("message.timestamp.before.max.ms", "31536000000")],
    ),
)
"""Topics that are there before the first case."""


def answers(port: int, log_dir: str, settle: Callable[[], None] = lambda: None) -> Iterator[tuple[Case, Plain]]:
    """Prepare a new broker, and ask it all cases in their order; each with its answer, None for a closed connection."""
    with Wire(port) as wire:
        create_topics(wire, PREPARED)
        settle()
        _write_records(wire)
        for case in CASES:
            ids = {f"{{id of {name}}}": id_ for name, id_ in topic_ids(wire).items()}
            known = {**ids, "{log_dir}": log_dir}
            patient = {"timeout_ms": 30_000} if case.api in _PATIENT else {}
            answer = ask(wire, case._replace(fields={**patient, **case.fields}), known)
            if case.api in _CHANGING:
                settle()
                ids |= {f"{{id of {name}}}": id_ for name, id_ in topic_ids(wire).items()}
            yield case, _settled(answer, {**{id_: name for name, id_ in ids.items()}, log_dir: "{log_dir}"})


_CHANGING: Final = frozenset(
    {
        "CreateTopics", "DeleteTopics", "CreatePartitions", "Metadata", "IncrementalAlterConfigs", "AlterConfigs",
        "AlterClientQuotas", "AlterPartitionReassignments",
    }
)  # fmt: skip
_PATIENT: Final = frozenset({"CreateTopics", "DeleteTopics", "CreatePartitions", "DeleteRecords", "ElectLeaders"})
"""Apis with a time limit that is 0 by default."""

_VARYING: Final = frozenset(
    {
        "port", "cluster_id", "total_bytes", "usable_bytes", "partition_size", "log_end_offset", "high_watermark",
        "last_fetch_timestamp", "last_caught_up_timestamp", "replica_directory_id", "producer_id", "last_timestamp",
        "finalized_features_epoch", "batch_index_error_message",
    }
)  # fmt: skip
"""Fields of which only the sign is kept, or of text whether there is any."""


def _write_records(wire: Wire) -> None:
    """Three batches: two of one record each, and one of three whose largest timestamp is not the last; and a new one.

    Their producer is known for a day, which the first three are older than.
    """
    asked: dict[str, Plain] = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    given = ask_again(wire, "InitProducerId", asked, 4, "error_code")
    sequence = 0
    for topic, *times in (
        ("records", BASE_TIME),
        ("records", BASE_TIME + 100),
        ("records", BASE_TIME + 300, BASE_TIME + 330, BASE_TIME + 320),
        ("a.b", time.time_ns() // 1_000_000),
    ):
        batch = encode_batch(
            [(timestamp, b"k", b"v", ()) for timestamp in times],
            producer_id=given["producer_id"],
            producer_epoch=given["producer_epoch"],
            base_sequence=sequence if topic == "records" else 0,
        )
        sequence += len(times)
        produce(wire, topic, batch)


def _settled(answer: Plain, known: Mapping[str, str]) -> Plain:
    """The answer without what differs from run to run; text that is ``known`` has its name."""

    def scalar(field: str, value: Plain) -> Plain:
        match value:
            case int() if field in _VARYING:
                return "negative" if value < 0 else "zero or more"
            case str() if field in _VARYING:
                return "text" if value else ""
            case str() if field == "topic_id" and value not in (*known, NO_ID, UNKNOWN_ID):
                return "of no topic"  # which is only validated
            case str() if field == "documentation":
                return hashlib.sha256(value.encode()).hexdigest()[:12]
            case str():
                for text, name in known.items():
                    value = value.replace(text, name)
        return value

    return settled(answer, scalar)


def captured(folder: Path) -> dict[str, Any]:
    """The answers of a real Kafka whose data are below ``folder``, by case."""
    with Kafka(kafka_script(), folder / "kafka").running() as kafka:
        log_dir = str(kafka.directory)
        return {case.title: answer for case, answer in answers(kafka.port, log_dir, lambda: time.sleep(0.3))}


if __name__ == "__main__":
    rewrite(ANSWERS, captured)
