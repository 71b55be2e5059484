"""Records of ``__consumer_offsets``: bytes to keys and values, and back.

Key and value each begin with an int16: the type of the record, and the version of the value. A record without a value
deletes. Source: Kafka's group-coordinator, ``common/message/*.json`` and ``GroupCoordinatorRecordSerde``.
"""

from struct import Struct as Layout
from struct import error as StructError  # noqa: N812 - an exception
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset, Key
from seglog_broker.coordinators.groups.membership import Record
from seglog_broker.coordinators.groups.steps import steps_of
from seglog_broker.coordinators.groups.topic_ids import id_bytes
from seglog_protocol.kafka import Message, messages, read_message, write_message, write_message_in_pieces
from seglog_protocol.kafka.compiler import message_reader_in_pieces
from seglog_protocol.kafka.errors import WireError
from seglog_protocol.kafka.source import PIECE_BYTES
from seglog_protocol.steps import Steps

OFFSET_COMMIT: Final = 1
OFFSET_COMMIT_OLD: Final = 0
"""The same, as old versions of Kafka wrote it."""
CLASSIC_GROUP: Final = 2
CONSUMER_GROUP: Final = 3
"""The epoch of a group of the consumer protocol. The types after it are about its members and assignments."""

OFFSET_VALUE_VERSION: Final = 4
"""The version that Kafka 4.3 writes."""

_VERSION: Final = Layout(">h")
_KINDS: Final = {
    OFFSET_COMMIT_OLD: ("OffsetCommitKey", "OffsetCommitValue", 4),
    OFFSET_COMMIT: ("OffsetCommitKey", "OffsetCommitValue", 4),
    CLASSIC_GROUP: ("GroupMetadataKey", "GroupMetadataValue", 4),
    CONSUMER_GROUP: ("ConsumerGroupMetadataKey", "ConsumerGroupMetadataValue", 0),
    4: ("ConsumerGroupPartitionMetadataKey", "ConsumerGroupPartitionMetadataValue", 0),
    5: ("ConsumerGroupMemberMetadataKey", "ConsumerGroupMemberMetadataValue", 0),
    6: ("ConsumerGroupTargetAssignmentMetadataKey", "ConsumerGroupTargetAssignmentMetadataValue", 0),
    7: ("ConsumerGroupTargetAssignmentMemberKey", "ConsumerGroupTargetAssignmentMemberValue", 0),
    8: ("ConsumerGroupCurrentMemberAssignmentKey", "ConsumerGroupCurrentMemberAssignmentValue", 0),
    16: ("ConsumerGroupRegularExpressionKey", "ConsumerGroupRegularExpressionValue", 0),
}
"""By type: the names of key and value, and the newest version of the value."""


class UnknownRecordError(Exception):
    """A record of a type, or in a version, that is not known here; or bytes that are no record of a group."""


class ReadRecord(NamedTuple):
    """A record as it was read; ``value`` None deletes."""

    kind: int
    key: Message
    value: Message | None


def encode_record(record: Record) -> Steps[tuple[bytes, bytes | None]]:
    """Key and value of a record."""
    key = encode_key(record)
    if record.value is None:
        return key, None
    value = yield from steps_of(write_message_in_pieces(record.value, record.value_version))
    return key, _VERSION.pack(record.value_version) + value


def encode_key(record: Record) -> bytes:
    """The key of a record."""
    return _VERSION.pack(record.key_version) + write_message(record.key, 0)


def least_size(record: Record) -> int:
    """Bytes that a record has at least; known without encoding it."""
    if not isinstance(record.value, messages.GroupMetadataValue):
        return 0
    return sum(len(member.subscription) + len(member.assignment) for member in record.value.members)


def topics_in(record: ReadRecord) -> int:
    """How many topics a record of a group of the consumer protocol names."""
    match record.value:
        case messages.ConsumerGroupMemberMetadataValue(subscribed_topic_names=topics):
            return len(topics)
        case messages.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics):
            return len(topics)
        case messages.ConsumerGroupCurrentMemberAssignmentValue(
            assigned_partitions=had, partitions_pending_revocation=lost
        ):
            return len(had) + len(lost)
        case messages.ConsumerGroupRegularExpressionValue(topics=topics):
            return len(topics)
    return 0


def encode_commit(group: str, key: Key, committed: CommittedOffset) -> tuple[bytes, bytes]:
    """Key and value of the record of a commit."""
    value = messages.OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_ms,
        topic_id=id_bytes(committed.topic_id),
    )
    return _commit_key(group, key), _VERSION.pack(OFFSET_VALUE_VERSION) + write_message(value, OFFSET_VALUE_VERSION)


def encode_forgotten(group: str, key: Key) -> tuple[bytes, None]:
    """Key and value of the record that deletes a commit."""
    return _commit_key(group, key), None


def _commit_key(group: str, key: Key) -> bytes:
    topic, partition = key
    return _VERSION.pack(OFFSET_COMMIT) + write_message(
        messages.OffsetCommitKey(group=group, topic=topic, partition=partition), 0
    )


def decode_record(
    key: bytes | None, value: bytes | None, known_keys: dict[bytes, Message] | None = None
) -> Steps[ReadRecord]:
    """A record from its bytes. Raises UnknownRecordError, which says what is wrong with it.

    ``known_keys`` has the keys that were read before, and gets this one: the same keys come again and again.
    """
    try:
        key = key or b""
        (kind,) = _VERSION.unpack_from(key)
        if kind not in _KINDS:
            raise UnknownRecordError(f"records of type {kind} are not known here")
        key_name, value_name, newest = _KINDS[kind]
        read_key = None if known_keys is None else known_keys.get(key)
        if read_key is None:
            read_key = read_message(getattr(messages, key_name), 0, memoryview(key)[_VERSION.size :])
            if known_keys is not None:
                known_keys[key] = read_key
        if value is None:
            return ReadRecord(kind, read_key, None)
        (version,) = _VERSION.unpack_from(value)
        if not 0 <= version <= newest:
            raise UnknownRecordError(f"version {version} of records of type {kind} is not known here")
        if len(value) <= PIECE_BYTES:
            cls = getattr(messages, value_name)
            return ReadRecord(kind, read_key, read_message(cls, version, memoryview(value)[_VERSION.size :]))
        reading = message_reader_in_pieces(value_name, version)
        return ReadRecord(kind, read_key, (yield from steps_of(reading(memoryview(value), _VERSION.size)))[0])
    except StructError:
        raise UnknownRecordError("it does not begin with a type and a version") from None
    except WireError as error:
        raise UnknownRecordError(str(error)) from error


def partition_of(group: str, partitions: int) -> int:
    """The partition of ``__consumer_offsets`` that has a group's records: Java's hash of its id, as Kafka has it."""
    utf16 = group.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(utf16), 2):
        value = (31 * value + (utf16[position] << 8 | utf16[position + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
