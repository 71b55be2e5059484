"""Random requests for a real Kafka and for seglog at once, made from the table of messages, mostly of valid values.

What only a run knows has a name in braces, for which each side has its own value: ``{id of plain}``, ``{epoch k0 1}``.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final, NamedTuple

from seglog_broker.coordinators.groups.consumer_protocol import encode_assignment, encode_subscription
from seglog_broker.listeners.kafka.apis import APIS
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.kafka.definitions import Definition, Field, StructDefinition, definition
from tests.interop.kafka_cases import NO_ID, UNKNOWN_ID, Case, Fields
from tests.interop.kafka_wire import Plain

BASE_TIME: Final = 1_700_000_000_000
"""The timestamps (ms) of records count from here."""

KEPT: Final = ("plain", "other", "records", "compacted")
"""Topics that live as long as a run; groups read the first two."""

CHANGING: Final = ("t0", "t1", "t2", "t3")
"""Names of topics that come and go."""

PREPARED: Final[tuple[Fields, ...]] = tuple(
    {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
    for name, partitions, configs in (
        ("plain", 6, []),
        ("other", 6, []),
        ("records", 2, []),
        (
            "compacted",
            1,
            [{"name": "cleanup.policy", "value": "compact"}, {"name": "min.compaction.lag.ms", "value": "99999999"}],
        ),
    )
)

CLASSIC, CONSUMER, EMPTY = ("c0", "c1"), ("k0", "k1"), ("o0", "o1")
"""Groups with members of the one protocol or the other, and groups that only have offsets."""

MEMBERS: Final = 3
"""Of a group, at most."""

MANY: Final = 300_000
"""A time limit (ms) that no run reaches."""


class Ask(NamedTuple):
    """A request on a connection of its own, and the name of the member that sends it, if one does."""

    connection: str
    case: Case
    who: str = ""


Step = tuple[Ask, ...]
"""Requests that are all sent, in this order, before the first answer is read."""


class _Pool(NamedTuple):
    valid: tuple[Any, ...]
    odd: tuple[Any, ...] = ()


_NUMBERS: Final = _Pool((0, 0, 0, 1), (3, 9, -1))
_TOPIC: Final = _Pool((*KEPT, *CHANGING), ("nope", "a b", ""))
_CHANGED: Final = _Pool(CHANGING, ("nope", "a b", ""))
_ID: Final = _Pool(tuple(f"{{id of {name}}}" for name in (*KEPT, *CHANGING)), (UNKNOWN_ID, NO_ID))
_OFFSET: Final = _Pool((0, 1, 2, 5), (-1, -2, 99_999))
_GROUP: Final = _Pool((*CLASSIC, *CONSUMER, *EMPTY), ("none",))
_CONFIG_KEYS: Final = ("retention.bytes", "segment.bytes", "cleanup.policy", "min.insync.replicas", "flush.messages")

_POOLS: Final[Mapping[str, _Pool]] = {
    **dict.fromkeys(("name", "topic", "topic_name"), _TOPIC),
    "topic_id": _ID,
    **dict.fromkeys(("partition", "partition_index", "index", "partition_indexes", "partitions"), _NUMBERS),
    **dict.fromkeys(
        ("replica_id", "replica_epoch", "session_epoch", "log_start_offset", "last_fetched_epoch", "retention_time_ms"),
        _Pool((-1,)),
    ),
    **dict.fromkeys(("replica_state", "cluster_id"), _Pool((None,))),
    "max_wait_ms": _Pool((0,)),
    **dict.fromkeys(("min_bytes", "isolation_level"), _Pool((0, 1))),
    "max_bytes": _Pool((1_000_000, 100)),
    "partition_max_bytes": _Pool((1_000_000, 100, 1)),
    "session_id": _Pool((0,), (12_345,)),
    "forgotten_topics_data": _Pool(([],)),
    "high_watermark": _Pool((9223372036854775807,)),
    "replica_directory_id": _Pool((NO_ID,)),
    "current_leader_epoch": _Pool((-1, -1, 0), (1, -2, 7)),
    "leader_epoch": _Pool((0,), (-1, -2, 1)),
    **dict.fromkeys(("fetch_offset", "offset"), _OFFSET),
    "committed_offset": _Pool((0, 1, 5), (99_999,)),
    "committed_leader_epoch": _Pool((-1, 0)),
    "committed_metadata": _Pool(("", "m"), ("x" * 5_000,)),
    "timestamp": _Pool((-1, -2, BASE_TIME, BASE_TIME + 15, BASE_TIME + 10_000), (-3, -4, -5, -6, -7, 0)),
    "timeout_ms": _Pool((30_000,)),
    "acks": _Pool((-1, 1), (7,)),
    "transactional_id": _Pool((None,), ("",)),
    "transaction_timeout_ms": _Pool((60_000,), (0, -1)),
    "producer_id": _Pool((-1,), (5, 6)),
    "producer_epoch": _Pool((-1,), (0,)),
    **dict.fromkeys(("group_id", "groups", "group_ids", "key", "coordinator_keys"), _GROUP),
    "groups_names": _Pool(EMPTY, (*CLASSIC, *CONSUMER, "none")),
    "key_type": _Pool((0,), (2, 7)),  # not 1, for which a real Kafka makes a topic
    "member_id": _Pool(("",), ("nobody",)),
    "generation_id": _Pool((1, -1), (7, -2)),
    "generation_id_or_member_epoch": _Pool((-1,), (7, 0, -2)),
    "member_epoch": _Pool((-1,), (7, 0)),
    "group_instance_id": _Pool((None,), ("i-nobody",)),
    "replication_factor": _Pool((1, 1, -1), (0, 2, -2)),
    "num_partitions": _Pool((1, 2, 3, -1), (0, -2)),
    "count": _Pool((2, 3, 4), (0, -1)),
    **dict.fromkeys(("broker_ids", "replicas"), _Pool((1,), (2, -1))),
    "resource_type": _Pool((2, 2, 2), (99,)),
    "resource_name": _Pool((*KEPT, *CHANGING), ("nope", "a b")),
    "resource_types": _Pool((2, 4, 32), (99,)),
    "configuration_keys": _Pool(_CONFIG_KEYS, ("nope",)),
    "config_operation": _Pool((0, 1), (2, 3, 9)),
    "election_type": _Pool((0, 1), (7,)),
    "path": _Pool(("{log_dir}",), ("/nowhere", "here")),
    "states_filter": _Pool(("Stable", "Empty"), ("nope",)),
    "types_filter": _Pool(("classic", "consumer"), ("nope",)),
    "transactional_ids": _Pool(("t", "u"), ("",)),
    "transactional_id_pattern": _Pool((None, "a.*"), ("(",)),
    "state_filters": _Pool(("Ongoing", "Empty"), ("nope",)),
    **dict.fromkeys(("producer_id_filters", "resource_type_filter"), _Pool((1, 2))),
    "duration_filter": _Pool((-1, 1_000)),
    "response_partition_limit": _Pool((1, 2, 2_000), (0, -1)),
    "endpoint_type": _Pool((1,), (2, 3)),
    "client_software_name": _Pool(("seglog",), ("", "-a")),
    "client_software_version": _Pool(("1",), ("",)),
    "entity_type": _Pool(("user", "client-id"), ("ip", "nope", "")),
    "match_type": _Pool((0, 1, 2), (9,)),
    "match": _Pool((None, "x")),
    "users": _Pool(("u", "v"), ("",)),
    **dict.fromkeys(("pattern_type_filter", "operation", "permission_type"), _Pool((1, 3))),
    "resource_pattern_type": _Pool((3,)),
    "allow_auto_topic_creation": _Pool((False,)),
}
"""By the name of a field: values that most requests have, and some that are odd."""

_SPECIAL: Final[Mapping[tuple[str, str], _Pool]] = {
    ("CreateTopics", "name"): _CHANGED,
    ("CreateTopics", "assignments"): _Pool(([],)),
    ("CreateTopics", "configs"): _Pool(
        ([], [{"name": "retention.ms", "value": "9999999999999"}], [{"name": "cleanup.policy", "value": "compact"}]),
        ([{"name": "nope", "value": "1"}], [{"name": "retention.ms", "value": "soon"}]),
    ),
    ("CreatePartitions", "name"): _CHANGED,
    ("CreatePartitions", "assignments"): _Pool((None,)),
    ("DeleteTopics", "topic_names"): _CHANGED,
    ("AlterConfigs", "resource_name"): _CHANGED,
    ("IncrementalAlterConfigs", "resource_name"): _CHANGED,
    ("AlterConfigs", "name"): _Pool(_CONFIG_KEYS, ("nope",)),
    ("IncrementalAlterConfigs", "name"): _Pool(_CONFIG_KEYS, ("nope",)),
    ("AlterConfigs", "value"): _Pool(("2000000", "compact", "1"), (None, "soon")),
    ("IncrementalAlterConfigs", "value"): _Pool(("2000000", "compact", "1"), (None, "soon")),
    ("DescribeConfigs", "resource_type"): _Pool((2,), (99,)),
    ("DeleteRecords", "offset"): _Pool((0, 1, 2), (-1, -2, 99_999)),
    ("DescribeQuorum", "topic_name"): _Pool(("__cluster_metadata",), ("plain",)),
    ("AlterClientQuotas", "validate_only"): _Pool((True,)),
    ("AlterClientQuotas", "key"): _Pool(("producer_byte_rate",), ("nope",)),
    ("AlterClientQuotas", "remove"): _Pool((True,)),
    ("AlterClientQuotas", "entity_name"): _Pool(("u",), (None,)),
    ("UpdateFeatures", "feature"): _Pool(("nope",)),
    ("UpdateFeatures", "max_version_level"): _Pool((1,)),
    ("AlterUserScramCredentials", "upsertions"): _Pool(([],)),
    ("AlterUserScramCredentials", "deletions"): _Pool(([], [{"name": "u", "mechanism": 1}])),
    ("DescribeUserScramCredentials", "name"): _Pool(("u", "v"), ("",)),
    ("OffsetCommit", "group_id"): _Pool(EMPTY, (*CLASSIC, *CONSUMER)),
    ("OffsetCommit", "name"): _Pool(("plain", "other"), ("nope", "a b")),
    ("OffsetCommit", "topic_id"): _Pool(("{id of plain}", "{id of other}"), (UNKNOWN_ID,)),
    ("OffsetFetch", "name"): _Pool(("plain", "other", "records"), ("nope", "a b")),
    ("OffsetFetch", "topic_id"): _Pool(("{id of plain}", "{id of other}"), (UNKNOWN_ID,)),
    ("OffsetDelete", "name"): _Pool(("plain", "other"), ("nope", "a b")),
    ("OffsetFetch", "member_id"): _Pool((None,), ("nobody",)),
    ("Heartbeat", "member_id"): _Pool(("nobody",), ("",)),
    ("SyncGroup", "member_id"): _Pool(("nobody",), ("",)),
    ("SyncGroup", "assignments"): _Pool(([],)),
}
"""By api and field, before ``_POOLS``."""

_OWN: Final = frozenset({"JoinGroup", "ConsumerGroupHeartbeat", "LeaveGroup"})
"""Apis that only members use: they are asked as part of stories."""

_ONE_GROUP: Final = frozenset({"groups", "group_ids", "groups_names"})
"""Lists with one element: epochs of groups are compared, and each side's begin elsewhere."""

CHANGES: Final = frozenset(
    {"CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs", "DeleteRecords"}
)
"""Apis after which a real Kafka takes a moment until all answers have the change."""

_ALONE: Final = CHANGES | {"JoinGroup"}
"""Apis whose answers the next request needs."""

AT_ONCE: Final = 0.4
"""How often a request comes at once after another, where it may."""

ODD: Final = 0.07
"""How often a value is odd."""


class Requests:
    """``steps(count)`` gives so many requests, or one or two more; the same for the same ``seed``."""

    def __init__(self, seed: int, newest: Mapping[int, int] | None = None) -> None:
        """``newest`` has the last version of each api that the Kafka beside knows; None for all that are offered."""
        self._random = Random(seed)
        self._asked = 0
        self._apis = [
            (api.name, api.versions if newest is None else api.versions[: newest[api.key] + 1 - api.versions.start])
            for api in APIS.values()
            if api.name not in _OWN
        ]
        self._classic: dict[str, list[int]] = {group: [] for group in CLASSIC}
        self._unsettled: set[str] = set()
        self._consumer: dict[str, list[int]] = {group: [] for group in CONSUMER}
        self._subscribed: dict[str, Plain] = {group: ["plain"] for group in CONSUMER}

    def steps(self, count: int) -> Iterator[Step]:
        """Requests in their order; some on one connection, of which the second is sent before the first is answered."""
        before: Step = ()
        for step in self._steps(count):
            asked = {each.case.api for each in (*before, *step)}
            is_alone = len(before) == len(step) == 1 and asked.isdisjoint(_ALONE)
            if is_alone and self._random.random() < AT_ONCE:
                yield before[0], step[0]._replace(connection=before[0].connection)
                before = ()
                continue
            if before:
                yield before
            before = step
        yield before

    def _steps(self, count: int) -> Iterator[Step]:
        while self._asked < count:
            kind = self._random.random()
            if kind < 0.65:
                api, versions = self._random.choice(self._apis)
                yield (self._ask("admin", api, self._random.choice(versions)),)
            elif kind < 0.8:
                yield from self._classic_story(self._random.choice(CLASSIC))
            else:
                yield (self._consumer_story(self._random.choice(CONSUMER)),)

    def _case(self, api: str, version: int, fields: Fields) -> Case:
        self._asked += 1
        return Case(f"request {self._asked}", api, version, fields)

    def _one_of(self, pool: _Pool) -> Any:
        return self._random.choice(pool.odd if pool.odd and self._random.random() < ODD else pool.valid)

    # --- Any api, by its definition -----------------------------------------------------------------------------------

    def _ask(self, connection: str, api: str, version: int) -> Ask:
        message = definition(f"{api}Request")
        fields = self._struct(api, message, message.struct, version)
        if api == "DeleteTopics" and version >= 6:
            for topic in fields["topics"]:
                name = self._one_of(_CHANGED)
                by_id = name in CHANGING and self._random.random() < 0.5
                topic.update(
                    {"name": None, "topic_id": f"{{id of {name}}}"} if by_id else {"name": name, "topic_id": NO_ID}
                )
        if api == "Produce" and self._random.random() < ODD:  # for which Kafka refuses a request's other batches, too
            fields["topic_data"] = fields["topic_data"][:1]
            for topic in fields["topic_data"]:
                topic["partition_data"] = [{"index": 0, "records": self._random.choice(("", "00" * 30))}]
        if api == "Metadata" and version >= 10:
            for topic in fields["topics"] or ():
                topic.update({"name": None} if version >= 12 and self._random.random() < 0.5 else {"topic_id": NO_ID})
        return Ask(connection, self._case(api, version, fields))

    def _struct(self, api: str, message: Definition, struct: StructDefinition, version: int) -> dict[str, Plain]:
        return {
            field.name: self._value(api, message, field, version)
            for field in struct.fields
            if version in field.versions and not (version in field.tagged and self._random.random() < 0.5)
        }

    def _value(self, api: str, message: Definition, field: Field, version: int) -> Plain:
        element = field.type.removeprefix("[]")
        pool = _SPECIAL.get((api, field.name)) or (
            _POOLS.get(field.name) if element not in message.structs or field.name in _WHOLE else None
        )
        if field.is_array and (pool is None or not isinstance(pool.valid[0], list | None)):
            if version in field.nullable and self._random.random() < 0.1:
                return None
            count = 1 if field.name in _ONE_GROUP else self._random.choice((1, 1, 1, 2, 0))
            values = [self._element(api, message, field, element, pool, version) for _ in range(count)]
            return _distinct(values)
        if field.is_struct and not field.is_array:
            if pool is not None or self._random.random() < 0.5:
                return None
            return self._struct(api, message, message.structs[element], version)
        if version in field.nullable and field.type == "string" and pool is None and self._random.random() < 0.3:
            return None
        value = self._one_of(pool) if pool is not None else self._scalar(field)
        return value if value is not None or version in field.nullable else ""

    def _element(
        self, api: str, message: Definition, field: Field, element: str, pool: _Pool | None, version: int
    ) -> Plain:
        if element in message.structs:
            return self._struct(api, message, message.structs[element], version)
        return self._one_of(pool) if pool is not None else self._scalar(field._replace(type=element))

    def _scalar(self, field: Field) -> Plain:
        match field.type:
            case "bool":
                return self._random.random() < 0.5
            case "string":
                return self._random.choice(("x", "", "y"))
            case "uuid":
                return NO_ID
            case "bytes":
                return "00"
            case "records":
                return self._records()
            case "float64":
                return self._random.choice((1.0, 0.0, -1.0))
        return self._random.choice((0, 1, 1, 2, -1))

    def _records(self) -> Plain:
        random = self._random
        producer: dict[str, Any] = {}
        if random.random() < 0.4:
            producer = {
                "producer_id": random.choice((7_000, 7_001)),
                "producer_epoch": random.choice((0, 0, 0, 1, -1)),
                "base_sequence": random.choice((0, 1, 2, 3, -1)),
            }
        rows = [
            (
                BASE_TIME + random.randrange(2_000),
                random.choice((b"k", b"l", b"m", None)),
                b"v" * random.randrange(9),
                (),
            )
            for _ in range(random.randint(1, 4))
        ]
        return encode_batch(
            rows, codec=random.choice((Codec.NONE, Codec.NONE, Codec.GZIP, Codec.LZ4)), **producer
        ).hex()

    # --- Members of the classic protocol ------------------------------------------------------------------------------

    def _classic_story(self, group: str) -> Iterator[Step]:
        """A member joins and all join again; all sync; one of them beats, commits or leaves."""
        random, members = self._random, self._classic[group]
        kind = random.random()
        if (kind < 0.25 and len(members) < MEMBERS) or not members:
            number = next(number for number in range(MEMBERS) if number not in members)
            version = random.choice((2, 3, 5, 6, 7, 9))
            if version >= 4:
                yield (self._join(group, number, version),)  # which only gives it an id
            yield tuple(self._join(group, each, version) for each in (number, *members))
            members.append(number)
            self._unsettled.discard(group)
        elif kind < 0.5 and group in self._unsettled:
            version = random.choice((2, 5, 9))
            yield tuple(self._join(group, each, version) for each in members)
            self._unsettled.discard(group)
        if kind < 0.6 and members:
            version = random.choice(range(6))
            yield tuple(self._sync(group, number, version) for number in members)
        elif kind < 0.75:
            yield (self._member_request("Heartbeat", group, random.choice(members), random.choice(range(5)), {}),)
        elif kind < 0.95:
            yield (self._commit(group, random.choice(members), "{generation " + group + "}"),)
        else:
            number = random.choice(members)
            members.remove(number)
            self._unsettled.add(group)
            version = random.choice(range(6))
            who = f"{{member {group} {number}}}"
            named: Fields = {"member_id": who} if version < 3 else {"members": [{"member_id": who}]}
            yield (self._told(group, number, "LeaveGroup", version, {"group_id": group, **named}),)

    def _told(self, group: str, number: int, api: str, version: int, fields: Fields) -> Ask:
        return Ask(f"{group} {number}", self._case(api, version, fields), f"{{member {group} {number}}}")

    def _member_request(self, api: str, group: str, number: int, version: int, fields: Fields) -> Ask:
        generation = self._one_of(_Pool((f"{{generation {group}}}",), (99, -1)))
        who = self._one_of(_Pool((f"{{member {group} {number}}}",), ("nobody",)))
        named = {"group_id": group, "member_id": who, "generation_id": generation, **fields}
        return self._told(group, number, api, version, named)

    def _join(self, group: str, number: int, version: int) -> Ask:
        metadata = encode_subscription(self._random.choice((["plain"], ["plain", "other"]))).hex()
        fields: dict[str, Plain] = {
            "group_id": group,
            "member_id": f"{{member {group} {number}}}",
            "session_timeout_ms": MANY,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
        }
        return self._told(group, number, "JoinGroup", version, {**fields, "rebalance_timeout_ms": MANY})

    def _sync(self, group: str, number: int, version: int) -> Ask:
        assignments = [
            {
                "member_id": f"{{member {group} {each}}}",
                "assignment": encode_assignment([("plain", [each])]).hex(),
            }
            for each in self._classic[group]
        ]
        fields = {
            "group_id": group,
            "member_id": f"{{member {group} {number}}}",
            "generation_id": f"{{generation {group}}}",
            "assignments": assignments,
            **({"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}),
        }
        return self._told(group, number, "SyncGroup", version, fields)

    def _commit(self, group: str, number: int, epoch: str) -> Ask:
        version = self._random.choice(range(2, 11) if group in CLASSIC else range(9, 11))
        partition = {"partition_index": self._one_of(_NUMBERS), "committed_offset": self._random.randrange(4)}
        named = {"topic_id": "{id of plain}"} if version >= 10 else {"name": "plain"}
        fields = {
            "group_id": group,
            "member_id": self._one_of(_Pool((f"{{member {group} {number}}}",), ("nobody",))),
            "generation_id_or_member_epoch": self._one_of(_Pool((epoch,), (99,))),
            "topics": [{**named, "partitions": [{**partition, "committed_metadata": ""}]}],
        }
        return self._told(group, number, "OffsetCommit", version, fields)

    # --- Members of the consumer protocol -----------------------------------------------------------------------------

    def _consumer_story(self, group: str) -> Ask:
        """A member joins, beats, says what it has, commits or leaves; alone it reads other topics."""
        random, members = self._random, self._consumer[group]
        kind = random.random()
        if (kind < 0.15 and len(members) < MEMBERS) or not members:
            number = next(number for number in range(MEMBERS) if number not in members)
            members.append(number)
            said: Fields = {"rebalance_timeout_ms": MANY, "subscribed_topic_names": self._subscribed[group]}
            return self._beat(group, number, 0, {**said, "topic_partitions": []})
        number = random.choice(members)
        epoch = f"{{epoch {group} {number}}}"
        if kind < 0.4:
            return self._beat(group, number, epoch, {})
        if kind < 0.7:
            return self._beat(group, number, epoch, {"topic_partitions": f"{{owned {group} {number}}}"})
        if kind < 0.78 and len(members) == 1:  # topics are given out in the order of their ids: all read the same one
            topics = self._subscribed[group] = random.choice((["plain"], ["other"], ["never there"]))
            return self._beat(group, number, epoch, {"subscribed_topic_names": topics})
        if kind < 0.92:
            return self._commit(group, number, epoch)
        members.remove(number)
        return self._beat(group, number, -1, {})

    def _beat(self, group: str, number: int, epoch: Plain, said: Fields) -> Ask:
        fields = {
            "group_id": group,
            "member_id": f"{{member {group} {number}}}",
            "member_epoch": self._one_of(_Pool((epoch,), (99,))) if epoch not in (0, -1) else epoch,
            **said,
        }
        return self._told(group, number, "ConsumerGroupHeartbeat", 1, fields)


_WHOLE: Final = frozenset({"forgotten_topics_data", "replica_state"})


def _distinct(values: list[Plain]) -> list[Plain]:
    """Without elements of one name: what becomes of those is tested by itself."""
    seen: list[Plain] = []
    found = []
    for value in values:
        name = next(iter(value.values()), None) if isinstance(value, dict) else value
        if name not in seen:
            seen.append(name)
            found.append(value)
    return found
