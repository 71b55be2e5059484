"""Kafka's metadata log: topics, settings, accounts, ACLs and quotas read from it, and the snapshot that begins one.

Kafka keeps it in the first of its ``log.dirs``; every broker of a cluster has a full copy. The value of a record is a
frame: its version (1), the kind of record and its version as unsigned varints, then the record, which has the fields of
``seglog_protocol.kafka.messages``. A snapshot, ``<offset>-<epoch>.checkpoint``, holds the same records and replaces
those of the log below that offset. ``bootstrap.checkpoint``, in the log directory itself, has the records with which a
new log begins; ``kafka-storage format`` writes features into it, and ``encode_bootstrap`` a whole directory.
"""

import contextlib
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from seglog_broker.storage.directory.accounts import Credential
from seglog_broker.storage.io.filenames import new_id
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_protocol import segment_files as names
from seglog_protocol.access import Rule
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.kafka import Message, WireError, messages, read_message, write_message
from seglog_protocol.kafka.acls import rule_of, with_rule
from seglog_protocol.quotas import Entity, Quotas, entity_in, parts_of
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import iter_records

METADATA_DIRECTORY: Final = "__cluster_metadata-0"
METADATA_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The topic id of the metadata log itself, the same in every cluster."""

SNAPSHOT_SUFFIX: Final = ".checkpoint"
BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"
_FIRST_SNAPSHOT: Final = f"{0:020}-{0:010}{SNAPSHOT_SUFFIX}"

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
"""The resource types of a ConfigRecord; the name of the settings of all brokers is empty."""

MECHANISMS: Final = MappingProxyType({1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"})
"""Numbers in records of credentials."""

METADATA_VERSION, METADATA_VERSION_MAX = 30, 33
"""Of Kafka 4.3, with which Kafka 4.4 starts, too: of directories that no Kafka has written; and Kafka 4.4's own."""

_METADATA_VERSION: Final = "metadata.version"

FEATURES: Final = MappingProxyType(
    {
        _METADATA_VERSION: METADATA_VERSION,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
)
"""What ``kafka-storage format`` of Kafka 4.3.1 writes: metadata.version 4.3-IV0, and the levels that go with it."""

_FRAME: Final = 1
_KINDS: Final = MappingProxyType(
    {
        2: "TopicRecord",
        3: "PartitionRecord",
        4: "ConfigRecord",
        9: "RemoveTopicRecord",
        11: "UserScramCredentialRecord",
        12: "FeatureLevelRecord",
        14: "ClientQuotaRecord",
        15: "ProducerIdsRecord",
        18: "AccessControlEntryRecord",
        19: "RemoveAccessControlEntryRecord",
        22: "RemoveUserScramCredentialRecord",
    }
)
"""The kinds that are read or written; others are skipped."""

_NUMBERS: Final = MappingProxyType({name: number for number, name in _KINDS.items()})

_WRITTEN_VERSIONS: Final = MappingProxyType({"PartitionRecord": 1})
"""Where it is not 0. Version 2 of a partition adds eligible leader replicas, of which one replica has none."""

_CONTROL_KEY: Final = struct.Struct(">hh")
_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER = 3, 4
_RECORDS_A_BATCH: Final = 1_000


@dataclass(slots=True)
class KafkaMetadata:
    """What the metadata log says. ``is_there``: whether there is one; without it everything is empty.

    ``topic_configs`` has the settings of each topic as Kafka stores them, ``broker_configs`` those of brokers by node
    id, with an empty one for all brokers, ``group_configs`` those of groups; ``credentials`` are those of users by name
    and mechanism, ``rules`` the ACLs, and ``quotas`` the values of each entity by key, unchecked both. Kafka has given
    no producer id from ``next_producer_id`` on. ``problem``: why a part of it could not be read, or None.
    ``metadata_version`` is None where what could be read names none.
    """

    is_there: bool = False
    topic_ids: dict[str, str] = field(default_factory=dict)
    partitions: set[tuple[str, int]] = field(default_factory=set)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    credentials: dict[tuple[str, str], Credential] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)
    next_producer_id: int = 0
    problem: str | None = None
    metadata_version: int | None = None

    def configs_of(self, topic: str, topic_id: str | None) -> dict[str, str] | None:
        """The settings of a topic, None if the log does not have it, or has another of that name."""
        known = self.topic_ids.get(topic)
        return None if known is None or topic_id not in (None, known) else self.topic_configs.get(topic, {})


def read_kafka_metadata(fs: FileSystem, path: str) -> KafkaMetadata:
    """The metadata log of the log directory ``path``. What follows an invalid batch is not read: see ``problem``.

    Where Kafka has not begun one yet it is what ``bootstrap.checkpoint`` has, beside which ``kafka-storage format`` of
    Kafka 4.3 may have put a snapshot of voters alone; that of Kafka 4.4 writes a snapshot with everything.
    """
    directory = f"{path}/{METADATA_DIRECTORY}"
    found = fs.list_directory(directory) if fs.exists(directory) else []
    snapshots = sorted(name for name in found if name.endswith(SNAPSHOT_SUFFIX))
    logs = sorted(name for name in found if name.endswith(names.LOG_SUFFIX))
    image, first = _Image(), 0
    if not logs and snapshots in ([], [_FIRST_SNAPSHOT]) and fs.exists(f"{path}/{BOOTSTRAP_FILE}"):
        image.apply(BOOTSTRAP_FILE, read_file(fs, f"{path}/{BOOTSTRAP_FILE}"), 0)
    for name in snapshots[-1:]:
        first = int(name.partition("-")[0])
        image.apply(f"{METADATA_DIRECTORY}/{name}", read_file(fs, f"{directory}/{name}"), 0)
    for name in logs:
        image.apply(f"{METADATA_DIRECTORY}/{name}", read_file(fs, f"{directory}/{name}"), first)
    out, by_name = image.out, {name: topic_id for topic_id, name in image.topics.items()}
    out.is_there = bool(snapshots or logs)
    out.topic_ids = {name: new_id(uuid.UUID(bytes=topic_id)) for name, topic_id in by_name.items()}
    out.partitions = {(name, n) for name, topic_id in by_name.items() for n in image.partitions.get(topic_id, ())}
    for (kind, name), config in image.configs.items():
        if kind == TOPIC_RESOURCE:
            out.topic_configs[name] = config
        elif kind == BROKER_RESOURCE and config:
            out.broker_configs[name] = config
        elif kind == GROUP_RESOURCE and config:
            out.group_configs[name] = config
    out.rules = list(image.rules.values())
    out.quotas = {entity: values for entity, values in image.quotas.items() if values}
    return out


class _Image:
    """The metadata after the records that were applied; ``out`` has of it what is simple."""

    def __init__(self) -> None:
        self.out = KafkaMetadata()
        self.topics: dict[bytes, str] = {}
        self.partitions: dict[bytes, set[int]] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.rules: dict[bytes, Rule] = {}
        self.quotas: dict[Entity, dict[str, float]] = {}

    def apply(self, name: str, log: bytes, first: int) -> None:
        """Apply the records of one file from offset ``first`` on, up to the first invalid batch."""
        try:
            for value in _values(log, first):
                record = _read(value)
                if record is not None:
                    self._apply(record)
        except CorruptRecordError as error:
            self.out.problem = self.out.problem or f"{name} cannot be read further: {error}"

    def _apply(self, record: Message) -> None:
        if isinstance(record, messages.TopicRecord):
            self.topics[record.topic_id] = record.name
        elif isinstance(record, messages.PartitionRecord):
            self.partitions.setdefault(record.topic_id, set()).add(record.partition_id)
        elif isinstance(record, messages.ConfigRecord):
            config = self.configs.setdefault((record.resource_type, record.resource_name), {})
            if record.value is None:
                config.pop(record.name, None)
            else:
                config[record.name] = record.value
        elif isinstance(record, messages.RemoveTopicRecord):
            topic = self.topics.pop(record.topic_id, None)
            self.configs.pop((TOPIC_RESOURCE, topic or ""), None)
        elif isinstance(record, messages.FeatureLevelRecord):
            if record.name == _METADATA_VERSION:
                self.out.metadata_version = min(record.feature_level, METADATA_VERSION_MAX)
        elif isinstance(record, messages.ProducerIdsRecord):
            self.out.next_producer_id = record.next_producer_id
        elif isinstance(record, messages.AccessControlEntryRecord):
            self.rules[record.id] = rule_of(Rule, record)
        elif isinstance(record, messages.RemoveAccessControlEntryRecord):
            self.rules.pop(record.id, None)
        elif isinstance(record, messages.ClientQuotaRecord):
            entity = entity_in(record.entity)
            values = self.quotas.setdefault(entity, {})
            if record.remove:
                values.pop(record.key, None)
            else:
                values[record.key] = record.value
        elif isinstance(record, messages.UserScramCredentialRecord | messages.RemoveUserScramCredentialRecord):
            self._apply_credential(record)

    def _apply_credential(
        self, record: messages.UserScramCredentialRecord | messages.RemoveUserScramCredentialRecord
    ) -> None:
        key = record.name, MECHANISMS.get(record.mechanism, "")
        self.out.credentials.pop(key, None)
        if isinstance(record, messages.UserScramCredentialRecord):
            with contextlib.suppress(ValueError):  # of an unknown mechanism
                keys = record.salt, record.stored_key, record.server_key
                self.out.credentials[key] = Credential(key[1], record.iterations, *keys)


def _values(log: bytes, first: int) -> Iterator[bytes]:
    """The values of all records from offset ``first`` on. Raises CorruptRecordError at the first invalid batch."""
    for header, batch in iter_batches(log):
        if not header.is_control:
            yield from (r.value for r in iter_records(header, batch) if r.offset >= first and r.value is not None)


def _read(value: bytes) -> Message | None:
    """The record in a frame; None for one of a kind or in a version that is not known here."""
    try:
        frame, kind, version = value[0], value[1], value[2]  # varints, of one byte while they are below 128
        if frame != _FRAME or kind not in _KINDS:
            return None
        cls: type[Message] = getattr(messages, _KINDS[kind])
        return read_message(cls, min(version, cls.VERSIONS[-1]), memoryview(value)[3:])
    except (IndexError, WireError):
        return None


# --- Written ----------------------------------------------------------------------------------------------------------


def encode_bootstrap(records: Sequence[Message], now_ms: int, metadata_version: int = METADATA_VERSION) -> bytes:
    """The content of a ``bootstrap.checkpoint`` of ``FEATURES`` and these records, with which a Kafka's log begins.

    Beside a later ``metadata_version`` the other features are those with which that Kafka formats a directory.
    """
    levels = FEATURES | {_METADATA_VERSION: metadata_version}
    if metadata_version > METADATA_VERSION:
        levels["share.version"] = 2
    features = [messages.FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()]
    return _snapshot([*features, *records], now_ms)


def record_of_rule(rule: Rule) -> messages.AccessControlEntryRecord:
    """The record of an ACL. Kafka knows it by an id, which is made from what it says."""
    record = with_rule(messages.AccessControlEntryRecord, rule)
    record.id = uuid.uuid5(uuid.NAMESPACE_OID, repr(tuple(rule))).bytes
    return record


def records_of_quotas(entity: Entity, quotas: Quotas) -> Iterator[messages.ClientQuotaRecord]:
    """The records of an entity's quotas."""
    for key, value in quotas.items():
        parts = parts_of(messages.ClientQuotaRecord.EntityData, entity)
        yield messages.ClientQuotaRecord(entity=parts, key=key, value=value, remove=False)


def _snapshot(records: Sequence[Message], now_ms: int) -> bytes:
    """Records between a header and a footer, in batches at consecutive offsets, of epoch 0."""
    values = [_frame(record) for record in records]
    batches = [_control_batch(_SNAPSHOT_HEADER, messages.SnapshotHeaderRecord(), 0, now_ms)]
    for first in range(0, len(values), _RECORDS_A_BATCH):
        some = ((now_ms, None, value, ()) for value in values[first : first + _RECORDS_A_BATCH])
        batches.append(encode_batch(some, base_offset=first + 1, leader_epoch=0))
    batches.append(_control_batch(_SNAPSHOT_FOOTER, messages.SnapshotFooterRecord(), len(values) + 1, now_ms))
    return b"".join(batches)


def _control_batch(kind: int, record: Message, offset: int, now_ms: int) -> bytes:
    content = (now_ms, _CONTROL_KEY.pack(0, kind), write_message(record, 0), ())
    return encode_batch([content], base_offset=offset, leader_epoch=0, control=True)


def _frame(record: Message) -> bytes:
    name = type(record).__name__
    version = _WRITTEN_VERSIONS.get(name, 0)
    return bytes((_FRAME, _NUMBERS[name], version)) + write_message(record, version)
