"""The largest requests of each api of both wires: one thing named very often, very many things, or all there are."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from seglog_protocol.messages.base import ITEMS_MAX
from tests.interop.kafka_wire import Plain

TIMES: Final = 20_000
"""Elements of a list of Kafka's wire at most."""
SOME: Final = (10, 100, 1_000, 5_000)
"""Elements in the requests of a peer that asks for much very often."""
GROUPS: Final = 40


class Places(NamedTuple):
    """Topics of many partitions, of which the first is named where one is to be named often."""

    topics: dict[str, tuple[bytes, int]]
    """Ids and partitions, by name."""

    def each(self, number: str = "partition_index", name: str = "name", **more: Plain) -> list[Plain]:
        """Every partition, by the names that a request has for a topic and a partition."""
        return [
            {name: topic, "partitions": [{number: at, **more} for at in range(count)]}
            for topic, (_, count) in self.topics.items()
        ]

    def numbers(self, name: str = "name", numbers: str = "partitions") -> list[Plain]:
        """Topics with the numbers of their partitions alone."""
        return [{name: topic, numbers: [*range(count)]} for topic, (_, count) in self.topics.items()]


def member(group: str, member: str, *topics: str) -> dict[str, Plain]:
    """A member that joins a group of the consumer protocol, and subscribes to these topics."""
    joining = {"group_id": group, "member_id": member, "member_epoch": 0, "rebalance_timeout_ms": 60_000}
    return joining | {"subscribed_topic_names": list(topics), "topic_partitions": []}


# --- Kafka's wire -----------------------------------------------------------------------------------------------------


def kafka_requests(places: Places, times: int = TIMES) -> Iterator[tuple[str, int, dict[str, Plain]]]:
    """The api, in a title that may say more behind a colon, the version, and the fields."""
    widest, *_ = places.topics
    names = [f"n{number}" for number in range(times)]
    named: list[Plain] = [{"name": name} for name in names]
    keyed = [["retention.ms", f"x{number}"] for number in range(times // 2)]
    groups = [f"group-{number:03}" for number in range(GROUPS)]
    topic = {"resource_type": 2, "resource_name": widest}
    broker = {"resource_type": 4, "resource_name": "1"}
    every = {"include_synonyms": True, "include_documentation": True}
    change = {"name": "retention.ms", "value": "700000000"}
    created: list[Plain] = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    one = [{"partition_index": 0}] * times
    all_of_offsets = {"group_id": "offsets", "topics": None}

    fetched = places.each("partition", "topic", partition_max_bytes=1 << 20)
    yield "Fetch: all partitions", 12, {"max_wait_ms": 0, "max_bytes": 1 << 20, "topics": fetched}
    nowhere = [{"topic": name, "partitions": [{"partition": 0}]} for name in names[: times // 2]]
    yield "Fetch: unknown topics", 12, {"topics": nowhere}
    for title, moment in (("ends", -1), ("largest timestamps", -3), ("by timestamp", 5)):
        yield f"ListOffsets: {title}", 7, {"topics": places.each(timestamp=moment)}
    yield "Metadata: all", 12, {"topics": None}
    yield "Metadata: one name", 12, {"topics": [{"name": widest}] * times}
    yield "Metadata: unknown names", 12, {"topics": named}
    yield "DescribeTopicPartitions: unknown names", 0, {"topics": named}
    yield "DescribeTopicPartitions: all", 0, {"topics": [], "response_partition_limit": 2_000}
    committed = places.each(committed_metadata="y")
    yield "OffsetCommit: all partitions", 8, {"group_id": "offsets", "topics": committed}
    yield "OffsetCommit: one partition", 8, {"group_id": "offsets", "topics": [{"name": widest, "partitions": one}]}
    yield "OffsetFetch: one group", 8, {"groups": [all_of_offsets] * times}
    lists = [[{"name": widest, "partition_indexes": [*range(number)]}] for number in range(min(times, 600))]
    asked = [{"group_id": "offsets", "topics": topics} for topics in lists]
    yield "OffsetFetch: one group's lists of topics", 8, {"groups": asked}
    often = {"group_id": "offsets", "topics": [{"name": widest, "partition_indexes": [0] * times}]}
    yield "OffsetFetch: one partition", 8, {"groups": [often] * 10}
    yield "OffsetFetch: unknown groups", 8, {"groups": [{"group_id": name, "topics": None} for name in names]}
    yield "OffsetFetch: version 7", 7, all_of_offsets
    yield "FindCoordinator: groups", 4, {"key_type": 0, "coordinator_keys": names}
    leaving = [{"member_id": name} for name in names]
    yield "LeaveGroup: unknown members", 4, {"group_id": "group-000", "members": leaving}
    yield "DescribeGroups: one", 5, {"groups": ["group-000"] * times}
    yield "DescribeGroups: all", 5, {"groups": [*groups, "consumers", "offsets"]}
    yield "DescribeGroups: unknown", 6, {"groups": names}
    yield "ConsumerGroupDescribe: one", 1, {"group_ids": ["consumers"] * times}
    yield "ConsumerGroupDescribe: unknown", 1, {"group_ids": names}
    yield "ListGroups", 5, {}
    yield "DeleteGroups: unknown", 2, {"groups_names": names}
    forgotten: list[Plain] = [{"name": widest, "partitions": one}]
    yield "OffsetDelete: one partition", 0, {"group_id": "more-offsets", "topics": forgotten}
    yield "OffsetDelete: all", 0, {"group_id": "more-offsets", "topics": places.each()}
    yield "CreateTopics: validated", 7, {"topics": created[: times // 2], "validate_only": True}
    yield "CreateTopics: too many", 7, {"topics": created}
    yield "CreateTopics: one name", 7, {"topics": created[:1] * (times // 2)}
    yield "DeleteTopics: unknown", 6, {"topics": named}
    yield "DeleteRecords: all partitions", 2, {"topics": places.each(offset=0)}
    epochs = [{"topic": widest, "partitions": [{"partition": 0}] * times}]
    yield "OffsetForLeaderEpoch: one", 4, {"topics": epochs}
    yield "CreateAcls", 3, {"creations": [{}] * times}
    yield "DeleteAcls", 3, {"filters": [{}] * times}
    for title, resources in (
        ("one topic", [topic | {"configuration_keys": None}] * times),
        ("one topic, many lists of keys", [topic | {"configuration_keys": keys} for keys in keyed]),
        ("the broker, many lists of keys", [broker | {"configuration_keys": ["log.dir", key]} for _, key in keyed]),
    ):
        yield f"DescribeConfigs: {title}", 4, {"resources": resources, **every}
    altered = [topic | {"configs": [change]}] * times
    yield "IncrementalAlterConfigs: one topic, validated", 1, {"resources": altered, "validate_only": True}
    unknown = [{"resource_type": 2, "resource_name": name, "configs": [change]} for name in names]
    yield "IncrementalAlterConfigs: unknown topics", 1, {"resources": unknown}
    keys = [{"name": name, "value": "1"} for name in names]
    yield "IncrementalAlterConfigs: one topic, many keys", 1, {"resources": [topic | {"configs": keys}]}
    yield "DescribeLogDirs: all", 4, {"topics": None}
    moved = [{"path": "/elsewhere", "topics": places.numbers()[:2]}]
    yield "AlterReplicaLogDirs: all partitions", 2, {"dirs": moved}
    yield "CreatePartitions: unknown", 3, {"topics": [{"name": name, "count": 3} for name in names]}
    elected = [{"topic": widest, "partitions": [0] * times}]
    yield "ElectLeaders: one partition", 2, {"topic_partitions": elected}
    assigned = [{"partition_index": 0, "replicas": [1, 2, 3]}] * times
    reassigned = [{"name": widest, "partitions": assigned}]
    yield "AlterPartitionReassignments: one partition", 0, {"topics": reassigned}
    entity = [{"entity_type": "user", "entity_name": "x"}]
    yield "AlterClientQuotas", 1, {"entries": [{"entity": entity}] * times}
    yield "DescribeUserScramCredentials", 0, {"users": named}
    yield "AlterUserScramCredentials", 0, {"deletions": [{"name": name, "mechanism": 1} for name in names]}
    yield "DescribeQuorum", 2, {"topics": [{"topic_name": "__cluster_metadata", "partitions": one}]}
    feature = {"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}
    yield "UpdateFeatures", 1, {"feature_updates": [feature] * times}
    yield "DescribeProducers: all partitions", 0, {"topics": places.numbers(numbers="partition_indexes")[:2]}
    yield "DescribeTransactions", 0, {"transactional_ids": names}
    pattern = "(?i)" + "[\x00-\uffff]" * 200
    yield "ListTransactions: an expression", 2, {"state_filters": names, "transactional_id_pattern": pattern}
    yield "ConsumerGroupHeartbeat: many names", 1, member("others", "m", *names)
    owned = [{"topic_id": id_.hex(), "partitions": [*range(count)]} for id_, count in places.topics.values()]
    owner = {"group_id": "consumers", "member_id": "member-1", "member_epoch": 1, "topic_partitions": owned}
    yield "ConsumerGroupHeartbeat: owns everything", 1, owner
    yield "ListConfigResources", 1, {}
    yield from _share_requests(places, times, names)


def _share_requests(places: Places, times: int, names: list[str]) -> Iterator[tuple[str, int, dict[str, Plain]]]:
    """Those of a member of a share group, whose session begins with each fetch, and ends with each acknowledgement."""
    widest, *_ = places.topics
    sharer = {"group_id": "sharers", "member_id": "m"}
    yield "ShareGroupHeartbeat: joins", 1, sharer | {"member_epoch": 0, "subscribed_topic_names": [widest]}
    yield (
        "ShareGroupHeartbeat: many names",
        1,
        sharer | {"member_epoch": 0, "subscribed_topic_names": [widest, *names[1:]]},
    )
    yield "ShareGroupDescribe: one", 1, {"group_ids": ["sharers"] * times}
    yield "ShareGroupDescribe: unknown", 1, {"group_ids": names}
    limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 30, "max_records": 1 << 30, "batch_size": 1}
    begins = sharer | limits | {"share_session_epoch": 0}
    every = [
        {"topic_id": id_.hex(), "partitions": [{"partition_index": number} for number in range(count)]}
        for id_, count in places.topics.values()
    ]
    id_ = places.topics[widest][0].hex()
    single = [{"first_offset": number, "last_offset": number, "acknowledge_types": [1]} for number in range(times // 2)]
    for title, batches in (
        ("many batches", single),
        ("many types", [{"first_offset": 0, "last_offset": times - 1, "acknowledge_types": [2] * times}]),
        ("all offsets", [{"first_offset": 0, "last_offset": 2**62, "acknowledge_types": [2]}]),
        ("nothing, often", [{"first_offset": 5, "last_offset": 4, "acknowledge_types": []}] * times),
    ):
        topics = [{"topic_id": id_, "partitions": [{"partition_index": 0, "acknowledgement_batches": batches}]}]
        yield f"ShareFetch: all partitions, before {title}", 2, begins | {"topics": every}
        yield f"ShareAcknowledge: {title}", 2, sharer | {"share_session_epoch": -1, "topics": topics}
    yield "ShareFetch: one partition", 2, begins | {"topics": [{"topic_id": id_, "partitions": [{}] * times}]}
    forgotten = [{"topic_id": id_, "partitions": [0] * times}]
    yield "ShareFetch: forgets", 2, begins | {"share_session_epoch": 1, "forgotten_topics_data": forgotten}
    group = {"group_id": "sharers", "topics": None}
    yield "DescribeShareGroupOffsets: one group", 1, {"groups": [group] * times}
    yield "DescribeShareGroupOffsets: unknown", 1, {"groups": [group | {"group_id": name} for name in names]}
    altered = places.each(name="topic_name", start_offset=0)
    yield "AlterShareGroupOffsets: all partitions", 0, {"group_id": "no-sharers", "topics": altered}
    unknown = [{"topic_name": name} for name in names]
    yield "DeleteShareGroupOffsets: unknown", 0, {"group_id": "no-sharers", "topics": unknown}


def native_requests(places: Places, times: int = ITEMS_MAX) -> Iterator[tuple[str, dict[str, Any]]]:
    """A title, and the header of a request."""
    widest, *_ = places.topics
    every = ({"topic": name, "partition": at} for name, (_, count) in places.topics.items() for at in range(count))
    each = list(islice(every, times))
    one = {"topic": widest, "partition": 0}
    names = [f"n{number}" for number in range(times)]
    yield "fetch: all partitions", {"api": "fetch", "partitions": [p | {"offset": 0} for p in each], "max_wait_ms": 0}
    yield "fetch: one", {"api": "fetch", "partitions": [one | {"offset": 0}] * times, "max_wait_ms": 0}
    yield "fetch: waits", {"api": "fetch", "partitions": [p | {"offset": 0} for p in each], "max_wait_ms": 50}
    yield "offsets: all partitions", {"api": "offsets", "partitions": each}
    yield "offsets: by timestamp", {"api": "offsets", "partitions": [p | {"timestamp": 0} for p in each]}
    yield "offsets: one topic", {"api": "offsets", "partitions": [{"topic": widest}] * times}
    yield "lag: a thousand", {"api": "lag", "partitions": [p | {"offset": 1} for p in each[:1_000]]}
    yield "topics: unknown names", {"api": "topics", "names": names}
    yield "topics: one name", {"api": "topics", "names": [widest] * times}
    yield "topics: all with configuration", {"api": "topics", "limit": times, "config": True}
    yield "truncate: all partitions", {"api": "truncate", "partitions": [p | {"offset": 0} for p in each]}
    yield "truncate: one", {"api": "truncate", "partitions": [one | {"offset": 0}] * times}
    yield "flush: all partitions", {"api": "flush", "partitions": each}
    yield "append: nothing", {"api": "append", "partitions": [p | {"size": 0} for p in each], "ack": "os"}
    config = {f"k{number}": "1" for number in range(times)}
    yield "create_topic: many keys", {"api": "create_topic", "topic": "x", "partitions": 1, "config": config}
    yield "alter_topic: many keys", {"api": "alter_topic", "topic": widest, "config": config}
    yield "alter_topic: one key", {"api": "alter_topic", "topic": widest, "reset": ["retention.ms"] * times}
    yield "explain", {"api": "explain", **one, "timestamp": 10**12}
    yield "explain_segments", {"api": "explain_segments", **one, "limit": times}
    yield "metrics", {"api": "metrics"}
    committed = [p | {"offset": 0} for p in each]
    yield "commit_offsets: all partitions", {"api": "commit_offsets", "group": "offsets", "offsets": committed}
    yield "committed_offsets: all", {"api": "committed_offsets", "group": "offsets"}
    yield "committed_offsets: one", {"api": "committed_offsets", "group": "offsets", "partitions": [one] * times}
    yield "list_groups", {"api": "list_groups"}
    yield "describe_group: consumer", {"api": "describe_group", "group": "consumers"}
    yield "describe_group: classic", {"api": "describe_group", "group": "group-000"}
    leaving = [{"member_id": name} for name in names]
    yield "leave_group: unknown", {"api": "leave_group", "group": "group-000", "members": leaving}
