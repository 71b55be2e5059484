"""The largest request of each api, of both wires: one thing named very many times, very many things, or all there are.

``python -m tests.process.faults.largest_requests [PARTITIONS]`` asks a daemon each of them and prints what it cost.
"""

import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import seglog
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.listeners.kafka.apis import APIS
from seglog_protocol.frames import encode_frame
from seglog_protocol.kafka import write_request
from seglog_protocol.messages.base import ITEMS_MAX
from tests.interop.kafka_wire import Plain, request
from tests.process.faults import hostile_peer
from tests.process.faults.hostile_kafka_peer import Peer
from tests.processes import Daemon, daemon

TIMES: Final = 20_000
"""Elements of a list of Kafka's wire at most."""
GROUPS: Final = 40
MEMBERS: Final = 20
METADATA: Final = 100_000
KAFKA: Final = ("--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", "auto.create.topics.enable=false")


class Cost(NamedTuple):
    """What a request cost."""

    title: str
    turn_ms: float
    """Processor time of the longest turn of the loop."""
    collection_ms: float
    """Of it, perhaps, the longest collection of garbage."""
    response_bytes: int


class Prepared(NamedTuple):
    """A daemon with topics of many partitions, and groups that have committed all of them."""

    running: Daemon
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


def prepare(running: Daemon, partitions: int) -> Prepared:
    """Make what is asked for."""
    with seglog.connect(running.address, request_timeout=600) as client:
        for name in ("wide-a", "wide-b"):
            client.create_topic(name, partitions=partitions // 2)
        for number in range(50):
            client.create_topic(f"topic-{number:03}", partitions=1)
        topics = {topic.name: (id_bytes(topic.id), topic.partitions) for topic in client.topics()}
    prepared = Prepared(running, {name: known for name, known in topics.items() if not name.startswith("__")})
    peer = Peer(running.kafka_port)
    for group in ("offsets", "more-offsets"):
        committed = {"group_id": group, "topics": prepared.each(committed_metadata="x" * 20)}
        peer.ask(request("OffsetCommit", committed), 8)
    for number in range(GROUPS):
        _join(running, f"group-{number:03}", MEMBERS if number == 0 else 1)
    for number in range(MEMBERS):
        told: Any
        [told] = peer.ask(request("ConsumerGroupHeartbeat", _member("consumers", f"member-{number}", *topics)), 1)
        assert not told.error_code, told
    peer.close()
    return prepared


def _member(group: str, member: str, *topics: str) -> dict[str, Plain]:
    joining = {"group_id": group, "member_id": member, "member_epoch": 0, "rebalance_timeout_ms": 60_000}
    return joining | {"subscribed_topic_names": list(topics), "topic_partitions": []}


def _join(running: Daemon, group: str, members: int) -> None:
    """Members of the classic protocol, with much to say of themselves."""
    timeouts = dict.fromkeys(("session_timeout_ms", "rebalance_timeout_ms"), 300_000)
    protocols = [{"name": "range", "metadata": "00" * METADATA}]
    joining: dict[str, Plain] = {"group_id": group, **timeouts, "protocol_type": "x", "protocols": protocols}
    peers = [Peer(running.kafka_port) for _ in range(members)]
    ids = [peer.ask(request("JoinGroup", joining), 4)[0].member_id for peer in peers]  # type: ignore[attr-defined]

    def all_ask(api: str, version: int, fields: list[dict[str, Plain]]) -> list[Any]:
        for peer, given in zip(peers, fields, strict=True):
            peer.send(b"".join(write_request(1, "peer", request(api, given), version)))
        return [peer.wait_for(1)[0] for peer in peers]

    joined = all_ask("JoinGroup", 4, [joining | {"member_id": member} for member in ids])
    assigned = [{"member_id": member, "assignment": "00"} for member in ids]
    syncing = {"group_id": group, "generation_id": joined[0].generation_id}
    leading = [assigned if told.leader == told.member_id else [] for told in joined]
    all_ask("SyncGroup", 3, [{**syncing, "member_id": m, "assignments": a} for m, a in zip(ids, leading, strict=True)])
    for peer in peers:
        peer.close()


# --- Kafka's wire -----------------------------------------------------------------------------------------------------


def kafka_requests(prepared: Prepared) -> Iterator[tuple[str, int, dict[str, Plain]]]:
    """The api, in a title that may say more behind a colon, the version, and the fields."""
    names = [f"n{number}" for number in range(TIMES)]
    named: list[Plain] = [{"name": name} for name in names]
    keyed = [["retention.ms", f"x{number}"] for number in range(10_000)]
    groups = [f"group-{number:03}" for number in range(GROUPS)]
    topic = {"resource_type": 2, "resource_name": "wide-a"}
    broker = {"resource_type": 4, "resource_name": "1"}
    every = {"include_synonyms": True, "include_documentation": True}
    change = {"name": "retention.ms", "value": "700000000"}
    created: list[Plain] = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    one = [{"partition_index": 0}] * TIMES
    all_of_offsets = {"group_id": "offsets", "topics": None}

    fetched = prepared.each("partition", "topic", partition_max_bytes=1 << 20)
    yield "Fetch: all partitions", 12, {"max_wait_ms": 0, "max_bytes": 1 << 20, "topics": fetched}
    nowhere = [{"topic": name, "partitions": [{"partition": 0}]} for name in names[:10_000]]
    yield "Fetch: unknown topics", 12, {"topics": nowhere}
    for title, moment in (("ends", -1), ("largest timestamps", -3), ("by timestamp", 5)):
        yield f"ListOffsets: {title}", 7, {"topics": prepared.each(timestamp=moment)}
    yield "Metadata: all", 12, {"topics": None}
    yield "Metadata: one name", 12, {"topics": [{"name": "wide-a"}] * TIMES}
    yield "Metadata: unknown names", 12, {"topics": named}
    yield "DescribeTopicPartitions: unknown names", 0, {"topics": named}
    yield "DescribeTopicPartitions: all", 0, {"topics": [], "response_partition_limit": 2_000}
    committed = prepared.each(committed_metadata="y")
    yield "OffsetCommit: all partitions", 8, {"group_id": "offsets", "topics": committed}
    yield "OffsetCommit: one partition", 8, {"group_id": "offsets", "topics": [{"name": "wide-a", "partitions": one}]}
    yield "OffsetFetch: one group", 8, {"groups": [all_of_offsets] * TIMES}
    lists = [[{"name": "wide-a", "partition_indexes": [*range(number)]}] for number in range(600)]
    asked = [{"group_id": "offsets", "topics": topics} for topics in lists]
    yield "OffsetFetch: one group's lists of topics", 8, {"groups": asked}
    often = {"group_id": "offsets", "topics": [{"name": "wide-a", "partition_indexes": [0] * TIMES}]}
    yield "OffsetFetch: one partition", 8, {"groups": [often] * 10}
    yield "OffsetFetch: unknown groups", 8, {"groups": [{"group_id": name, "topics": None} for name in names]}
    yield "OffsetFetch: version 7", 7, all_of_offsets
    yield "FindCoordinator: groups", 4, {"key_type": 0, "coordinator_keys": names}
    leaving = [{"member_id": name} for name in names]
    yield "LeaveGroup: unknown members", 4, {"group_id": "group-000", "members": leaving}
    yield "DescribeGroups: one", 5, {"groups": ["group-000"] * TIMES}
    yield "DescribeGroups: all", 5, {"groups": [*groups, "consumers", "offsets"]}
    yield "DescribeGroups: unknown", 6, {"groups": names}
    yield "ConsumerGroupDescribe: one", 1, {"group_ids": ["consumers"] * TIMES}
    yield "ConsumerGroupDescribe: unknown", 1, {"group_ids": names}
    yield "ListGroups", 5, {}
    yield "DeleteGroups: unknown", 2, {"groups_names": names}
    forgotten: list[Plain] = [{"name": "wide-a", "partitions": one}]
    yield "OffsetDelete: one partition", 0, {"group_id": "more-offsets", "topics": forgotten}
    yield "OffsetDelete: all", 0, {"group_id": "more-offsets", "topics": prepared.each()}
    yield "CreateTopics: validated", 7, {"topics": created[:10_000], "validate_only": True}
    yield "CreateTopics: too many", 7, {"topics": created}
    yield "CreateTopics: one name", 7, {"topics": created[:1] * 10_000}
    yield "DeleteTopics: unknown", 6, {"topics": named}
    yield "DeleteRecords: all partitions", 2, {"topics": prepared.each(offset=0)}
    epochs = [{"topic": "wide-a", "partitions": [{"partition": 0}] * TIMES}]
    yield "OffsetForLeaderEpoch: one", 4, {"topics": epochs}
    yield "CreateAcls", 3, {"creations": [{}] * TIMES}
    yield "DeleteAcls", 3, {"filters": [{}] * TIMES}
    for title, resources in (
        ("one topic", [topic | {"configuration_keys": None}] * TIMES),
        ("one topic, many lists of keys", [topic | {"configuration_keys": keys} for keys in keyed]),
        ("the broker, many lists of keys", [broker | {"configuration_keys": ["log.dir", key]} for _, key in keyed]),
    ):
        yield f"DescribeConfigs: {title}", 4, {"resources": resources, **every}
    altered = [topic | {"configs": [change]}] * TIMES
    yield "IncrementalAlterConfigs: one topic, validated", 1, {"resources": altered, "validate_only": True}
    unknown = [{"resource_type": 2, "resource_name": name, "configs": [change]} for name in names]
    yield "IncrementalAlterConfigs: unknown topics", 1, {"resources": unknown}
    keys = [{"name": name, "value": "1"} for name in names]
    yield "IncrementalAlterConfigs: one topic, many keys", 1, {"resources": [topic | {"configs": keys}]}
    yield "DescribeLogDirs: all", 4, {"topics": None}
    moved = [{"path": "/elsewhere", "topics": prepared.numbers()[:2]}]
    yield "AlterReplicaLogDirs: all partitions", 2, {"dirs": moved}
    yield "CreatePartitions: unknown", 3, {"topics": [{"name": name, "count": 3} for name in names]}
    elected = [{"topic": "wide-a", "partitions": [0] * TIMES}]
    yield "ElectLeaders: one partition", 2, {"topic_partitions": elected}
    assigned = [{"partition_index": 0, "replicas": [1, 2, 3]}] * TIMES
    reassigned = [{"name": "wide-a", "partitions": assigned}]
    yield "AlterPartitionReassignments: one partition", 0, {"topics": reassigned}
    entity = [{"entity_type": "user", "entity_name": "x"}]
    yield "AlterClientQuotas", 1, {"entries": [{"entity": entity}] * TIMES}
    yield "DescribeUserScramCredentials", 0, {"users": named}
    yield "AlterUserScramCredentials", 0, {"deletions": [{"name": name, "mechanism": 1} for name in names]}
    yield "DescribeQuorum", 2, {"topics": [{"topic_name": "__cluster_metadata", "partitions": one}]}
    feature = {"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}
    yield "UpdateFeatures", 1, {"feature_updates": [feature] * TIMES}
    yield "DescribeProducers: all partitions", 0, {"topics": prepared.numbers(numbers="partition_indexes")[:2]}
    yield "DescribeTransactions", 0, {"transactional_ids": names}
    pattern = "(?i)" + "[\x00-\uffff]" * 200
    yield "ListTransactions: an expression", 2, {"state_filters": names, "transactional_id_pattern": pattern}
    yield "ConsumerGroupHeartbeat: many names", 1, _member("others", "m", *names)
    owned = [{"topic_id": id_.hex(), "partitions": [*range(count)]} for id_, count in prepared.topics.values()]
    owner = {"group_id": "consumers", "member_id": "member-1", "member_epoch": 1, "topic_partitions": owned}
    yield "ConsumerGroupHeartbeat: owns everything", 1, owner
    yield "ListConfigResources", 1, {}


def native_requests(prepared: Prepared) -> Iterator[tuple[str, dict[str, Any]]]:
    """A title, and the header of a request."""
    every = ({"topic": name, "partition": at} for name, (_, count) in prepared.topics.items() for at in range(count))
    each = list(islice(every, ITEMS_MAX))
    one = {"topic": "wide-a", "partition": 0}
    names = [f"n{number}" for number in range(ITEMS_MAX)]
    yield "fetch: all partitions", {"api": "fetch", "partitions": [p | {"offset": 0} for p in each], "max_wait_ms": 0}
    yield "fetch: one", {"api": "fetch", "partitions": [one | {"offset": 0}] * ITEMS_MAX, "max_wait_ms": 0}
    yield "fetch: waits", {"api": "fetch", "partitions": [p | {"offset": 0} for p in each], "max_wait_ms": 50}
    yield "offsets: all partitions", {"api": "offsets", "partitions": each}
    yield "offsets: by timestamp", {"api": "offsets", "partitions": [p | {"timestamp": 0} for p in each]}
    yield "offsets: one topic", {"api": "offsets", "partitions": [{"topic": "wide-a"}] * ITEMS_MAX}
    yield "topics: unknown names", {"api": "topics", "names": names}
    yield "topics: one name", {"api": "topics", "names": ["wide-a"] * ITEMS_MAX}
    yield "topics: all with configuration", {"api": "topics", "limit": ITEMS_MAX, "config": True}
    yield "truncate: all partitions", {"api": "truncate", "partitions": [p | {"offset": 0} for p in each]}
    yield "truncate: one", {"api": "truncate", "partitions": [one | {"offset": 0}] * ITEMS_MAX}
    yield "flush: all partitions", {"api": "flush", "partitions": each}
    yield "append: nothing", {"api": "append", "partitions": [p | {"size": 0} for p in each], "ack": "os"}
    config = {f"k{number}": "1" for number in range(ITEMS_MAX)}
    yield "create_topic: many keys", {"api": "create_topic", "topic": "x", "partitions": 1, "config": config}
    yield "alter_topic: many keys", {"api": "alter_topic", "topic": "wide-a", "config": config}
    yield "alter_topic: one key", {"api": "alter_topic", "topic": "wide-a", "reset": ["retention.ms"] * ITEMS_MAX}
    yield "explain", {"api": "explain", **one, "timestamp": 10**12}
    yield "explain_segments", {"api": "explain_segments", **one, "limit": ITEMS_MAX}
    yield "metrics", {"api": "metrics"}
    committed = [p | {"offset": 0} for p in each]
    yield "commit_offsets: all partitions", {"api": "commit_offsets", "group": "offsets", "offsets": committed}
    yield "committed_offsets: all", {"api": "committed_offsets", "group": "offsets"}
    yield "committed_offsets: one", {"api": "committed_offsets", "group": "offsets", "partitions": [one] * ITEMS_MAX}
    yield "list_groups", {"api": "list_groups"}
    yield "describe_group: consumer", {"api": "describe_group", "group": "consumers"}
    yield "describe_group: classic", {"api": "describe_group", "group": "group-000"}
    yield "delete_groups: unknown", {"api": "delete_groups", "groups": names}
    yield "delete_offsets: one", {"api": "delete_offsets", "group": "more-offsets", "partitions": [one] * ITEMS_MAX}
    leaving = [{"member_id": name} for name in names]
    yield "leave_group: unknown", {"api": "leave_group", "group": "group-000", "members": leaving}


def costs(prepared: Prepared) -> Iterator[Cost]:
    """Ask everything, one request after the other."""
    meter = hostile_peer.Peer(prepared.running.port)
    peer = Peer(prepared.running.kafka_port)
    meter.ask({"api": "metrics"})

    def cost(title: str, size: int) -> Cost:
        metrics = meter.ask({"api": "metrics"})[0]["metrics"]
        return Cost(title, metrics["loop_busy_seconds"] * 1000, metrics["collection_seconds"] * 1000, size)

    for title, version, fields in kafka_requests(prepared):
        largest = request(title.partition(":")[0], fields)
        assert version in APIS[largest.API_KEY].versions, title
        before = peer.received
        asked = peer.ask(largest, version)
        yield cost(f"{title} v{version}" + ("" if asked else " (closed)"), peer.received - before)
    for title, header in native_requests(prepared):
        before = meter.received
        meter.answer(encode_frame({"id": 1, "v": 1} | header))
        yield cost(title, meter.received - before)
    peer.close()
    meter.close()


def main() -> None:
    """Print a line for each request."""
    with tempfile.TemporaryDirectory(prefix="seglog-largest-") as folder:
        under = [sys.executable, "-m", "tests.process.faults.metered_daemon"]
        with daemon(Path(folder) / "data", *KAFKA, under=under) as running:
            prepared = prepare(running, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
            for found in costs(prepared):
                print(
                    f"{found.turn_ms:8.1f} ms {found.collection_ms:8.1f} ms {found.response_bytes:11,} B  {found.title}"
                )
            status = Path(f"/proc/{running.process.pid}/status").read_text()  # type: ignore[union-attr]
            print(status.partition("VmHWM:")[2].split()[0], "KiB at most")


if __name__ == "__main__":
    main()
