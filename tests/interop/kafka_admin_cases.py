"""What a Kafka is asked about administration, and its answers without what differs from run to run.

``python -m tests.interop.kafka_admin_cases`` asks a real Kafka and writes ``kafka_admin_answers.json``.
"""

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.interop.kafka_cases import NO_ID, UNKNOWN_ID, Case, Fields, ask, create_topics, keep, settled, topic_ids
from tests.interop.kafka_wire import Plain, Wire, request
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


def _more(name: str, count: int, assignments: list[Fields] | None = None) -> Fields:
    return {"name": name, "count": count, "assignments": assignments}


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


def _quota(entity: list[tuple[str, str | None]], *ops: tuple[str, float, bool], validate_only: bool = False) -> Fields:
    return {
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "ops": [{"key": key, "value": value, "remove": remove} for key, value, remove in ops],
            }
        ],
        "validate_only": validate_only,
    }


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
    Case("unknown, not created", "Metadata", 12, _topics({"name": "nope"}, allow_auto_topic_creation=False)),
    Case("unknown, created", "Metadata", 12, _topics({"name": "made-12"})),
    Case("it is there", "Metadata", 12, _topics({"name": "made-12"})),
    Case("created in version 1", "Metadata", 1, _topics({"name": "made-1"})),
    Case("impossible", "Metadata", 12, _topics({"name": "a b"})),
    Case("impossible, not created", "Metadata", 12, _topics({"name": "a b"}, allow_auto_topic_creation=False)),
    Case("empty name", "Metadata", 12, _topics({"name": ""})),
    Case("a dot", "Metadata", 12, _topics({"name": "."})),
    Case("too long", "Metadata", 12, _topics({"name": "x" * 250})),
    Case("collides", "Metadata", 12, _topics({"name": "a_b"})),
    Case("the metadata log", "Metadata", 12, _topics({"name": "__cluster_metadata"})),
    Case("the metadata log in version 1", "Metadata", 1, _topics({"name": "__cluster_metadata"})),
    Case("twice", "Metadata", 12, _topics({"name": "plain"}, {"name": "plain"})),
    Case("by id", "Metadata", 12, _topics({"name": None, "topic_id": "{id of plain}"})),
    Case("by unknown id", "Metadata", 12, _topics({"name": None, "topic_id": UNKNOWN_ID})),
    Case("neither name nor id", "Metadata", 12, _topics({"name": None})),
    Case("by id in version 10", "Metadata", 10, _topics({"name": None, "topic_id": "{id of plain}"})),
    Case("null name in version 11", "Metadata", 11, _topics({"name": None})),
    Case("name and id", "Metadata", 12, _topics({"name": "plain", "topic_id": "{id of plain}"})),
    Case("name and other id", "Metadata", 12, _topics({"name": "plain", "topic_id": UNKNOWN_ID})),
    Case("a name and an id", "Metadata", 12, _topics({"name": "plain"}, {"name": None, "topic_id": "{id of other}"})),
    Case("topic operations", "Metadata", 12, _topics({"name": "plain"}, include_topic_authorized_operations=True)),
    Case("cluster operations", "Metadata", 10, _topics({"name": "plain"}, include_cluster_authorized_operations=True)),
    # --- DescribeTopicPartitions ---
    Case("one", "DescribeTopicPartitions", 0, _topics({"name": "plain"})),
    Case("all", "DescribeTopicPartitions", 0, _topics()),
    Case("unknown and known", "DescribeTopicPartitions", 0, _topics({"name": "plain"}, {"name": "nope"})),
    Case("impossible one", "DescribeTopicPartitions", 0, _topics({"name": "a b"})),
    Case("twice the same", "DescribeTopicPartitions", 0, _topics({"name": "plain"}, {"name": "plain"})),
    Case("a limit", "DescribeTopicPartitions", 0, _topics({"name": "plain"}, response_partition_limit=1)),
    Case(
        "a limit and more topics",
        "DescribeTopicPartitions",
        0,
        _topics({"name": "other"}, {"name": "plain"}, response_partition_limit=1),
    ),
    Case(
        "a limit that is used up, and one that is not there",
        "DescribeTopicPartitions",
        0,
        _topics({"name": "plain"}, {"name": "wrong"}, response_partition_limit=2),
    ),
    Case("limit 0", "DescribeTopicPartitions", 0, _topics({"name": "plain"}, response_partition_limit=0)),
    Case(
        "from a cursor",
        "DescribeTopicPartitions",
        0,
        _topics({"name": "plain"}, {"name": "other"}, cursor={"topic_name": "plain", "partition_index": 1}),
    ),
    Case(
        "behind the last",
        "DescribeTopicPartitions",
        0,
        _topics({"name": "plain"}, cursor={"topic_name": "plain", "partition_index": 9}),
    ),
    Case(
        "cursor at no topic",
        "DescribeTopicPartitions",
        0,
        _topics({"name": "plain"}, cursor={"topic_name": "gone", "partition_index": 1}),
    ),
    Case(
        "negative cursor",
        "DescribeTopicPartitions",
        0,
        _topics({"name": "plain"}, cursor={"topic_name": "plain", "partition_index": -1}),
    ),
    # --- CreateTopics ---
    *_each(range(2, 8), "only validated", "CreateTopics", _topics(_new("valid", 3), validate_only=True)),
    *(Case(f"made in version {v}", "CreateTopics", v, _topics(_new(f"new-{v}", 2))) for v in range(2, 8)),
    Case("exists", "CreateTopics", 7, _topics(_new("plain"))),
    Case("exists, only validated", "CreateTopics", 7, _topics(_new("plain"), validate_only=True)),
    Case("impossible name", "CreateTopics", 7, _topics(_new("a b"))),
    Case("empty topic name", "CreateTopics", 7, _topics(_new(""))),
    Case("name is a dot", "CreateTopics", 7, _topics(_new("."))),
    Case("name of 250", "CreateTopics", 7, _topics(_new("x" * 250))),
    Case("name of 249", "CreateTopics", 7, _topics(_new("x" * 249))),
    Case("name collides", "CreateTopics", 7, _topics(_new("a_b"))),
    Case("names of one request collide", "CreateTopics", 7, _topics(_new("c.d"), _new("c_d"), validate_only=True)),
    Case("topic twice", "CreateTopics", 7, _topics(_new("dup"), _new("dup", 2))),
    Case("topic twice beside another", "CreateTopics", 7, _topics(_new("dup"), _new("dup", 2), _new("beside"))),
    Case("no topics", "CreateTopics", 7, _topics()),
    Case("defaults", "CreateTopics", 7, _topics(_new("defaults", -1, -1))),
    Case("defaults in version 3", "CreateTopics", 3, _topics(_new("defaults-3", -1, -1))),
    Case("no partitions", "CreateTopics", 7, _topics(_new("zero", 0))),
    Case("negative partitions", "CreateTopics", 7, _topics(_new("minus", -2))),
    Case("no replicas", "CreateTopics", 7, _topics(_new("none", 1, 0))),
    Case("negative replicas", "CreateTopics", 7, _topics(_new("minus", 1, -2))),
    Case("three replicas", "CreateTopics", 7, _topics(_new("three", 1, 3))),
    Case("three replicas, validated", "CreateTopics", 7, _topics(_new("three", 1, 3), validate_only=True)),
    Case("of the metadata log", "CreateTopics", 7, _topics(_new("__cluster_metadata"))),
    Case("of it, validated", "CreateTopics", 7, _topics(_new("__cluster_metadata"), validate_only=True)),
    Case("almost its name", "CreateTopics", 7, _topics(_new("__cluster_metadata-0"))),
    Case("a name in a log directory", "CreateTopics", 7, _topics(_new("remote-log-index-cache"))),
    Case("a name like a deleted one", "CreateTopics", 7, _topics(_new("x.0123456789abcdef0123456789abcdef-delete"))),
    Case("too many partitions", "CreateTopics", 7, _topics(_new("many", 10_001), validate_only=True)),
    Case("assigned", "CreateTopics", 7, _topics(_new("assigned", -1, -1, assignments=_assigned([1], [1])))),
    Case("assigned and counted", "CreateTopics", 7, _topics(_new("both", 2, 1, assignments=_assigned([1], [1])))),
    Case("assigned with replicas", "CreateTopics", 7, _topics(_new("both", -1, 1, assignments=_assigned([1], [1])))),
    Case("assigned elsewhere", "CreateTopics", 7, _topics(_new("far", -1, -1, assignments=_assigned([2])))),
    Case("assigned to two", "CreateTopics", 7, _topics(_new("far", -1, -1, assignments=_assigned([1, 2])))),
    Case("assigned twice to one", "CreateTopics", 7, _topics(_new("far", -1, -1, assignments=_assigned([1, 1])))),
    Case("assigned to none", "CreateTopics", 7, _topics(_new("far", -1, -1, assignments=_assigned([])))),
    Case("assigned unevenly", "CreateTopics", 7, _topics(_new("far", -1, -1, assignments=_assigned([1], [])))),
    Case("assigned from 1", "CreateTopics", 7, _topics(_new("far", -1, -1, assignments=_assigned([1], first=1)))),
    Case(
        "a partition twice",
        "CreateTopics",
        7,
        _topics(_new("far", -1, -1, assignments=[*_assigned([1]), *_assigned([1])])),
    ),
    Case("a negative broker", "CreateTopics", 7, _topics(_new("far", -1, -1, assignments=_assigned([-1])))),
    Case("configured", "CreateTopics", 7, _topics(_new("set", configs=[_config("retention.ms", "5000")]))),
    Case("null value", "CreateTopics", 7, _topics(_new("null", configs=[_config("retention.ms", None)]))),
    Case("unknown key", "CreateTopics", 7, _topics(_new("unset", configs=[_config("nope", "1")]))),
    Case("bad value", "CreateTopics", 7, _topics(_new("unset", configs=[_config("retention.ms", "soon")]))),
    Case(
        "bad value, validated",
        "CreateTopics",
        7,
        _topics(_new("unset", configs=[_config("retention.ms", "soon")]), validate_only=True),
    ),
    Case(
        "key twice",
        "CreateTopics",
        7,
        _topics(_new("keys", configs=[_config("retention.ms", "1"), _config("retention.ms", "2")]), validate_only=True),
    ),
    # --- CreatePartitions ---
    Case("enlarged, validated", "CreatePartitions", 3, _topics(_more("other", 2), validate_only=True)),
    Case("enlarged", "CreatePartitions", 3, _topics(_more("other", 2))),
    Case("enlarged in version 0", "CreatePartitions", 0, _topics(_more("other", 3))),
    Case("as before", "CreatePartitions", 3, _topics(_more("other", 3))),
    Case("fewer", "CreatePartitions", 3, _topics(_more("other", 1))),
    Case("none", "CreatePartitions", 3, _topics(_more("other", 0))),
    Case("less than none", "CreatePartitions", 3, _topics(_more("other", -1))),
    Case("far too many", "CreatePartitions", 3, _topics(_more("other", 10_010), validate_only=True)),
    Case("of no topic", "CreatePartitions", 3, _topics(_more("nope", 2))),
    Case("of an impossible topic", "CreatePartitions", 3, _topics(_more("a b", 2))),
    Case("of a topic twice", "CreatePartitions", 3, _topics(_more("other", 4), _more("other", 5))),
    Case(
        "placed",
        "CreatePartitions",
        3,
        _topics(_more("other", 4, [{"broker_ids": [1]}])),
    ),
    Case(
        "placed too few",
        "CreatePartitions",
        3,
        _topics(_more("other", 6, [{"broker_ids": [1]}])),
    ),
    Case("placed nowhere", "CreatePartitions", 3, _topics(_more("other", 5, []))),
    Case(
        "placed elsewhere",
        "CreatePartitions",
        3,
        _topics(_more("other", 5, [{"broker_ids": [2]}])),
    ),
    Case(
        "placed on two",
        "CreatePartitions",
        3,
        _topics(_more("other", 5, [{"broker_ids": [1, 2]}])),
    ),
    Case(
        "placed on no broker",
        "CreatePartitions",
        3,
        _topics(_more("other", 5, [{"broker_ids": []}])),
    ),
    # --- DeleteTopics ---
    Case("by name, version 1", "DeleteTopics", 1, {"topic_names": ["new-2"]}),
    Case("by name, version 5", "DeleteTopics", 5, {"topic_names": ["new-3", "nope"]}),
    Case("by name, version 6", "DeleteTopics", 6, _topics({"name": "new-4"})),
    Case("by topic id", "DeleteTopics", 6, _topics({"name": None, "topic_id": "{id of new-5}"})),
    Case("unknown name", "DeleteTopics", 6, _topics({"name": "nope"})),
    Case("unknown topic id", "DeleteTopics", 6, _topics({"name": None, "topic_id": UNKNOWN_ID})),
    Case("name and topic id", "DeleteTopics", 6, _topics({"name": "new-6", "topic_id": "{id of new-6}"})),
    Case("no name and no id", "DeleteTopics", 6, _topics({"name": None})),
    Case("name twice", "DeleteTopics", 6, _topics({"name": "new-6"}, {"name": "new-6"})),
    Case("id twice", "DeleteTopics", 6, _topics(*[{"name": None, "topic_id": "{id of new-6}"}] * 2)),
    Case(
        "a topic by name and by id",
        "DeleteTopics",
        6,
        _topics({"name": "new-6"}, {"name": None, "topic_id": "{id of new-6}"}),
    ),
    Case("impossible topic", "DeleteTopics", 6, _topics({"name": "a b"})),
    Case("nothing to delete", "DeleteTopics", 6, _topics()),
    # --- ListOffsets ---
    *_each(range(1, 12), "latest", "ListOffsets", _moment(-1)),
    *_each(range(1, 12), "earliest", "ListOffsets", _moment(-2)),
    *_each(range(6, 12), "largest timestamp", "ListOffsets", _moment(-3)),
    *_each(range(7, 12), "earliest local", "ListOffsets", _moment(-4)),
    *_each(range(8, 12), "latest tiered", "ListOffsets", _moment(-5)),
    *_each(range(10, 12), "earliest pending upload", "ListOffsets", _moment(-6)),
    Case("no moment", "ListOffsets", 11, _moment(-7)),
    Case("largest timestamp of nothing", "ListOffsets", 11, _moment(-3, "plain")),
    Case("earliest of nothing", "ListOffsets", 11, _moment(-2, "plain")),
    Case("at the first", "ListOffsets", 11, _moment(BASE_TIME)),
    Case("before the first", "ListOffsets", 11, _moment(0)),
    Case("between", "ListOffsets", 11, _moment(BASE_TIME + 150)),
    Case("within a batch", "ListOffsets", 11, _moment(BASE_TIME + 310)),
    Case("after the last", "ListOffsets", 11, _moment(BASE_TIME + 10_000)),
    Case("by time in version 1", "ListOffsets", 1, _moment(BASE_TIME + 150)),
    Case("latest, committed", "ListOffsets", 11, {**_moment(-1), "isolation_level": 1}),
    Case("with its epoch", "ListOffsets", 11, _moment(-1, epoch=0)),
    Case("with a later epoch", "ListOffsets", 11, _moment(-1, epoch=7)),
    Case("moment in no topic", "ListOffsets", 11, _moment(-1, "nope")),
    Case("moment in an impossible topic", "ListOffsets", 11, _moment(-1, "a b")),
    Case("moment in no partition", "ListOffsets", 11, _moment(-1, partition=9)),
    Case("moment in a negative partition", "ListOffsets", 11, _moment(-1, partition=-1)),
    Case(
        "a partition twice in one request",
        "ListOffsets",
        11,
        {"replica_id": -1, "topics": [*_moment(-1)["topics"], *_moment(-2)["topics"]]},
    ),
    Case(
        "a partition twice in one topic",
        "ListOffsets",
        11,
        {
            "replica_id": -1,
            "topics": [
                {
                    "name": "records",
                    "partitions": [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -2}],
                }
            ],
        },
    ),
    # --- OffsetForLeaderEpoch ---
    *_each(range(2, 5), "the current epoch", "OffsetForLeaderEpoch", _epoch(-1, 0)),
    Case("the epoch is known", "OffsetForLeaderEpoch", 4, _epoch(0, 0)),
    Case("a later one is known", "OffsetForLeaderEpoch", 4, _epoch(5, 0)),
    Case("a later one is asked for", "OffsetForLeaderEpoch", 4, _epoch(-1, 5)),
    Case("an epoch that never was", "OffsetForLeaderEpoch", 4, _epoch(-1, -1)),
    Case("an epoch of nothing", "OffsetForLeaderEpoch", 4, _epoch(-1, 0, "plain")),
    Case("an epoch of no topic", "OffsetForLeaderEpoch", 4, _epoch(-1, 0, "nope")),
    Case("an epoch of no partition", "OffsetForLeaderEpoch", 4, _epoch(-1, 0, partition=9)),
    Case("an epoch of a negative partition", "OffsetForLeaderEpoch", 4, _epoch(-1, 0, partition=-1)),
    # --- DescribeProducers ---
    Case(
        "producers",
        "DescribeProducers",
        0,
        _topics({"name": "a.b", "partition_indexes": [0]}, {"name": "plain", "partition_indexes": [0, 1, 9]}),
    ),
    Case("producers of no topic", "DescribeProducers", 0, _topics({"name": "nope", "partition_indexes": [0]})),
    Case(
        "producers of an impossible topic", "DescribeProducers", 0, _topics({"name": "a b", "partition_indexes": [0]})
    ),
    Case("producers of no partition", "DescribeProducers", 0, _topics({"name": "records", "partition_indexes": []})),
    Case("producers of -1", "DescribeProducers", 0, _topics({"name": "records", "partition_indexes": [-1]})),
    # --- DescribeLogDirs ---
    *_each(range(1, 6), "directories of a topic", "DescribeLogDirs", _topics({"topic": "records", "partitions": [0]})),
    Case("directories of none", "DescribeLogDirs", 4, _topics()),
    Case(
        "directories of two",
        "DescribeLogDirs",
        4,
        _topics({"topic": "records", "partitions": [0, 9]}, {"topic": "nope", "partitions": [0]}),
    ),
    Case("directories of a topic twice", "DescribeLogDirs", 4, _topics(*[{"topic": "records", "partitions": [0]}] * 2)),
    Case("directories of no partition", "DescribeLogDirs", 4, _topics({"topic": "records", "partitions": []})),
    # --- DeleteRecords ---
    Case("deleted in version 0", "DeleteRecords", 0, _delete(0)),
    Case("deleted within a batch", "DeleteRecords", 2, _delete(1)),
    Case("deleted once more", "DeleteRecords", 2, _delete(1)),
    Case("deleted backwards", "DeleteRecords", 2, _delete(0)),
    Case("deleted behind the end", "DeleteRecords", 2, _delete(99)),
    Case("deleted at -2", "DeleteRecords", 2, _delete(-2)),
    Case("deleted in no topic", "DeleteRecords", 2, _delete(0, "nope")),
    Case("deleted in an impossible topic", "DeleteRecords", 2, _delete(0, "a b")),
    Case("deleted in no partition", "DeleteRecords", 2, _delete(0, partition=9)),
    Case("deleted in a negative partition", "DeleteRecords", 2, _delete(0, partition=-1)),
    Case("deleted in a compacted topic", "DeleteRecords", 2, _delete(-1, "compacted")),
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
    Case("too old", "Produce", 12, _produced(_batch((b"k", _NEW), (b"k", 5), (b"k", 6), (b"k", -1)), "strict")),
    Case("without keys or too old", "Produce", 12, _produced(_batch((b"k", 5), (None, _NEW), (None, 6)), "strict")),
    Case("too new", "Produce", 12, _produced(_batch((b"k", _NEW), (b"k", 2 * _NEW), (b"k", 3 * _NEW)), "plain")),
    Case(
        "too new, too old, no key", "Produce", 12, _produced(_batch((b"k", 2 * _NEW), (b"k", 5), (None, 5)), "strict")
    ),
    Case("a producer without an epoch", "Produce", 12, _of_producer(-1, 0)),
    Case("neither epoch nor sequence", "Produce", 12, _of_producer(-1, -1)),
    Case("an epoch and no sequence", "Produce", 12, _of_producer(0, -1)),
    Case("an epoch and no producer", "Produce", 12, _of_producer(0, 0, -1)),
    Case("a producer with its epoch", "Produce", 12, _of_producer(0, 0)),
    Case("the same again", "Produce", 12, _of_producer(0, 0)),
    Case("without its epoch", "Produce", 12, _of_producer(-1, 0)),
    Case("with the next epoch", "Produce", 12, _of_producer(1, 0)),
    Case("with the epoch before", "Produce", 12, _of_producer(0, 1)),
    Case("with a gap", "Produce", 12, _of_producer(1, 7)),
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
            {
                "resources": [_changes(2, "plain", (f"{kind}.replication.throttled.replicas", 0, value))],
                "validate_only": True,
            },
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
        {"resources": [_resource(2, "plain", "retention.ms", "nope", "cleanup.policy")], "include_synonyms": True},
    ),
    Case(
        "documented",
        "DescribeConfigs",
        4,
        {"resources": [_resource(2, "plain", "retention.ms")], "include_documentation": True},
    ),
    Case("neither", "DescribeConfigs", 4, {"resources": [_resource(2, "plain", "retention.ms")]}),
    Case("no keys named", "DescribeConfigs", 4, {"resources": [{**_resource(2, "plain"), "configuration_keys": []}]}),
    Case(
        "several resources",
        "DescribeConfigs",
        4,
        {
            "resources": [
                _resource(2, "plain", "segment.ms"),
                _resource(2, "nope"),
                _resource(4, "1", "queued.max.requests"),
                _resource(4, "", "queued.max.requests"),
                _resource(4, "7"),
            ]
        },
    ),
    Case(
        "an unknown kind beside a topic",
        "DescribeConfigs",
        4,
        {"resources": [_resource(2, "plain", "segment.ms"), _resource(99, "x")]},
    ),
    Case(
        "resource twice",
        "DescribeConfigs",
        4,
        {"resources": [_resource(2, "plain", "segment.ms"), _resource(2, "plain", "retention.ms")]},
    ),
    *(
        Case(
            f"set, version {version}",
            "IncrementalAlterConfigs",
            version,
            {"resources": [_changes(2, "plain", ("retention.ms", 0, "7000"))]},
        )
        for version in range(2)
    ),
    Case(
        "is set", "DescribeConfigs", 4, {"resources": [_resource(2, "plain", "retention.ms")], "include_synonyms": True}
    ),
    Case(
        "several are changed",
        "IncrementalAlterConfigs",
        1,
        {
            "resources": [
                _changes(2, "plain", ("cleanup.policy", 2, "compact")),
                _changes(2, "nope", ("retention.ms", 0, "1")),
                _changes(2, "other", ("nope", 0, "1")),
                _changes(2, "other-2", ("retention.ms", 0, None)),
                _changes(99, "x", ("retention.ms", 0, "1")),
                _changes(4, "1", ("queued.max.requests", 0, "3")),
            ]
        },
    ),
    Case(
        "one resource twice",
        "IncrementalAlterConfigs",
        1,
        {
            "resources": [
                _changes(2, "plain", ("segment.ms", 0, "9000")),
                _changes(2, "plain", ("segment.ms", 0, "8000")),
            ]
        },
    ),
    Case("nothing to change", "IncrementalAlterConfigs", 1, {"resources": []}),
    Case(
        "replaced, validated",
        "AlterConfigs",
        1,
        {
            "resources": [
                {"resource_type": 2, "resource_name": "plain", "configs": [_config("retention.ms", "1000")]},
                {"resource_type": 2, "resource_name": "nope", "configs": []},
            ],
            "validate_only": True,
        },
    ),
    Case(
        "replaced",
        "AlterConfigs",
        0,
        {"resources": [{"resource_type": 2, "resource_name": "plain", "configs": [_config("segment.ms", "6000")]}]},
    ),
    Case(
        "is replaced",
        "DescribeConfigs",
        4,
        {
            "resources": [_resource(2, "plain", "retention.ms", "segment.ms", "cleanup.policy")],
            "include_synonyms": True,
        },
    ),
    Case("resources", "ListConfigResources", 0, {}),
    Case("resources of all kinds", "ListConfigResources", 1, {"resource_types": []}),
    Case("topics and brokers", "ListConfigResources", 1, {"resource_types": [2, 4]}),
    Case("loggers and groups", "ListConfigResources", 1, {"resource_types": [8, 16, 32]}),
    Case("no such kind", "ListConfigResources", 1, {"resource_types": [2, 99]}),
    # --- The quorum, leaders, replicas ---
    *_each(
        range(3),
        "the quorum",
        "DescribeQuorum",
        _topics({"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}),
    ),
    Case(
        "of another topic",
        "DescribeQuorum",
        2,
        _topics({"topic_name": "plain", "partitions": [{"partition_index": 0}]}),
    ),
    Case(
        "of another partition",
        "DescribeQuorum",
        2,
        _topics({"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 1}]}),
    ),
    Case("of nothing", "DescribeQuorum", 2, _topics()),
    *_each(
        range(3),
        "a leader",
        "ElectLeaders",
        {"topic_partitions": [{"topic": "plain", "partitions": [0]}]},
    ),
    Case(
        "unclean", "ElectLeaders", 2, {"election_type": 1, "topic_partitions": [{"topic": "plain", "partitions": [0]}]}
    ),
    Case(
        "neither kind",
        "ElectLeaders",
        2,
        {"election_type": 7, "topic_partitions": [{"topic": "plain", "partitions": [0]}]},
    ),
    Case("all leaders", "ElectLeaders", 2, {"topic_partitions": None}),
    Case("all leaders, unclean", "ElectLeaders", 2, {"election_type": 1, "topic_partitions": None}),
    Case("no leaders", "ElectLeaders", 2, {"topic_partitions": []}),
    Case(
        "leaders of what is not there",
        "ElectLeaders",
        2,
        {"topic_partitions": [{"topic": "nope", "partitions": [0]}, {"topic": "plain", "partitions": [1, 9]}]},
    ),
    Case("one partition twice", "ElectLeaders", 2, {"topic_partitions": [{"topic": "plain", "partitions": [0, 0]}]}),
    Case("replicas as they are", "AlterPartitionReassignments", 0, _reassigned([1])),
    Case("version 1", "AlterPartitionReassignments", 1, _reassigned([1])),
    Case(
        "fixed number", "AlterPartitionReassignments", 1, {**_reassigned([1]), "allow_replication_factor_change": False}
    ),
    Case("moved elsewhere", "AlterPartitionReassignments", 0, _reassigned([2])),
    Case("more replicas", "AlterPartitionReassignments", 0, _reassigned([1, 2])),
    Case("a replica twice", "AlterPartitionReassignments", 0, _reassigned([1, 1])),
    Case("no replica", "AlterPartitionReassignments", 0, _reassigned([])),
    Case("a negative replica", "AlterPartitionReassignments", 0, _reassigned([-1])),
    Case("cancelled", "AlterPartitionReassignments", 0, _reassigned(None)),
    Case("cancelled where there is none", "AlterPartitionReassignments", 0, _reassigned(None, "nope")),
    Case("replicas of no topic", "AlterPartitionReassignments", 0, _reassigned([1], "nope")),
    Case("replicas of no partition", "AlterPartitionReassignments", 0, _reassigned([1], partition=9)),
    Case("replicas of nothing", "AlterPartitionReassignments", 0, _topics()),
    Case("all reassignments", "ListPartitionReassignments", 0, {"topics": None}),
    Case(
        "reassignments of a topic",
        "ListPartitionReassignments",
        0,
        _topics({"name": "plain", "partition_indexes": [0]}),
    ),
    Case(
        "reassignments of no topic",
        "ListPartitionReassignments",
        0,
        _topics({"name": "nope", "partition_indexes": [0]}),
    ),
    Case("reassignments of nothing", "ListPartitionReassignments", 0, _topics()),
    Case(
        "moved to where they are",
        "AlterReplicaLogDirs",
        2,
        {"dirs": [{"path": "{log_dir}", "topics": [{"name": "plain", "partitions": [0, 9]}]}]},
    ),
    Case(
        "moved to no directory",
        "AlterReplicaLogDirs",
        2,
        {
            "dirs": [
                {
                    "path": "/nowhere",
                    "topics": [{"name": "plain", "partitions": [0]}, {"name": "nope", "partitions": [0]}],
                }
            ]
        },
    ),
    Case(
        "moved by a relative path",
        "AlterReplicaLogDirs",
        1,
        {"dirs": [{"path": "here", "topics": [{"name": "plain", "partitions": [0]}]}]},
    ),
    Case(
        "moved, of no topic",
        "AlterReplicaLogDirs",
        2,
        {"dirs": [{"path": "{log_dir}", "topics": [{"name": "nope", "partitions": [0]}]}]},
    ),
    Case("nothing moved", "AlterReplicaLogDirs", 2, {"dirs": []}),
    # --- ACLs, quotas, users ---
    *_each(range(1, 4), "acls", "DescribeAcls", _ANY_ACL),
    *_each(range(1, 4), "acls made", "CreateAcls", {"creations": [_acl(), _acl(3, "g")]}),
    Case("no acls made", "CreateAcls", 3, {"creations": []}),
    *_each(range(1, 4), "acls deleted", "DeleteAcls", {"filters": [_ANY_ACL, _ANY_ACL]}),
    *_each(range(2), "all quotas", "DescribeClientQuotas", {"components": [], "strict": False}),
    Case("quotas of users", "DescribeClientQuotas", 1, {"components": [_component("user", 2)], "strict": True}),
    Case("quotas of a client", "DescribeClientQuotas", 1, {"components": [_component("client-id", 0, "c")]}),
    Case("quotas of an exact null", "DescribeClientQuotas", 1, {"components": [_component("client-id", 0)]}),
    Case("quotas by default with a name", "DescribeClientQuotas", 1, {"components": [_component("user", 1, "u")]}),
    Case("quotas of any with a name", "DescribeClientQuotas", 1, {"components": [_component("user", 2, "u")]}),
    Case("quotas of no type", "DescribeClientQuotas", 1, {"components": [_component("nope", 2)]}),
    Case("quotas of an empty type", "DescribeClientQuotas", 1, {"components": [_component("", 2)]}),
    Case("quotas with no match", "DescribeClientQuotas", 1, {"components": [_component("user", 9)]}),
    Case("quotas of a type twice", "DescribeClientQuotas", 1, {"components": [_component("user", 2)] * 2}),
    Case(
        "quotas of a user and an address",
        "DescribeClientQuotas",
        1,
        {"components": [_component("user", 2), _component("ip", 2)]},
    ),
    Case(
        "a quota, validated",
        "AlterClientQuotas",
        1,
        _quota([("user", "u")], ("producer_byte_rate", 9.0, False), validate_only=True),
    ),
    Case("quota of no key", "AlterClientQuotas", 1, _quota([("user", "u")], ("nope", 9.0, False), validate_only=True)),
    Case(
        "quota of no entity", "AlterClientQuotas", 1, _quota([], ("producer_byte_rate", 9.0, False), validate_only=True)
    ),
    Case(
        "quota of no type",
        "AlterClientQuotas",
        1,
        _quota([("nope", "u")], ("producer_byte_rate", 9.0, False), validate_only=True),
    ),
    Case(
        "quota of an empty name",
        "AlterClientQuotas",
        1,
        _quota([("user", "")], ("producer_byte_rate", 9.0, False), validate_only=True),
    ),
    Case(
        "negative quota",
        "AlterClientQuotas",
        1,
        _quota([("user", "u")], ("producer_byte_rate", -1.0, False), validate_only=True),
    ),
    Case(
        "half a byte",
        "AlterClientQuotas",
        1,
        _quota([("user", "u")], ("producer_byte_rate", 1.5, False), validate_only=True),
    ),
    Case("a quota removed", "AlterClientQuotas", 1, _quota([("user", "u")], ("producer_byte_rate", 0.0, True))),
    Case("a quota is set", "AlterClientQuotas", 1, _quota([("client-id", "c")], ("producer_byte_rate", 9.0, False))),
    Case("all users", "DescribeUserScramCredentials", 0, {"users": None}),
    Case("no users", "DescribeUserScramCredentials", 0, {"users": []}),
    Case("a user", "DescribeUserScramCredentials", 0, {"users": [{"name": "u"}]}),
    Case("a user twice", "DescribeUserScramCredentials", 0, {"users": [{"name": "u"}, {"name": "u"}]}),
    Case("a user without a name", "DescribeUserScramCredentials", 0, {"users": [{"name": ""}]}),
    Case(
        "a user removed",
        "AlterUserScramCredentials",
        0,
        {"deletions": [{"name": "u", "mechanism": 1}]},
    ),
    # --- Transactions, features ---
    *_each(range(3), "transactions", "ListTransactions", {}),
    Case("in a state", "ListTransactions", 2, {"state_filters": ["Ongoing", "Nope"]}),
    Case("by a pattern", "ListTransactions", 2, {"transactional_id_pattern": "a.*"}),
    Case("by no pattern", "ListTransactions", 2, {"transactional_id_pattern": "("}),
    Case("transactions by id", "DescribeTransactions", 0, {"transactional_ids": ["t", "u"]}),
    Case("no transactions", "DescribeTransactions", 0, {"transactional_ids": []}),
    Case("no features", "UpdateFeatures", 2, {"feature_updates": []}),
    Case(
        "unknown feature",
        "UpdateFeatures",
        2,
        {"feature_updates": [{"feature": "nope", "max_version_level": 1}], "validate_only": True},
    ),
    Case(
        "unknown feature, version 0",
        "UpdateFeatures",
        0,
        {"feature_updates": [{"feature": "nope", "max_version_level": 1}]},
    ),
    Case(
        "unknown feature, version 1",
        "UpdateFeatures",
        1,
        {"feature_updates": [{"feature": "nope", "max_version_level": 1}], "validate_only": True},
    ),
    Case(
        "a feature too new",
        "UpdateFeatures",
        2,
        {"feature_updates": [{"feature": "metadata.version", "max_version_level": 999}], "validate_only": True},
    ),
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
    given = _producer_id(wire)
    sequence = 0
    for topic, *times in (
        ("records", BASE_TIME),
        ("records", BASE_TIME + 100),
        ("records", BASE_TIME + 300, BASE_TIME + 330, BASE_TIME + 320),
        ("a.b", time.time_ns() // 1_000_000),
    ):
        batch = encode_batch(
            [(timestamp, b"k", b"v", ()) for timestamp in times],
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            base_sequence=sequence if topic == "records" else 0,
        )
        sequence += len(times)
        data = messages.ProduceRequest.PartitionProduceData(index=0, records=memoryview(batch))
        wanted = messages.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        answer = wire.ask(messages.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[wanted]), 9)
        assert isinstance(answer, messages.ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


def _producer_id(wire: Wire) -> messages.InitProducerIdResponse:
    while True:
        given = wire.ask(request("InitProducerId", {"transactional_id": None, "transaction_timeout_ms": 60_000}), 4)
        assert isinstance(given, messages.InitProducerIdResponse)
        if given.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            assert given.error_code == ErrorCode.NONE, given
            return given
        time.sleep(0.1)


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


def main() -> None:
    """Write the file anew."""
    with tempfile.TemporaryDirectory() as folder:
        keep(ANSWERS, captured(Path(folder)))


if __name__ == "__main__":
    main()
