"""The matrix of permissions: every api, asked by principals of ``kafka_access_rules``, and what a Kafka answers each.

``python -m tests.interop.kafka_access_cases`` asks a real Kafka and writes ``kafka_access_answers.json``: by request,
what is answered, and to whom. Of an answer those fields are kept that tell what somebody may do or see, and no zeros.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.kafka import Request, messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.interop.kafka_access_rules import DESCRIBED, EVERYBODY, PRINCIPALS, WITHOUT_CLUSTER, Rule
from tests.interop.kafka_cases import UNKNOWN_ID, Fields, create_topics, replaced, rewrite, topic_ids
from tests.interop.kafka_group_cases import await_coordinator
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.interop.peer import Kafka, kafka_script
from tests.processes import free_port, wait_until

ANSWERS: Final = Path(__file__).with_name("kafka_access_answers.json")

ADMIN: Final = "admin"
ANONYMOUS: Final = "ANONYMOUS"

SETTINGS: Final = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    f"super.users=User:{ADMIN}",
)
"""Of whoever is asked."""

OPEN_TO_ALL: Final = "open to all: "
"""Before the titles of requests to a broker that allows what no rule is about."""

RUNS: Final[tuple[tuple[str, Mapping[str, list[Rule]], tuple[str, ...]], ...]] = (
    ("", PRINCIPALS, SETTINGS),
    (OPEN_TO_ALL, WITHOUT_CLUSTER, (*SETTINGS, "allow.everyone.if.no.acl.found=true")),
)
"""Brokers that are asked: what stands before titles, who asks, settings."""

PRESENT: Final = ("orders", "bills", "public", "doomed", "doomed-too")
"""Topics; those that there are not: ``nope``, ``fresh`` and ``fresh-too``, and ``auto`` and ``auto-too``."""

_MEMBER: Final = "AAAAAAAAAAAAAAAAAAAAAw"

NO_PRODUCER: Final = {"producer_id": 999_999, "producer_epoch": 0}

NOT_ASKED: Final = ("SaslHandshake", "SaslAuthenticate", "ApiVersions")
"""Apis that are served to everybody, most of them before it is known who asks."""


def password(name: str) -> str:
    """The password of a principal that logs in."""
    return f"secret-of-{name}"


# --- Requests ---------------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A request in several versions, each with those of the fields that it has, and what is done after an answer."""

    title: str
    api: str
    versions: tuple[int, ...]
    fields: Fields
    after: Callable[["Stage", Plain], None] | None = None


def _named(field: str, *names: str, **more: Plain) -> list[Plain]:
    """Structs with a name each; where a version has ids, those of the topics that are named so."""
    return [{field: name, "topic_id": f"{{id of {name}}}", **more} for name in names]


def _partitions(field: str, names: Collection[str] = ("orders", "bills", "public", "nope"), **more: Plain) -> Plain:
    """Partition 0 of topics, with more fields of the partition."""
    return _named(field, *names, partitions=[more])


def _filter(name: str | None, principal: str | None) -> Fields:
    rules = {"resource_type_filter": 2, "resource_name_filter": name, "pattern_type_filter": 3, "host_filter": None}
    return {**rules, "principal_filter": principal, "operation": 1, "permission_type": 1}


def _configs(kind: int, *names: str, key: str, value: str, versions: tuple[int, ...]) -> Iterator[Asked]:
    """A setting of resources, read and changed."""
    title = f"of {names[0]}"
    described = [{"resource_type": kind, "resource_name": name, "configuration_keys": [key]} for name in names]
    yield Asked(title, "DescribeConfigs", versions, {"resources": described})
    change = {"name": key, "value": value, "config_operation": 0}
    changed = [{"resource_type": kind, "resource_name": name, "configs": [change]} for name in names]
    for api, last in (("AlterConfigs", 2), ("IncrementalAlterConfigs", 1)):
        yield Asked(title, api, (0, last), {"resources": changed, "validate_only": True})


def _data() -> Iterator[Asked]:
    """Reading and writing."""
    records = encode_batch([(1_700_000_000_000, b"k", b"v", ())]).hex()
    produced = [{**topic, "partition_data": [{"index": 0, "records": records}]} for topic in
                _named("name", "orders", "bills", "nope")]  # fmt: skip
    yield Asked("two topics", "Produce", (3, 12, 13), {"acks": 1, "timeout_ms": 1000, "topic_data": produced})
    for name in ("orders", "bills"):
        data = [topic for topic in produced if topic["name"] == name]
        yield Asked(f"{name} without acknowledgement", "Produce", (3, 13), {"acks": 0, "topic_data": data})
    transactional = encode_batch(
        [(1_700_000_000_000, b"k", b"v", ())],
        producer_id=999_999,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    ).hex()
    for id_ in ("tx", "other-tx"):
        data = [{**topic, "partition_data": [{"index": 0, "records": transactional}]} for topic in
                _named("name", "orders", "bills")]  # fmt: skip
        fields = {"transactional_id": id_, "acks": -1, "timeout_ms": 1000, "topic_data": data}
        yield Asked(f"in {id_}", "Produce", (3, 13), fields)
    fetched = _partitions("topic", partition_max_bytes=1000, fetch_offset=0)
    limits = {"max_bytes": 10_000, "session_epoch": -1, "topics": fetched}
    yield Asked("four topics", "Fetch", (4, 12, 13, 18), limits)
    follower = {"replica_id": 1, "replica_state": {"replica_id": 1, "replica_epoch": -1}}
    yield Asked("as a follower", "Fetch", (4, 18), {**limits, **follower})
    yield Asked("four topics", "ListOffsets", (1, 11), {"replica_id": -1, "topics": _partitions("name", timestamp=-1)})
    yield Asked("four topics", "OffsetForLeaderEpoch", (2, 4), {"topics": _partitions("topic", leader_epoch=0)})
    yield Asked("four topics", "DeleteRecords", (0, 2), {"timeout_ms": 1000, "topics": _partitions("name", offset=0)})
    yield Asked("of nobody", "InitProducerId", (0, 5), {"transactional_id": None, "transaction_timeout_ms": 60_000})
    for id_ in ("tx", "other-tx"):
        timeout = {"transactional_id": id_, "transaction_timeout_ms": 60_000}
        yield Asked(f"of {id_}", "InitProducerId", (0, 5), timeout)
    yield Asked("four topics", "DescribeProducers", (0,),
                {"topics": [{"name": name, "partition_indexes": [0]} for name in
                            ("orders", "bills", "public", "nope")]})  # fmt: skip


def _transactions() -> Iterator[Asked]:
    for id_ in ("tx", "other-tx"):
        added = [{"name": name, "partitions": [0]} for name in ("orders", "bills")]
        of_id = {"transactional_id": id_, **NO_PRODUCER}
        early = {f"v3_and_below_{name}": value for name, value in {**of_id, "topics": added}.items()}
        yield Asked(f"{id_}, two topics", "AddPartitionsToTxn", (0, 3), early)
        yield Asked(f"{id_}, ruled topics", "AddPartitionsToTxn", (3,), {**early, "v3_and_below_topics": added[:1]})
        for group in ("workers", "others"):
            yield Asked(f"{id_} and {group}", "AddOffsetsToTxn", (0, 4), {**of_id, "group_id": group})
            topics = _partitions("name", ("orders", "bills"), committed_offset=1)
            yield Asked(
                f"{id_} and {group}", "TxnOffsetCommit", (0, 5, 6), {**of_id, "group_id": group, "topics": topics}
            )
        yield Asked(id_, "EndTxn", (0, 5), {**of_id, "committed": True})
    named = [{"name": name, "partition_indexes": [0]} for name in ("orders", "nope")]
    yield Asked("two topics", "WriteTxnMarkers", (1, 2), {"markers": [{**NO_PRODUCER, "topics": named}]})
    ids = ["tx-open", "other-tx", "no-tx"]
    yield Asked("three", "DescribeTransactions", (0,), {"transactional_ids": ids})
    yield Asked("all", "ListTransactions", (0, 2), {})


def _group_members() -> Iterator[Asked]:
    stranger = {"member_id": "nobody", "generation_id": 1}
    for group in ("workers", "others", "public"):
        protocols = [{"name": "range", "metadata": ""}]
        member = {"group_id": group, **stranger}
        joins = {"session_timeout_ms": 30_000, "protocol_type": "consumer", "protocols": protocols}
        yield Asked(group, "JoinGroup", (0, 9), {"group_id": group, "member_id": "nobody", **joins})
        yield Asked(group, "SyncGroup", (0, 5), {**member, "protocol_type": "consumer", "protocol_name": "range"})
        yield Asked(group, "Heartbeat", (0, 4), member)
        left = {"group_id": group, "member_id": "nobody", "members": [{"member_id": "nobody"}]}
        yield Asked(group, "LeaveGroup", (0, 5), left)
    for group in ("workers-848", "others-848"):
        for topics in (["orders"], ["orders", "bills"], ["public", "nope"], None):
            beat = {"group_id": group, "member_id": "nobody", "member_epoch": 5, "subscribed_topic_names": topics}
            title = f"{group} reads {' and '.join(topics or ['on'])}"
            yield Asked(title, "ConsumerGroupHeartbeat", (0, 1), beat)
            share = {**beat, "group_id": group.replace("848", "share")}
            yield Asked(title, "ShareGroupHeartbeat", (1,), share)


def _group_offsets() -> Iterator[Asked]:
    for group in ("workers", "others"):
        topics = _partitions("name", committed_offset=1)
        yield Asked(group, "OffsetCommit", (2, 9, 10), {"group_id": group, "topics": topics})
    named = _named("name", "orders", "bills", "public", "nope", partition_indexes=[0])
    for group in ("workers", "others"):
        yield Asked(f"{group}, four topics", "OffsetFetch", (1, 7), {"group_id": group, "topics": named})
        yield Asked(f"{group}, all topics", "OffsetFetch", (2, 7), {"group_id": group, "topics": None})
    for title, topics in (("four topics", named), ("all topics", None)):
        groups = [{"group_id": group, "topics": topics} for group in ("workers", "others")]
        yield Asked(f"two groups, {title}", "OffsetFetch", (8, 9, 10), {"groups": groups})
    for group in ("workers", "others"):
        deleted: Plain = [{"name": name, "partitions": [{}]} for name in ("orders", "bills", "nope")]
        yield Asked(group, "OffsetDelete", (0,), {"group_id": group, "topics": deleted})


def _group_administration() -> Iterator[Asked]:
    operations = {"include_authorized_operations": True}
    two = ["workers", "others"]
    yield Asked("two", "DescribeGroups", (0, 6), {"groups": two, **operations})
    yield Asked("all", "ListGroups", (0, 5), {})
    yield Asked("two", "DeleteGroups", (0, 3), {"groups_names": ["workers-gone", "others-gone"]})
    ids = {"group_ids": ["workers-848", "others-848", "no-848"], **operations}
    yield Asked("three", "ConsumerGroupDescribe", (0, 1), ids)
    ids = {"group_ids": ["workers-share", "others-share", "no-share"], **operations}
    yield Asked("three", "ShareGroupDescribe", (1,), ids)
    keys = {"key": two[0], "key_type": 0, "coordinator_keys": two}
    yield Asked("of groups", "FindCoordinator", (0, 3, 6), keys)
    keys = {"key": "tx", "key_type": 1, "coordinator_keys": ["tx", "other-tx"]}
    yield Asked("of transactions", "FindCoordinator", (1, 6), keys)
    keys = {"key_type": 2, "coordinator_keys": ["workers-share:AAAAAAAAAAAAAAAAAAAAAQ:0"]}
    yield Asked("of share partitions", "FindCoordinator", (6,), keys)


def _share_groups() -> Iterator[Asked]:
    member = "AAAAAAAAAAAAAAAAAAAAAg"
    for group in ("workers-share", "others-share"):
        limits = {"max_bytes": 10_000, "max_records": 10, "batch_size": 10, "max_wait_ms": 0}
        topics = _partitions("name", ("orders", "bills"))  # an unknown id is an internal error where rules are asked
        batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
        acknowledged = [{**topic, "partitions": [{"acknowledgement_batches": [batch]}]} for topic in topics]
        for version in (1, 2):
            session = {"group_id": group, "member_id": member}
            opening = {**session, "share_session_epoch": 0, **limits, "topics": topics}
            yield Asked(group, "ShareFetch", (version,), opening)
            within = {**session, "share_session_epoch": 1, "topics": acknowledged}
            yield Asked(group, "ShareAcknowledge", (version,), within)
            yield Asked(f"{group}, the last", "ShareAcknowledge", (version,), {**within, "share_session_epoch": -1})
    named = _named("topic_name", "orders", "bills", "nope", partitions=[0])
    for title, of in (("three topics", named), ("all topics", None)):
        groups = [{"group_id": group, "topics": of} for group in ("workers-share", "others-share")]
        yield Asked(f"two groups, {title}", "DescribeShareGroupOffsets", (0, 1), {"groups": groups})
    for group in ("workers-share-empty", "others-share-empty"):
        starts = [{"topic_name": name, "partitions": [{"start_offset": 0}]} for name in ("orders", "bills", "nope")]
        yield Asked(group, "AlterShareGroupOffsets", (0,), {"group_id": group, "topics": starts})
        named = [{"topic_name": name} for name in ("orders", "bills", "nope")]
        yield Asked(group, "DeleteShareGroupOffsets", (0,), {"group_id": group, "topics": named})


def _topics() -> Iterator[Asked]:
    both = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    only, four = {"allow_auto_topic_creation": False}, ("orders", "bills", "public", "nope")
    named = [{"name": name} for name in four]
    yield Asked("of three", "Metadata", (0,), {"topics": named[:3]})
    yield Asked("of four", "Metadata", (4, 8, 13), {"topics": named, **only})
    yield Asked("of four with operations", "Metadata", (8, 10, 13), {"topics": named, **only, **both})
    by_id = [{"topic_id": f"{{id of {name}}}", "name": None} for name in four]
    yield Asked("by id", "Metadata", (12, 13), {"topics": by_id, **only, **both})
    yield Asked("of all", "Metadata", (0,), {"topics": []})
    yield Asked("of all", "Metadata", (1, 13), {"topics": None, **both})
    made = {"topics": [{"name": "auto"}, {"name": "auto-too"}], "allow_auto_topic_creation": True}
    yield Asked("that makes them", "Metadata", (4, 13), made, Stage.after_creation)
    yield Asked("of four", "DescribeTopicPartitions", (0,), {"topics": named})
    yield Asked("of all", "DescribeTopicPartitions", (0,), {"topics": []})
    created = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in
               ("fresh", "fresh-too", "orders", "bills")]  # fmt: skip
    yield Asked("validated", "CreateTopics", (2, 7), {"topics": created, "validate_only": True, "timeout_ms": 9000})
    grown = [{"name": name, "count": 2, "assignments": None} for name in four]
    yield Asked("validated", "CreatePartitions", (0, 3), {"topics": grown, "validate_only": True, "timeout_ms": 9000})
    names = ["doomed", "doomed-too", "nope"]
    deleted = {"timeout_ms": 9000, "topic_names": names, "topics": [{"name": name} for name in names]}
    yield Asked("by name", "DeleteTopics", (1, 5, 6), deleted, Stage.after_deletion)
    ids = [{"topic_id": f"{{id of {name}}}"} for name in ("doomed", "doomed-too", "nope")]
    yield Asked("by id", "DeleteTopics", (6,), {"topics": ids, "timeout_ms": 9000}, Stage.after_deletion)


def _cluster() -> Iterator[Asked]:
    yield from _configs(2, "orders", "bills", "nope", key="retention.ms", value="700000", versions=(1, 4))
    yield from _configs(4, "1", key="log.retention.ms", value="700000", versions=(1, 4))
    yield from _configs(
        32, "workers-848", "others-848", key="consumer.session.timeout.ms", value="45000", versions=(1, 4)
    )
    yield Asked("of everything", "ListConfigResources", (0,), {})
    yield Asked("of topics and groups", "ListConfigResources", (1,), {"resource_types": [2, 32]})
    yield Asked("with operations", "DescribeCluster", (0, 2), {"include_cluster_authorized_operations": True})
    yield Asked("of the metadata", "DescribeQuorum", (0, 2),
                {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{}]}]})  # fmt: skip
    updates = [{"feature": "nope", "max_version_level": 1}]
    yield Asked("of one", "UpdateFeatures", (0, 2), {"feature_updates": updates, "validate_only": True})
    yield Asked("of all", "DescribeLogDirs", (1, 5), {"topics": None})
    yield Asked("of three", "DescribeLogDirs", (1, 5),
                {"topics": [{"topic": name, "partitions": [0]} for name in ("orders", "bills", "nope")]})  # fmt: skip
    moved = [{"path": "/nope", "topics": [{"name": name, "partitions": [0]} for name in ("orders", "bills")]}]
    yield Asked("two topics", "AlterReplicaLogDirs", (1, 2), {"dirs": moved})
    elected = [{"topic": name, "partitions": [0]} for name in ("orders", "nope")]
    yield Asked("two topics", "ElectLeaders", (0, 2), {"topic_partitions": elected, "timeout_ms": 9000})
    cancelled = [{"name": name, "partitions": [{"replicas": None}]} for name in ("orders", "nope")]
    yield Asked("two topics", "AlterPartitionReassignments", (0, 1), {"topics": cancelled, "timeout_ms": 9000})
    yield Asked("of all", "ListPartitionReassignments", (0,), {"topics": None, "timeout_ms": 9000})


def _people() -> Iterator[Asked]:
    yield Asked("of one", "DescribeAcls", (1, 3), _filter(None, "User:described"))
    made = {"principal": "User:ghost", **Rule(2, "ghost", 3)._asdict()}
    yield Asked("one", "CreateAcls", (1, 3), {"creations": [made]})
    yield Asked("none that is there", "DeleteAcls", (1, 3), {"filters": [_filter("no-such-topic", "User:no-such")]})
    everyone = {"components": [{"entity_type": "user", "match_type": 0, "match": "ghost"}]}
    yield Asked("of one", "DescribeClientQuotas", (0, 1), everyone)
    entity, limit = [{"entity_type": "user", "entity_name": "ghost"}], {"key": "producer_byte_rate", "value": 1e6}
    altered = {"entries": [{"entity": entity, "ops": [limit]}], "validate_only": True}
    yield Asked("of one", "AlterClientQuotas", (0, 1), altered)
    yield Asked("of one", "DescribeUserScramCredentials", (0,), {"users": [{"name": "ghost"}]})
    yield Asked("of one", "AlterUserScramCredentials", (0,), {"deletions": [{"name": "ghost", "mechanism": 1}]})
    own, owner = {"max_lifetime_ms": -1}, {"owner_principal_type": "User", "owner_principal_name": "owner"}
    yield Asked("of whoever asks", "CreateDelegationToken", (1, 3), own)
    yield Asked("of another", "CreateDelegationToken", (3,), {**own, **owner})
    yield Asked("of one that there is not", "RenewDelegationToken", (1, 2), {"hmac": "00"})
    yield Asked("of one that there is not", "ExpireDelegationToken", (1, 2), {"hmac": "00"})
    owners = [{"principal_type": "User", "principal_name": "owner"}]
    yield Asked("of another", "DescribeDelegationToken", (1, 3), {"owners": owners})


# --- The stage --------------------------------------------------------------------------------------------------------


class Ports(NamedTuple):
    """Where a broker listens: without login, and with PLAIN."""

    plaintext: int
    sasl: int

    def connected(self, name: str) -> Wire:
        """A connection of a principal."""
        return Wire(self.plaintext) if name == ANONYMOUS else Wire(self.sasl, (name, password(name)))


_MEMBERS: Final = (
    ("workers-848", "ConsumerGroupHeartbeat", ["orders"]),
    ("others-848", "ConsumerGroupHeartbeat", ["orders", "bills"]),
    ("workers-share", "ShareGroupHeartbeat", ["orders"]),
    ("others-share", "ShareGroupHeartbeat", ["orders", "bills"]),
)
"""Groups with a member each, which is the administrator's, and what it reads."""

REFUSALS: Final = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
)
"""What somebody is told who may not. Kafka's words for the first have the request in them, with its connection."""


class Stage:
    """What requests are about, which the administrator makes, and makes again where a request has changed it."""

    def __init__(self, ports: Ports, settle: Callable[[], None]) -> None:
        self._admin = ports.connected(ADMIN)
        self._settle = settle
        self._epochs: dict[str, int] = {}
        self.known: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.__exit__()

    def ask(self, api: str, version: int, **fields: Plain) -> Plain:
        """An answer to the administrator."""
        return plain(self._admin.ask(request(api, replaced(fields, self.known)), version))

    def build(self, principals: Mapping[str, list[Rule]]) -> None:
        """Make topics, groups, transactions and rules."""
        self._keep_topics()
        await_coordinator(self._admin)
        for id_ in ("tx", "other-tx", "tx-open"):
            wait_until(partial(self._begin, id_), f"the producer of {id_}")
        self._open_transaction()
        for group, api, topics in _MEMBERS:
            self._beat(group, api, topics)
        for group in ("workers-share-empty", "others-share-empty"):
            self._beat(group, "ShareGroupHeartbeat", ["orders", "bills"])
            wait_until(partial(self._has_assignment, group), f"the share partitions of {group}")
            self.ask("ShareGroupHeartbeat", 1, group_id=group, member_id=_MEMBER, member_epoch=-1)
        self._make_rules(principals)
        self._settle()

    def _keep_topics(self) -> None:
        """Make what should be there, delete what should not, and learn ids."""

        def there() -> dict[str, str]:
            return {name: id_ for name, id_ in topic_ids(self._admin).items() if not name.startswith("__")}

        before = there()
        made = {"num_partitions": 1, "replication_factor": 1, "configs": [{"name": "retention.ms", "value": "-1"}]}
        missing = [{"name": name, **made} for name in PRESENT if name not in before]
        if missing:
            create_topics(self._admin, missing)
        for name in before.keys() - set(PRESENT):
            self.ask("DeleteTopics", 6, topics=[{"name": name}], timeout_ms=30_000)
        wait_until(lambda: there().keys() == set(PRESENT), "topics")
        ids = there()
        self.known = {f"{{id of {name}}}": ids.get(name, UNKNOWN_ID) for name in (*PRESENT, "nope")}

    def _begin(self, id_: str) -> bool:
        self.ask("FindCoordinator", 6, key_type=1, coordinator_keys=[id_])  # which has Kafka make a topic
        self._producer = self.ask("InitProducerId", 5, transactional_id=id_, transaction_timeout_ms=900_000)
        return not self._producer["error_code"]

    def _open_transaction(self) -> None:
        producer = {f"v3_and_below_{name}": self._producer[name] for name in ("producer_id", "producer_epoch")}
        topics = [{"name": name, "partitions": [0]} for name in ("orders", "bills")]
        added = self.ask(
            "AddPartitionsToTxn", 3, v3_and_below_transactional_id="tx-open", v3_and_below_topics=topics, **producer
        )
        assert "'partition_error_code': 0" in str(added), added

    def _beat(self, group: str, api: str, topics: Plain = None) -> Plain:
        epoch = self._epochs.get(group, 0)
        more = (
            {"rebalance_timeout_ms": 60_000, "topic_partitions": []} if api.startswith("Consumer") and not epoch else {}
        )
        named = {} if epoch else {"subscribed_topic_names": topics}
        answer = self.ask(api, 1, group_id=group, member_id=_MEMBER, member_epoch=epoch, **named, **more)
        assert not answer["error_code"], answer
        self._epochs[group] = answer["member_epoch"]
        return answer

    def _has_assignment(self, group: str) -> bool:
        return self._beat(group, "ShareGroupHeartbeat")["assignment"] is not None

    def _make_rules(self, principals: Mapping[str, list[Rule]]) -> None:
        everybody = {"*": EVERYBODY, "described": [DESCRIBED]}
        total = 0
        for name, rules in {**principals, **everybody}.items():
            creations = [{"principal": f"User:{name}", **rule._asdict()} for rule in rules]
            made = self.ask("CreateAcls", 3, creations=creations)
            assert not any(result["error_code"] for result in made["results"]), made
            total += len(set(rules))
        every = {**_filter(None, None), "resource_type_filter": 1, "pattern_type_filter": 1}
        wait_until(lambda: _count(self.ask("DescribeAcls", 3, **every)) == total, "rules")

    def prepare(self) -> None:
        """Put back what requests of one principal have changed, and keep members alive."""
        for group, api, _ in _MEMBERS:
            self._beat(group, api)
        for group in ("workers", "others"):
            self.ask("OffsetCommit", 9, group_id=group, topics=_partitions("name", PRESENT[:3], committed_offset=1))
        for group in ("workers-share-empty", "others-share-empty"):
            starts = [{"topic_name": name, "partitions": [{"start_offset": 0}]} for name in ("orders", "bills")]
            altered = self.ask("AlterShareGroupOffsets", 0, group_id=group, topics=starts)
            assert not altered["error_code"], altered

    def after_creation(self, answer: Plain) -> None:
        """Wait for topics that a request makes when it is answered, and delete them."""
        refused = {topic["name"] for topic in answer["topics"] if topic["error_code"] in REFUSALS}
        wanted = {"auto", "auto-too"} - refused
        if wanted:
            wait_until(lambda: wanted <= topic_ids(self._admin).keys(), "topics that were asked for")
            self._keep_topics()

    def after_deletion(self, answer: Plain) -> None:
        """Make topics again that were deleted."""
        gone = {self.known[f"{{id of {topic['name']}}}"] for topic in answer["responses"] if not topic["error_code"]}
        if gone:
            wait_until(lambda: not gone & set(topic_ids(self._admin).values()), "the end of topics")
            self._keep_topics()


def _count(answer: Plain) -> int:
    return sum(len(resource["acls"]) for resource in answer["resources"])


# --- Answers ----------------------------------------------------------------------------------------------------------

_NAMES: Final = (
    "name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "resource_type", "user", "key",
    "num_partitions", "entity_name",
)  # fmt: skip
"""Fields that say what somebody may see."""

_ABSENT: Final = (
    ("num_partitions", -1),
    *((f"{of}authorized_operations", -(2**31)) for of in ("", "topic_", "cluster_")),
)
"""What stands in fields where nobody is told."""


def kept_of(answer: Plain, names: Mapping[str, str]) -> Plain:
    """An answer without what every broker has of its own; ``names`` of topics by their ids.

    Words are kept where they are about permissions; topics that a broker keeps for itself are left out.
    """
    match answer:
        case dict():
            has_words = answer.get("error_code") in REFUSALS[1:]
            found = {
                field: kept_of(value, names)
                for field, value in answer.items()
                if _is_kept(field, value) or (has_words and field == "error_message")
            }
            if len(found.get("configs", ())) > 1:
                found["configs"] = "several"
            topic = names.get(answer.get("topic_id", ""))
            if topic is not None and topic not in found.values():
                found["id_of"] = topic
            if any(isinstance(value, str) and value.startswith("__") for value in found.values()):
                return {}
            return {field: value for field, value in found.items() if value and (field, value) not in _ABSENT}
        case list():
            return sorted((item for item in (kept_of(item, names) for item in answer) if item), key=json.dumps)
    return answer


def _is_kept(field: str, value: Plain) -> bool:
    if field == "listeners":
        return False
    return (
        field in _NAMES
        or field.endswith(("error_code", "authorized_operations"))
        or isinstance(value, dict)
        or (isinstance(value, list) and any(isinstance(item, dict) for item in value))
    )


ASKED: Final = tuple(
    asked
    for asks in (
        _topics, _data, _transactions, _group_members, _group_offsets, _group_administration, _share_groups, _cluster,
        _people,
    )
    for asked in asks()
)  # fmt: skip
"""Everything that everybody asks, in this order."""


def answers(
    ports: Ports,
    principals: Mapping[str, list[Rule]],
    apis: Collection[str] = (),
    settle: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, Plain]]:
    """The answers of a new broker to the requests of ``apis``, or to all of them: by request and principal.

    ``settle`` waits for what the making of topics and rules has set off.
    """
    found: dict[str, dict[str, Plain]] = {}
    with Stage(ports, settle) as stage:
        stage.build(principals)
        for principal in principals:
            stage.prepare()
            with ports.connected(principal) as wire:
                for asked in ASKED:
                    if apis and asked.api not in apis:
                        continue
                    for version in asked.versions:
                        answer = _answer(wire, request(asked.api, replaced(asked.fields, stage.known)), version)
                        names = {id_: name[7:-1] for name, id_ in stage.known.items()}
                        said: Plain = "closed" if answer is None else kept_of(answer, names)
                        if asked.api in _FLOWING and "responses" in said:
                            refused = [topic for topic in said["responses"] if _is_refused(topic)]
                            said = {"responses": refused} if refused else {}
                        found.setdefault(f"{asked.api} v{version}: {asked.title}", {})[principal] = said
                        if asked.after is not None:
                            asked.after(stage, answer)
    return found


_FLOWING: Final = ("ShareFetch", "ShareAcknowledge")
"""Apis of which refusals alone are kept: whether there are records depends on who has them, and for how long."""


def _is_refused(topic: Plain) -> bool:
    return any(partition["error_code"] in REFUSALS for partition in topic.get("partitions", ()))


def _answer(wire: Wire, asked: Request, version: int) -> Plain:
    """The answer, None for a closed connection; for what is not answered, whether the connection stays open."""
    if isinstance(asked, messages.ProduceRequest) and asked.acks == 0:
        wire.tell(asked, version)
        return None if wire.ask(messages.ApiVersionsRequest(), 0) is None else {}
    return plain(wire.ask(asked, version))


def grouped(by_principal: Mapping[str, Plain]) -> list[Plain]:
    """Each answer with who gets it, the most frequent one last, with the number of those who do."""
    groups: dict[str, list[str]] = {}
    for principal, answer in by_principal.items():
        groups.setdefault(json.dumps(answer), []).append(principal)
    *few, most = sorted(groups, key=lambda answer: len(groups[answer]))
    return [*([json.loads(answer), groups[answer]] for answer in few), [json.loads(most), len(groups[most])]]


def ungrouped(groups: list[Plain], principals: Collection[str]) -> dict[str, Plain]:
    """The answer of each of the principals."""
    *few, (most, _) = groups
    named = {principal: answer for answer, those in few for principal in those}
    return {principal: named.get(principal, most) for principal in principals}


def captured(folder: Path) -> dict[str, Any]:
    """What a real Kafka says whose data are below ``folder``."""
    found: dict[str, Any] = {}
    for title, principals, settings in RUNS:
        with kafka_with(folder / f"kafka{len(found)}", *settings) as ports:
            answered = answers(ports, principals, settle=lambda: time.sleep(1))
        found |= {f"{title}{name}": grouped(by_principal) for name, by_principal in answered.items()}
    return found


@contextmanager
def kafka_with(folder: Path, *settings: str) -> Iterator[Ports]:
    """A Kafka with accounts of all principals."""
    kafka = Kafka(kafka_script(), folder)
    ports = Ports(kafka.port, free_port())
    with kafka.running(*kafka_settings(ports, kafka.port + 1), *settings):
        yield ports


def kafka_settings(ports: Ports, controller: int) -> list[str]:
    """What a real Kafka is given: its brokers and its controller log in as the administrator, so nobody else is one."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    names = {*PRINCIPALS, *WITHOUT_CLUSTER} - {ANONYMOUS}
    accounts = " ".join(f'user_{name}="{password(name)}"' for name in sorted(names))
    jaas = f'{module} username="{ADMIN}" password="{password(ADMIN)}" {accounts};'
    listeners = {"PLAINTEXT": ports.plaintext, "SASL": ports.sasl, "CONTROLLER": controller}
    return [
        f"listeners={','.join(f'{name}://127.0.0.1:{port}' for name, port in listeners.items())}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name=SASL",
        "sasl.enabled.mechanisms=PLAIN",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
        "sasl.mechanism.controller.protocol=PLAIN",
        f"listener.name.sasl.plain.sasl.jaas.config={jaas}",
        f"listener.name.controller.plain.sasl.jaas.config={jaas}",
        *(f"{topics}.num.partitions=1" for topics in ("offsets.topic", "transaction.state.log")),
        "share.coordinator.state.topic.num.partitions=1",
    ]


def _shown(groups: list[Plain]) -> str:
    """A line for each answer."""
    return "[\n  " + ",\n  ".join(json.dumps(group) for group in groups) + "\n]"


if __name__ == "__main__":
    rewrite(ANSWERS, captured, _shown)
