"""The largest request of each api, of both wires: one thing named very many times, very many things, or all there are.

``python -m tests.process.faults.largest_requests [PARTITIONS]`` asks a daemon each of them and prints what it cost.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import seglog
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.listeners.kafka.apis import APIS
from seglog_protocol.frames import encode_frame
from seglog_protocol.kafka import messages as m
from seglog_protocol.kafka import write_request
from seglog_protocol.kafka.structs import Request
from seglog_protocol.messages.base import ITEMS_MAX
from tests.process.faults.asking import Asking
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

    @property
    def wide(self) -> list[tuple[str, range]]:
        return [(name, range(count)) for name, (_, count) in self.topics.items()]


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
        cls = m.OffsetCommitRequest
        asked = [
            cls.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    cls.OffsetCommitRequestPartition(partition_index=number, committed_metadata="x" * 20)
                    for number in numbers
                ],
            )
            for name, numbers in prepared.wide
        ]
        _asked(peer, cls(group_id=group, topics=asked), 8)
    for number in range(GROUPS):
        _join(running, f"group-{number:03}", MEMBERS if number == 0 else 1)
    for number in range(MEMBERS):
        beat = m.ConsumerGroupHeartbeatRequest(
            group_id="consumers",
            member_id=f"member-{number}",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=list(prepared.topics),
            topic_partitions=[],
        )
        [told] = peer.ask(beat, 1)
        assert isinstance(told, m.ConsumerGroupHeartbeatResponse)
        assert not told.error_code, told
    peer.close()
    return prepared


def _asked(peer: Peer, request: Request, version: int) -> Any:
    [told] = peer.ask(request, version)
    return told


def _join(running: Daemon, group: str, members: int) -> None:
    """Members of the classic protocol, with much to say of themselves."""
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(METADATA))
    peers = [Peer(running.kafka_port) for _ in range(members)]
    request = m.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        protocol_type="x",
        protocols=[protocol],
    )
    ids = [_asked(peer, request, 4).member_id for peer in peers]
    for peer, member_id in zip(peers, ids, strict=True):
        request.member_id = member_id
        peer.send(b"".join(write_request(1, "peer", request, 4)))
    joined: list[Any] = [peer.wait_for(1)[0] for peer in peers]
    sync = m.SyncGroupRequest(group_id=group, generation_id=joined[0].generation_id)
    for peer, told in zip(peers, joined, strict=True):
        sync.member_id = told.member_id
        if told.leader == told.member_id:
            sync.assignments = [
                m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=id_, assignment=b"x") for id_ in ids
            ]
        else:
            sync.assignments = []
        peer.send(b"".join(write_request(1, "peer", sync, 3)))
    for peer in peers:
        peer.wait_for(1)
        peer.close()


# --- Kafka's wire -----------------------------------------------------------------------------------------------------


def kafka_requests(prepared: Prepared) -> Iterator[tuple[str, Request, int]]:
    """A title, the request, its version."""
    names = [f"n{number}" for number in range(TIMES)]
    many = range(TIMES)
    wide, ids = prepared.wide, {name: id_ for name, (id_, _) in prepared.topics.items()}

    def by_topic(kind: Any, item: Callable[[int], Any], name: str = "name", items: str = "partitions") -> list[Any]:
        return [kind(**{name: topic, items: [item(number) for number in numbers]}) for topic, numbers in wide]

    fetch = m.FetchRequest
    yield (
        "Fetch: all partitions",
        fetch(
            max_wait_ms=0,
            max_bytes=1 << 20,
            topics=by_topic(
                fetch.FetchTopic, lambda n: fetch.FetchPartition(partition=n, partition_max_bytes=1 << 20), "topic"
            ),
        ),
        12,
    )
    yield (
        "Fetch: unknown topics",
        fetch(
            topics=[
                fetch.FetchTopic(topic=name, partitions=[fetch.FetchPartition(partition=0)]) for name in names[:10_000]
            ]
        ),
        12,
    )
    lists = m.ListOffsetsRequest
    for title, moment in (("ends", -1), ("largest timestamps", -3), ("by timestamp", 5)):
        place = partial(lists.ListOffsetsPartition, timestamp=moment)
        yield (
            f"ListOffsets: {title}",
            lists(
                topics=[
                    lists.ListOffsetsTopic(name=name, partitions=[place(partition_index=number) for number in numbers])
                    for name, numbers in wide
                ]
            ),
            7,
        )
    metadata = m.MetadataRequest
    yield "Metadata: all", metadata(topics=None), 12
    yield "Metadata: one name", metadata(topics=[metadata.MetadataRequestTopic(name="wide-a")] * TIMES), 12
    yield "Metadata: unknown names", metadata(topics=[metadata.MetadataRequestTopic(name=name) for name in names]), 12
    described = m.DescribeTopicPartitionsRequest
    yield (
        "DescribeTopicPartitions: unknown names",
        described(topics=[described.TopicRequest(name=name) for name in names]),
        0,
    )
    yield "DescribeTopicPartitions: all", described(topics=[], response_partition_limit=2_000), 0
    commit = m.OffsetCommitRequest
    yield (
        "OffsetCommit: all partitions",
        commit(
            group_id="offsets",
            topics=by_topic(
                commit.OffsetCommitRequestTopic,
                lambda number: commit.OffsetCommitRequestPartition(partition_index=number, committed_metadata="y"),
            ),
        ),
        8,
    )
    yield (
        "OffsetCommit: one partition",
        commit(
            group_id="offsets",
            topics=[
                commit.OffsetCommitRequestTopic(
                    name="wide-a", partitions=[commit.OffsetCommitRequestPartition(partition_index=0)] * TIMES
                )
            ],
        ),
        8,
    )
    offsets = m.OffsetFetchRequest
    group = offsets.OffsetFetchRequestGroup
    topic = offsets.OffsetFetchRequestTopics
    yield "OffsetFetch: one group", offsets(groups=[group(group_id="offsets", topics=None)] * TIMES), 8
    yield (
        "OffsetFetch: one group's lists of topics",
        offsets(
            groups=[
                group(group_id="offsets", topics=[topic(name="wide-a", partition_indexes=[*range(number)])])
                for number in range(600)
            ]
        ),
        8,
    )
    yield (
        "OffsetFetch: one partition",
        offsets(groups=[group(group_id="offsets", topics=[topic(name="wide-a", partition_indexes=[0] * TIMES)])] * 10),
        8,
    )
    yield "OffsetFetch: unknown groups", offsets(groups=[group(group_id=name, topics=None) for name in names]), 8
    yield "OffsetFetch: version 7", offsets(group_id="offsets", topics=None), 7
    yield "FindCoordinator: groups", m.FindCoordinatorRequest(key_type=0, coordinator_keys=names), 4
    leave = m.LeaveGroupRequest
    yield (
        "LeaveGroup: unknown members",
        leave(group_id="group-000", members=[leave.MemberIdentity(member_id=name) for name in names]),
        4,
    )
    groups = [f"group-{number:03}" for number in range(GROUPS)]
    yield "DescribeGroups: one", m.DescribeGroupsRequest(groups=["group-000"] * TIMES), 5
    yield "DescribeGroups: all", m.DescribeGroupsRequest(groups=[*groups, "consumers", "offsets"]), 5
    yield "DescribeGroups: unknown", m.DescribeGroupsRequest(groups=names), 6
    yield "ConsumerGroupDescribe: one", m.ConsumerGroupDescribeRequest(group_ids=["consumers"] * TIMES), 1
    yield "ConsumerGroupDescribe: unknown", m.ConsumerGroupDescribeRequest(group_ids=names), 1
    yield "ListGroups", m.ListGroupsRequest(), 5
    yield "DeleteGroups: unknown", m.DeleteGroupsRequest(groups_names=names), 2
    forget = m.OffsetDeleteRequest
    yield (
        "OffsetDelete: one partition",
        forget(
            group_id="more-offsets",
            topics=[
                forget.OffsetDeleteRequestTopic(
                    name="wide-a", partitions=[forget.OffsetDeleteRequestPartition(partition_index=0)] * TIMES
                )
            ],
        ),
        0,
    )
    yield (
        "OffsetDelete: all",
        forget(
            group_id="more-offsets",
            topics=by_topic(
                forget.OffsetDeleteRequestTopic, lambda n: forget.OffsetDeleteRequestPartition(partition_index=n)
            ),
        ),
        0,
    )
    create = m.CreateTopicsRequest
    made = [create.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    yield "CreateTopics: validated", create(topics=made[:10_000], validate_only=True), 7
    yield "CreateTopics: too many", create(topics=made), 7
    yield "CreateTopics: one name", create(topics=[made[0]] * 10_000), 7
    delete = m.DeleteTopicsRequest
    yield (
        "DeleteTopics: unknown",
        delete(topics=[delete.DeleteTopicState(name=name) for name in names]),
        6,
    )
    records = m.DeleteRecordsRequest
    yield (
        "DeleteRecords: all partitions",
        records(
            topics=by_topic(
                records.DeleteRecordsTopic, lambda n: records.DeleteRecordsPartition(partition_index=n, offset=0)
            )
        ),
        2,
    )
    epochs = m.OffsetForLeaderEpochRequest
    yield (
        "OffsetForLeaderEpoch: one",
        epochs(
            topics=[
                epochs.OffsetForLeaderTopic(
                    topic="wide-a", partitions=[epochs.OffsetForLeaderPartition(partition=0)] * TIMES
                )
            ]
        ),
        4,
    )
    acls = m.CreateAclsRequest
    yield "CreateAcls", acls(creations=[acls.AclCreation()] * TIMES), 3
    yield "DeleteAcls", m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter()] * TIMES), 3
    configs = m.DescribeConfigsRequest
    resource = configs.DescribeConfigsResource
    every = {"include_synonyms": True, "include_documentation": True}
    yield (
        "DescribeConfigs: one topic",
        configs(
            resources=[resource(resource_type=2, resource_name="wide-a", configuration_keys=None)] * TIMES, **every
        ),
        4,
    )
    yield (
        "DescribeConfigs: one topic, many lists of keys",
        configs(
            resources=[
                resource(resource_type=2, resource_name="wide-a", configuration_keys=["retention.ms", f"x{n}"])
                for n in many[:10_000]
            ],
            **every,
        ),
        4,
    )
    yield (
        "DescribeConfigs: the broker, many lists of keys",
        configs(
            resources=[
                resource(resource_type=4, resource_name="1", configuration_keys=["log.dir", f"x{n}"])
                for n in many[:10_000]
            ],
            **every,
        ),
        4,
    )
    alter = m.IncrementalAlterConfigsRequest
    change = alter.AlterableConfig(name="retention.ms", value="700000000")
    yield (
        "IncrementalAlterConfigs: one topic, validated",
        alter(
            resources=[alter.AlterConfigsResource(resource_type=2, resource_name="wide-a", configs=[change])] * TIMES,
            validate_only=True,
        ),
        1,
    )
    yield (
        "IncrementalAlterConfigs: unknown topics",
        alter(
            resources=[
                alter.AlterConfigsResource(resource_type=2, resource_name=name, configs=[change]) for name in names
            ]
        ),
        1,
    )
    yield (
        "IncrementalAlterConfigs: one topic, many keys",
        alter(
            resources=[
                alter.AlterConfigsResource(
                    resource_type=2,
                    resource_name="wide-a",
                    configs=[alter.AlterableConfig(name=name, value="1") for name in names],
                )
            ]
        ),
        1,
    )
    yield "DescribeLogDirs: all", m.DescribeLogDirsRequest(topics=None), 4
    move = m.AlterReplicaLogDirsRequest
    yield (
        "AlterReplicaLogDirs: all partitions",
        move(
            dirs=[
                move.AlterReplicaLogDir(
                    path="/elsewhere",
                    topics=[
                        move.AlterReplicaLogDirTopic(name=name, partitions=[*numbers]) for name, numbers in wide[:2]
                    ],
                )
            ]
        ),
        2,
    )
    more = m.CreatePartitionsRequest
    yield (
        "CreatePartitions: unknown",
        more(topics=[more.CreatePartitionsTopic(name=name, count=3) for name in names]),
        3,
    )
    elect = m.ElectLeadersRequest
    yield (
        "ElectLeaders: one partition",
        elect(topic_partitions=[elect.TopicPartitions(topic="wide-a", partitions=[0] * TIMES)]),
        2,
    )
    assign = m.AlterPartitionReassignmentsRequest
    yield (
        "AlterPartitionReassignments: one partition",
        assign(
            topics=[
                assign.ReassignableTopic(
                    name="wide-a",
                    partitions=[assign.ReassignablePartition(partition_index=0, replicas=[1, 2, 3])] * TIMES,
                )
            ]
        ),
        0,
    )
    quota = m.AlterClientQuotasRequest
    yield (
        "AlterClientQuotas",
        quota(entries=[quota.EntryData(entity=[quota.EntityData(entity_type="user", entity_name="x")])] * TIMES),
        1,
    )
    users = m.DescribeUserScramCredentialsRequest
    yield "DescribeUserScramCredentials", users(users=[users.UserName(name=name) for name in names]), 0
    scram = m.AlterUserScramCredentialsRequest
    yield (
        "AlterUserScramCredentials",
        scram(deletions=[scram.ScramCredentialDeletion(name=name, mechanism=1) for name in names]),
        0,
    )
    quorum = m.DescribeQuorumRequest
    yield (
        "DescribeQuorum",
        quorum(
            topics=[
                quorum.TopicData(
                    topic_name="__cluster_metadata", partitions=[quorum.PartitionData(partition_index=0)] * TIMES
                )
            ]
        ),
        2,
    )
    feature = m.UpdateFeaturesRequest
    yield (
        "UpdateFeatures",
        feature(
            feature_updates=[
                feature.FeatureUpdateKey(feature="group.version", max_version_level=1, upgrade_type=1) for _ in many
            ]
        ),
        1,
    )
    producers = m.DescribeProducersRequest
    yield (
        "DescribeProducers: all partitions",
        producers(
            topics=[producers.TopicRequest(name=name, partition_indexes=[*numbers]) for name, numbers in wide[:2]]
        ),
        0,
    )
    yield "DescribeTransactions", m.DescribeTransactionsRequest(transactional_ids=names), 0
    yield (
        "ListTransactions: an expression",
        m.ListTransactionsRequest(state_filters=names, transactional_id_pattern="(?i)" + "[\x00-\uffff]" * 200),
        2,
    )
    yield (
        "ConsumerGroupHeartbeat: many names",
        m.ConsumerGroupHeartbeatRequest(
            group_id="others",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=names,
            topic_partitions=[],
        ),
        1,
    )
    owned = m.ConsumerGroupHeartbeatRequest.TopicPartitions
    yield (
        "ConsumerGroupHeartbeat: owns everything",
        m.ConsumerGroupHeartbeatRequest(
            group_id="consumers",
            member_id="member-1",
            member_epoch=1,
            topic_partitions=[owned(topic_id=ids[name], partitions=[*numbers]) for name, numbers in wide],
        ),
        1,
    )
    yield "ListConfigResources", m.ListConfigResourcesRequest(), 1


def native_requests(prepared: Prepared) -> Iterator[tuple[str, dict[str, Any]]]:
    """A title, and the header of a request."""
    places = [(name, number) for name, numbers in prepared.wide for number in numbers][:ITEMS_MAX]
    each = [{"topic": name, "partition": number} for name, number in places]
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
    meter = Asking(prepared.running.port)
    peer = Peer(prepared.running.kafka_port)
    meter.ask({"api": "metrics"})

    def cost(title: str, size: int) -> Cost:
        metrics = meter.ask({"api": "metrics"})[0]["metrics"]
        return Cost(title, metrics["loop_busy_seconds"] * 1000, metrics["collection_seconds"] * 1000, size)

    for title, request, version in kafka_requests(prepared):
        assert version in APIS[request.API_KEY].versions, title
        before = peer.received
        asked = peer.ask(request, version)
        yield cost(f"{title} v{version}" + ("" if asked else " (closed)"), peer.received - before)
    for title, header in native_requests(prepared):
        frame = encode_frame({"id": 1, "v": 1} | header)
        yield cost(title, meter.answer_size(frame))
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
