"""Records of ``__share_group_state``: a snapshot of what was written of a share partition, and updates that follow it.

Source: Kafka's share-coordinator, ``common/message/Share*.json`` and ``ShareCoordinatorShard``.
"""

from collections.abc import Iterable, Sequence
from struct import Struct as Layout
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.share.in_flight import NO_OFFSET, StateBatch
from seglog_broker.coordinators.share.runs import ACQUIRED, ARCHIVED, AVAILABLE, Runs
from seglog_broker.coordinators.state_machine import VERSION, Record, RecordKind, Replay, UnknownRecordError
from seglog_broker.logger import get_logger
from seglog_protocol.kafka import messages, write_message
from seglog_protocol.kafka.varints import varint
from seglog_protocol.record_batch import BatchHeader
from seglog_protocol.records import Record as LogRecord
from seglog_protocol.steps import Pace, Steps

SNAPSHOT: Final = 0
UPDATE: Final = 1

KINDS: Final = {
    SNAPSHOT: RecordKind("ShareSnapshotKey", "ShareSnapshotValue", 0),
    UPDATE: RecordKind("ShareUpdateKey", "ShareUpdateValue", 0),
}

NO_COUNT: Final = -1

UNREAD_MAX: Final = 100_000
"""Records that a replay keeps without a look at them, some 20 MB."""

_SNAPSHOT_KEY, _UPDATE_KEY = VERSION.pack(SNAPSHOT), VERSION.pack(UPDATE)
_KNOWN: Final = VERSION.pack(0)

BATCHES_MAX: Final = 10_000
"""Batches in one record: a reader refuses an array of more than 20,000 elements."""

_UPDATE: Final = Layout(">hiiq")  # version, snapshot epoch, leader epoch, start offset
_SNAPSHOT: Final = Layout(">hiiiqqq")  # version, snapshot, state and leader epoch, start offset, two timestamps
_BATCH: Final = Layout(">qqbhx")  # and no tagged fields
_COUNT: Final = Layout(">BBBi")  # one tagged field: its tag, its size, the number of finished records

log = get_logger()


class PartitionKey(NamedTuple):
    """A share partition: what one group has of a partition. ``topic_id`` has 16 bytes."""

    group: str
    topic_id: bytes
    partition: int

    @property
    def text(self) -> str:
        """The coordinator key, by which Kafka looks for the partition of the topic that has its records."""
        return f"{self.group}:{id_text(self.topic_id)}:{self.partition}"


class Header(NamedTuple):
    """All that a record says of a share partition beside its batches."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    finished: int
    """Offsets from the start on that are acknowledged or archived; NO_COUNT without a start."""


def encode_keys(key: PartitionKey) -> tuple[bytes, bytes]:
    """The keys of snapshots and of updates of a share partition."""
    rest = write_message(_snapshot_key(key), 0)
    return VERSION.pack(SNAPSHOT) + rest, VERSION.pack(UPDATE) + rest


def tombstone(key: PartitionKey) -> Record:
    """The record that ends a share partition."""
    return Record(_snapshot_key(key), SNAPSHOT, None)


def _snapshot_key(key: PartitionKey) -> messages.ShareSnapshotKey:
    return messages.ShareSnapshotKey(group_id=key.group, topic_id=key.topic_id, partition=key.partition)


def encode_update(header: Header, batches: Sequence[StateBatch]) -> list[bytes]:
    """The values of an update, mostly one: ``batches`` are those that have changed."""
    start = _UPDATE.pack(0, header.snapshot_epoch, header.leader_epoch, header.start_offset)
    parts = [batches[at : at + BATCHES_MAX] for at in range(0, len(batches) or 1, BATCHES_MAX)]
    return [start + _encode_rest(header.finished, part) for part in parts]


def encode_snapshot(header: Header, times: tuple[int, int], batches: Sequence[StateBatch]) -> list[bytes]:
    """The values of a snapshot, and of updates with the batches that it cannot hold.

    ``times`` are when it was created and when it is written, ms: see ``SharePartition.snapshot``.
    """
    snapshot_epoch, state_epoch, leader_epoch, start_offset, finished = header
    start = _SNAPSHOT.pack(0, snapshot_epoch, state_epoch, leader_epoch, start_offset, *times)
    rest = batches[BATCHES_MAX:]
    return [start + _encode_rest(finished, batches[:BATCHES_MAX]), *(encode_update(header, rest) if rest else ())]


def _encode_rest(finished: int, batches: Sequence[StateBatch]) -> bytes:
    tagged = b"\0" if finished == NO_COUNT else _COUNT.pack(1, 0, 4, finished)
    return varint(len(batches) + 1) + b"".join([_BATCH.pack(*batch) for batch in batches]) + tagged


class ShareReplay(Replay):
    """The replayed part of ``__share_group_state``: of each share partition its snapshot, merged with its updates."""

    def __init__(self) -> None:
        super().__init__(KINDS)
        self.states: dict[PartitionKey, WrittenState] = {}
        """The states when it has caught up."""
        self._unread: dict[bytes, list[tuple[bytes, bytes | None]]] = {}
        """Keys and values from the last snapshot on, by their keys without the type: what was before is of no use."""
        self._unread_count = 0

    def read(self, header: BatchHeader, records: Iterable[LogRecord]) -> Steps[None]:
        """Take in records of one batch, most of them without a look at their values: the next snapshot replaces them.

        So a start after very many acknowledgements takes a third of the time.
        """
        unread = self._unread
        for record in records:
            key, value = record.key or b"", record.value
            kind, of_partition = key[: VERSION.size], key[VERSION.size :]
            if kind == _SNAPSHOT_KEY and (value is None or value.startswith(_KNOWN)):
                self._unread_count += 1 - len(unread.get(of_partition, ()))
                unread[of_partition] = [(key, value)]
            elif kind in (_SNAPSHOT_KEY, _UPDATE_KEY):
                self._unread_count += 1
                unread.setdefault(of_partition, []).append((key, value))
            else:
                yield from super().read(header, (record,))
        if self._unread_count > UNREAD_MAX:
            yield from self.catch_up()

    def catch_up(self) -> Steps[None]:
        """Take in the values that were not looked at yet."""
        pace = Pace()
        for records in self._unread.values():
            for key, value in records:
                yield from self.take(key, value)
                if pace.is_due():
                    yield
        self._unread.clear()
        self._unread_count = 0

    def apply(self, record: Record) -> None:
        """Take in a record that counts. A snapshot replaces what came before it; no epoch is compared.

        Raises UnknownRecordError for the tombstone of an update: Kafka writes those of snapshots.
        """
        assert isinstance(record.key, messages.ShareSnapshotKey | messages.ShareUpdateKey)
        key = PartitionKey(record.key.group_id, record.key.topic_id, record.key.partition)
        value = record.value
        if isinstance(value, messages.ShareSnapshotValue):
            self.states[key] = WrittenState(value)
            self.states[key].take(key, value)
        elif isinstance(value, messages.ShareUpdateValue):
            if key not in self.states:
                self.states[key] = WrittenState(messages.ShareSnapshotValue())
            self.states[key].take(key, value)
        elif record.key_version == SNAPSHOT:
            self.states.pop(key, None)
        else:
            raise UnknownRecordError("tombstones of updates are not known here")


class WrittenState:
    """The sum of what the records of one share partition say so far."""

    __slots__ = ("header", "runs", "times")

    def __init__(self, snapshot: messages.ShareSnapshotValue) -> None:
        self.header = Header(snapshot.snapshot_epoch, snapshot.state_epoch, snapshot.leader_epoch, NO_OFFSET, NO_COUNT)
        self.times = snapshot.create_timestamp, snapshot.write_timestamp
        self.runs = Runs()

    def take(self, key: PartitionKey, value: messages.ShareSnapshotValue | messages.ShareUpdateValue) -> None:
        """Take in start and batches. Batches that cannot be are left out, or cut, and logged."""
        known = self.header
        start = known.start_offset if value.start_offset == NO_OFFSET else value.start_offset
        leader_epoch = known.leader_epoch if value.leader_epoch == NO_OFFSET else value.leader_epoch
        self.header = known._replace(
            start_offset=start, leader_epoch=leader_epoch, finished=value.delivery_complete_count
        )
        self.runs.drop_before(start)
        wrong = 0
        for batch in value.state_batches:
            first, last, state = batch.first_offset, batch.last_offset, batch.delivery_state
            if start == NO_OFFSET or last < first or not AVAILABLE <= state <= ARCHIVED or batch.delivery_count < 0:
                wrong += 1
                continue
            wrong += first < start
            if last >= start:
                self.runs.overlay(
                    max(first, start), last, AVAILABLE if state == ACQUIRED else state, batch.delivery_count
                )
        if wrong:
            log.warning(
                "share_state_repaired",
                group=key.group,
                topic_id=id_text(key.topic_id),
                partition=key.partition,
                start_offset=start,
                batches=wrong,
                consequence="what they say is not known: records may be delivered again",
            )
