"""Reads topics, partitions, configuration and accounts from Kafka's metadata log, if it is in the log directory.

Kafka keeps it in the first of its ``log.dirs``; every broker of a cluster has a full copy. The value of a record is a
frame: its version (1), the kind of record and its version as unsigned varints, then the fields. These kinds are read:

     2 TopicRecord         name; topic id: 16 bytes
     3 PartitionRecord     partition: int32; topic id: 16 bytes; and more
     4 ConfigRecord        resource type: int8 (2 a topic, 4 a broker); resource name; key; value, null where removed
     9 RemoveTopicRecord   topic id: 16 bytes
    11 UserScramCredentialRecord        name; mechanism: int8; salt; stored key; server key; iterations: int32
    18 AccessControlEntryRecord         id: 16 bytes; and more
    19 RemoveAccessControlEntryRecord   id: 16 bytes
    22 RemoveUserScramCredentialRecord  name; mechanism: int8

A text is its length + 1 as unsigned varint, 0 for null, then UTF-8; bytes likewise. A snapshot,
``<offset>-<epoch>.checkpoint``, holds the same records and replaces those of the log below that offset.
"""

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from seglog_broker.storage.directory.accounts import Credential
from seglog_broker.storage.io.filenames import new_id
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_protocol import segment_files as names
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import iter_records

METADATA_DIRECTORY: Final = "__cluster_metadata-0"
METADATA_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The topic id of the metadata log itself, the same in every cluster."""

SNAPSHOT_SUFFIX: Final = ".checkpoint"

_FRAME: Final = 1
_TOPIC, _PARTITION, _CONFIG, _REMOVE_TOPIC = 2, 3, 4, 9
_CREDENTIAL, _ACL, _REMOVE_ACL, _REMOVE_CREDENTIAL = 11, 18, 19, 22
_MECHANISMS: Final = MappingProxyType({1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"})
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_ID_BYTES: Final = 16
_INT32 = struct.Struct(">i")


@dataclass(slots=True)
class KafkaMetadata:
    """What the metadata log says. ``is_there``: whether there is one; without it everything is empty.

    ``topic_configs`` has the settings of each topic as Kafka stores them, ``broker_configs`` those of brokers by node
    id, with an empty one for all brokers; ``credentials`` are those of users by name and mechanism, and ``acls`` is the
    number of ACLs. ``problem``: why a part of it could not be read, or None.
    """

    is_there: bool = False
    topic_ids: dict[str, str] = field(default_factory=dict)
    partitions: set[tuple[str, int]] = field(default_factory=set)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    credentials: dict[tuple[str, str], Credential] = field(default_factory=dict)
    acls: int = 0
    problem: str | None = None

    def configs_of(self, topic: str, topic_id: str | None) -> dict[str, str] | None:
        """The settings of a topic, None if the log does not have it, or has another of that name."""
        known = self.topic_ids.get(topic)
        return None if known is None or topic_id not in (None, known) else self.topic_configs.get(topic, {})


def read_kafka_metadata(fs: FileSystem, path: str) -> KafkaMetadata:
    """The metadata log of the log directory ``path``. What follows an invalid batch is not read: see ``problem``."""
    directory = f"{path}/{METADATA_DIRECTORY}"
    if not fs.exists(directory):
        return KafkaMetadata()
    found = fs.list_directory(directory)
    snapshots = sorted(name for name in found if name.endswith(SNAPSHOT_SUFFIX))
    logs = sorted(name for name in found if name.endswith(names.LOG_SUFFIX))
    image = _Image()
    first = 0
    for name in snapshots[-1:]:
        first = int(name.partition("-")[0])
        image.apply(name, read_file(fs, f"{directory}/{name}"), 0)
    for name in logs:
        image.apply(name, read_file(fs, f"{directory}/{name}"), first)
    by_name = {name: topic_id for topic_id, name in image.topics.items()}
    return KafkaMetadata(
        bool(snapshots or logs),
        {name: new_id(uuid.UUID(bytes=topic_id)) for name, topic_id in by_name.items()},
        {(name, number) for name, topic_id in by_name.items() for number in image.partitions.get(topic_id, ())},
        {name: dict(config) for (kind, name), config in image.configs.items() if kind == _TOPIC_RESOURCE},
        {name: dict(config) for (kind, name), config in image.configs.items() if kind == _BROKER_RESOURCE and config},
        dict(image.credentials),
        len(image.acls),
        image.problem,
    )


class _Image:
    """The metadata after the records that were applied."""

    def __init__(self) -> None:
        self.topics: dict[bytes, str] = {}
        self.partitions: dict[bytes, set[int]] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.credentials: dict[tuple[str, str], Credential] = {}
        self.acls: set[bytes] = set()
        self.problem: str | None = None

    def apply(self, name: str, log: bytes, first: int) -> None:
        """Apply the records of one file from offset ``first`` on, up to the first invalid batch."""
        try:
            for value in _values(log, first):
                try:
                    self._apply(value)
                except (IndexError, ValueError, struct.error):
                    continue  # of an unknown version
        except CorruptRecordError as error:
            self.problem = self.problem or f"{METADATA_DIRECTORY}/{name} cannot be read further: {error}"

    def _apply(self, value: bytes) -> None:
        frame, at = _varint(value, 0)
        kind, at = _varint(value, at)
        _, at = _varint(value, at)
        if frame != _FRAME:
            return
        if kind == _TOPIC:
            name, at = _text(value, at)
            self.topics[_id(value, at)] = name or ""
        elif kind == _PARTITION:
            [number] = _INT32.unpack_from(value, at)
            self.partitions.setdefault(_id(value, at + _INT32.size), set()).add(number)
        elif kind == _CONFIG:
            resource = value[at]
            name, at = _text(value, at + 1)
            key, at = _text(value, at)
            setting, at = _text(value, at)
            config = self.configs.setdefault((resource, name or ""), {})
            if setting is None:
                config.pop(key or "", None)
            else:
                config[key or ""] = setting
        elif kind == _REMOVE_TOPIC:
            topic = self.topics.pop(_id(value, at), None)
            self.configs.pop((_TOPIC_RESOURCE, topic or ""), None)
        elif kind in {_CREDENTIAL, _REMOVE_CREDENTIAL}:
            self._apply_credential(value, at, removes=kind == _REMOVE_CREDENTIAL)
        elif kind == _ACL:
            self.acls.add(_id(value, at))
        elif kind == _REMOVE_ACL:
            self.acls.discard(_id(value, at))

    def _apply_credential(self, value: bytes, at: int, *, removes: bool) -> None:
        name, at = _text(value, at)
        key = name or "", _MECHANISMS.get(value[at], "")
        self.credentials.pop(key, None)
        if not removes:
            salt, at = _bytes(value, at + 1)
            stored_key, at = _bytes(value, at)
            server_key, at = _bytes(value, at)
            [iterations] = _INT32.unpack_from(value, at)
            self.credentials[key] = Credential(key[1], iterations, salt, stored_key, server_key)


def _values(log: bytes, first: int) -> Iterator[bytes]:
    """The values of all records from offset ``first`` on. Raises CorruptRecordError at the first invalid batch."""
    for header, batch in iter_batches(log):
        if not header.is_control:
            yield from (r.value for r in iter_records(header, batch) if r.offset >= first and r.value is not None)


def _id(value: bytes, at: int) -> bytes:
    found = value[at : at + _ID_BYTES]
    if len(found) < _ID_BYTES:
        raise ValueError("a record ends within a topic id")
    return found


def _text(value: bytes, at: int) -> tuple[str | None, int]:
    """A text and the position after it. Raises ValueError if the record ends within it."""
    is_null = value[at] == 0
    found, at = _bytes(value, at)
    return (None if is_null else found.decode()), at


def _bytes(value: bytes, at: int) -> tuple[bytes, int]:
    """Bytes, none for null, and the position after them. Raises ValueError if the record ends within them."""
    size, at = _varint(value, at)
    end = at + max(size - 1, 0)
    if end > len(value):
        raise ValueError("a record ends within a text")
    return value[at:end], end


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint and the position after it. Raises IndexError if it does not end."""
    number = shift = 0
    while value[at] & 0x80:
        number |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | value[at] << shift, at + 1
