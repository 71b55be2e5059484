"""The records of ``__consumer_offsets``, read again in the order of the log: groups, and what they committed.

The later record wins. What was committed in a transaction counts when its marker is read. A record that is not known is
counted, and skipped: a newer Kafka may have written it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from seglog_broker.coordinators.groups.committed_offsets import NO_TOPIC, CommittedOffset, CommittedOffsets
from seglog_broker.coordinators.groups.records import CLASSIC_GROUP, ReadRecord, UnknownRecordError, decode_record
from seglog_broker.coordinators.groups.topic_ids import NO_ID, id_text
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.structs import Message
from seglog_protocol.record_batch import BatchHeader
from seglog_protocol.records import Record
from seglog_protocol.steps import Steps
from seglog_protocol.transaction_files import decode_end_marker

_ABOUT_MEMBERS: Final = (
    messages.ConsumerGroupMemberMetadataKey,
    messages.ConsumerGroupTargetAssignmentMemberKey,
    messages.ConsumerGroupCurrentMemberAssignmentKey,
)


class Replay:
    """What the records read so far add up to."""

    def __init__(self, topic_ids: Mapping[str, str]) -> None:
        """``topic_ids``, by name: which topic a commit is for that does not say it, as old versions of Kafka wrote."""
        self.offsets = CommittedOffsets()
        self._topic_ids = topic_ids
        self.classic: dict[str, messages.GroupMetadataValue] = {}
        """By group."""
        self.consumer: dict[str, dict[tuple[int, str], ReadRecord]] = {}
        """Records of groups of the consumer protocol: by group, then by type and member (or expression)."""
        self.unknown: Counter[str] = Counter()
        """Records that were skipped, by what is wrong with them."""
        self._keys: dict[bytes, Message] = {}
        self._open: dict[int, list[ReadRecord]] = {}  # of transactions, by producer id

    def read(self, header: BatchHeader, records: Iterable[Record]) -> Steps[None]:
        """Take in records of one batch."""
        if header.is_control:
            for record in records:
                self._end_transaction(header.producer_id, record)
            return
        held = self._open.setdefault(header.producer_id, []) if header.is_transactional else None
        for record in records:
            try:
                known = yield from decode_record(record.key, record.value, self._keys)
            except UnknownRecordError as error:
                self.unknown[str(error)] += 1
                continue
            if held is None:
                self._apply(known)
            else:
                held.append(known)

    def end(self) -> None:
        """All is read: what transactions have committed that are still open is neither committed nor gone."""
        for held in self._open.values():
            for record in held:
                if isinstance(record.key, messages.OffsetCommitKey) and record.value is not None:
                    self.offsets.note_unstable(record.key.group, (record.key.topic, record.key.partition))

    def _end_transaction(self, producer_id: int, record: Record) -> None:
        marker = decode_end_marker(record.key, record.value)
        held = self._open.pop(producer_id, [])
        if marker is not None and marker.type == "COMMIT":
            for known in held:
                self._apply(known)

    def _apply(self, record: ReadRecord) -> None:
        key, value = record.key, record.value
        if isinstance(key, messages.OffsetCommitKey):
            self._apply_offset(key, value)
        elif record.kind == CLASSIC_GROUP:
            assert isinstance(key, messages.GroupMetadataKey)
            if value is None:
                self.classic.pop(key.group, None)
            else:
                assert isinstance(value, messages.GroupMetadataValue)
                self.classic[key.group] = value
        else:
            self._apply_of_consumer_group(record)

    def _apply_of_consumer_group(self, record: ReadRecord) -> None:
        key: Any = record.key
        about = ""
        if isinstance(key, _ABOUT_MEMBERS):
            about = key.member_id
        elif isinstance(key, messages.ConsumerGroupRegularExpressionKey):
            about = key.regular_expression
        group = key.group_id
        kept = self.consumer.setdefault(group, {})
        kept.pop((record.kind, about), None)  # a later record comes after those of others
        if record.value is not None:
            kept[record.kind, about] = record
        elif not kept:
            del self.consumer[group]

    def _apply_offset(self, key: messages.OffsetCommitKey, value: Message | None) -> None:
        if value is None:
            self.offsets.drop(key.group, (key.topic, key.partition))
            self.offsets.end(key.group)
            for held in self._open.values():
                held[:] = [other for other in held if other.key != key]
            return
        assert isinstance(value, messages.OffsetCommitValue)
        self.offsets.put(
            key.group,
            (key.topic, key.partition),
            CommittedOffset(
                value.offset,
                value.leader_epoch,
                value.metadata,
                value.commit_timestamp,
                value.expire_timestamp,
                self._topic_ids.get(key.topic, NO_TOPIC) if value.topic_id == NO_ID else id_text(value.topic_id),
            ),
        )
