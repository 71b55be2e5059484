"""Records of ``__consumer_offsets``: their types, those of committed offsets as bytes, and their replay.

Source: Kafka's group-coordinator, ``common/message/*.json`` and ``GroupCoordinatorRecordSerde``.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from seglog_broker.coordinators.groups.committed_offsets import (
    NO_TOPIC,
    CommittedOffset,
    CommittedOffsets,
    Key,
    Pending,
)
from seglog_broker.coordinators.groups.consumer_records import CONSUMER_RECORDS, SHARE_RECORDS, name_in
from seglog_broker.coordinators.groups.topics import NO_ID, id_bytes, id_text
from seglog_broker.coordinators.state_machine import VERSION, Record, RecordKind, Replay
from seglog_protocol.kafka import Message, messages, write_message
from seglog_protocol.steps import Pace, Steps

OFFSET_COMMIT: Final = 1
CLASSIC_GROUP: Final = 2
_SHARE_TYPES: Final = frozenset(version for version, _ in SHARE_RECORDS.values())

OFFSET_VALUE_VERSION: Final = 4
"""The version that Kafka 4.3 writes."""

KINDS: Final = {
    0: RecordKind("OffsetCommitKey", "OffsetCommitValue", 4),  # as old versions of Kafka wrote it
    OFFSET_COMMIT: RecordKind("OffsetCommitKey", "OffsetCommitValue", 4),
    CLASSIC_GROUP: RecordKind("GroupMetadataKey", "GroupMetadataValue", 4),
    **{
        version: RecordKind(f"{name}Key", f"{name}Value", 0)
        for kinds in (CONSUMER_RECORDS, SHARE_RECORDS)
        for version, name in kinds.values()
    },
}


def encode_commit(group: str, key: Key, committed: CommittedOffset) -> tuple[bytes, bytes]:
    """Key and value of the record of a commit."""
    value = messages.OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_ms,
        topic_id=id_bytes(committed.topic_id),
    )
    return _commit_key(group, key), VERSION.pack(OFFSET_VALUE_VERSION) + write_message(value, OFFSET_VALUE_VERSION)


def encode_tombstone(group: str, key: Key) -> tuple[bytes, None]:
    """Key and value of the record that deletes a commit."""
    return _commit_key(group, key), None


def _commit_key(group: str, key: Key) -> bytes:
    topic, partition = key
    return VERSION.pack(OFFSET_COMMIT) + write_message(
        messages.OffsetCommitKey(group=group, topic=topic, partition=partition), 0
    )


class GroupReplay(Replay):
    """The replayed part of ``__consumer_offsets``: committed offsets, and the last record of each key of a group."""

    def __init__(self, topic_ids: Mapping[str, str]) -> None:
        """``topic_ids``, by name, are for commits without a topic id, which old versions of Kafka wrote."""
        super().__init__(KINDS)
        self.offsets = CommittedOffsets()
        self.classic: dict[str, Record] = {}
        """By group."""
        self.consumer: dict[str, dict[tuple[int, str], Record]] = {}
        """Records of groups of the consumer protocol: by group, then by type and member (or expression)."""
        self.share: dict[str, dict[tuple[int, str], Record]] = {}
        """Those of share groups."""
        self._topic_ids = topic_ids

    def hold(self, producer_id: int, record: Record) -> None:
        """As ``Replay.hold``: offsets alone are committed in transactions."""
        key, value = record.key, record.value
        if not isinstance(key, messages.OffsetCommitKey) or not isinstance(value, messages.OffsetCommitValue):
            super().hold(producer_id, record)
            return
        pending = Pending(self._committed(key, value), is_loaded=True)
        self.offsets.hold(producer_id, key.group, (key.topic, key.partition), pending)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> Steps[None]:
        """As ``Replay.end_transaction``."""
        pace = Pace()
        for group in self.offsets.pending.groups_of(producer_id):
            for _ in self.offsets.end_transaction(producer_id, group, is_commit=is_commit):
                if pace.is_due():
                    yield

    def apply(self, record: Record) -> None:
        """Take in a record that counts. The later record of a key wins."""
        key = record.key
        if isinstance(key, messages.OffsetCommitKey):
            self._apply_offset(key, record.value)
        elif isinstance(key, messages.GroupMetadataKey):
            if record.value is None:
                self.classic.pop(key.group, None)
            else:
                self.classic[key.group] = record
        else:
            group, about = cast("Any", key).group_id, (record.key_version, name_in(key))
            by_group = self.share if record.key_version in _SHARE_TYPES else self.consumer
            kept = by_group.setdefault(group, {})
            kept.pop(about, None)  # a later record comes after those of others
            if record.value is not None:
                kept[about] = record
            elif not kept:
                del by_group[group]

    def _apply_offset(self, key: messages.OffsetCommitKey, value: Message | None) -> None:
        place = key.topic, key.partition
        if value is None:
            self.offsets.drop(key.group, place)
            self.offsets.end(key.group)
            return
        assert isinstance(value, messages.OffsetCommitValue)
        self.offsets.put(key.group, place, self._committed(key, value))

    def _committed(self, key: messages.OffsetCommitKey, value: messages.OffsetCommitValue) -> CommittedOffset:
        return CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            self._topic_ids.get(key.topic, NO_TOPIC) if value.topic_id == NO_ID else id_text(value.topic_id),
        )
