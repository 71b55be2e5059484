"""Commits of offsets: checked, written to ``__consumer_offsets``, and kept when they are durable."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.groups.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
    Committer,
    Key,
    OffsetToCommit,
    Pending,
)
from seglog_broker.coordinators.groups.group_memory import OFFSET_BYTES, PENDING_BYTES, Budget
from seglog_broker.coordinators.groups.records import encode_commit
from seglog_broker.coordinators.groups.service.machines import Group
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.topic import Encoded, StateTopic
from seglog_broker.logger import get_logger
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.runtime.begun import Signal
from seglog_broker.runtime.live_config import LiveConfig
from seglog_protocol import errors

LINES_AN_HOUR: Final = 100
"""Lines in the log about commits beyond the end of a log; a partition of a group has one an hour."""

log = get_logger()

_READER_OF_ANOTHER: Final = "what was read belongs to the former one: read the new one with a new consumer"


class Commit:
    """Offsets of a group that are written as one append; ``stored`` are those that no check has refused.

    Its ``transaction`` may end before it is called back for: the marker is behind it in the log. ``is_commit`` is how
    that has ended, None if it is open.
    """

    __slots__ = ("_places", "ended", "group", "is_commit", "results", "stored", "transaction")

    def __init__(self, group: str, offsets: int, transaction: ProducerIdAndEpoch | None) -> None:
        self.group = group
        self.transaction = transaction
        self.results: list[errors.SeglogError | None] = [None] * offsets
        """The error, or None, of each offset: when ``ended`` is set."""
        self.ended = Signal()
        self.stored: list[tuple[Key, CommittedOffset]] = []
        self.is_commit: bool | None = None
        self._places: list[int] = []  # of those stored

    def store(self, place: int, key: Key, committed: CommittedOffset) -> None:
        """Add the offset that was asked for at ``place``."""
        self.stored.append((key, committed))
        self._places.append(place)

    def end(self, error: errors.SeglogError | None) -> None:
        """Tell all that were stored of their end."""
        if error is not None:
            for place in self._places:
                self.results[place] = errors.without_frames(error)
        self.ended.set()


@dataclass(eq=False, repr=False)
class Commits:
    """The commits that are being written."""

    _config: LiveConfig
    _table: PartitionTable
    _runtime: CoordinatorRuntime[Group]
    _topic: StateTopic
    _committed: CommittedOffsets

    def __post_init__(self) -> None:
        self._memory = Budget(
            "seglog.offsets.memory.bytes", "committed offsets", lambda: self._config.current.seglog_offsets_memory_bytes
        )
        self._under_way: dict[tuple[str, Key], int] = {}  # how many for a partition
        self._pending: dict[tuple[str, Key], int] = {}  # those of transactions among them
        self._by_writer: dict[tuple[int, int], dict[Commit, None]] = {}  # the same, by producer id and partition
        self._warned: set[tuple[str, Key]] = set()  # of commits beyond the log end
        self._warned_from = 0.0  # loop time

    def is_under_way(self, group: str, key: Key) -> bool:
        """True while a commit is being written: a tombstone of the offset before must not be written behind it."""
        return (group, key) in self._under_way

    def is_unstable(self, group: str, key: Key) -> bool:
        """True if an open transaction has committed an offset here, or is about to."""
        return self._committed.is_unstable(group, key) or (group, key) in self._pending

    def note_ended(self, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """Note how a transaction has ended, of which some may be."""
        for commit in self._by_writer.get((producer_id, partition), ()):
            commit.is_commit = is_commit

    def is_gone(self, topic: str, committed: CommittedOffset) -> bool:
        """True if the topic was deleted since, also where another one has its name now."""
        known = self._table.find_topic(topic)
        return known is None or committed.topic_id not in {"", known.id}

    def begin(self, group: str, offsets: Sequence[OffsetToCommit], transaction: ProducerIdAndEpoch | None) -> Commit:
        """Have offsets written; see ``OffsetService.commit``."""
        commit = Commit(group, len(offsets), transaction)
        now = self._runtime.now()
        records: list[Encoded] = []
        taken = 0  # bytes of those before it
        for place, wanted in enumerate(offsets):
            try:
                topic_id = self._check_offset(group, wanted)
                committed = CommittedOffset(
                    wanted.offset, wanted.leader_epoch, wanted.metadata, now.wall_ms, topic_id=topic_id
                )
                key = wanted.topic, wanted.partition
                taken += self._check_memory(commit, key, committed, taken)
            except errors.SeglogError as error:
                commit.results[place] = errors.without_frames(error)
                continue
            self._warn_beyond_end(group, key, wanted.offset)
            records.append(encode_commit(group, key, committed))
            commit.store(place, key, committed)
        if not records:
            commit.end(None)
            return commit
        for key, _ in commit.stored:  # now that none can fail
            _count(self._under_way, (group, key), 1)
            if transaction is not None:
                _count(self._pending, (group, key), 1)
        if transaction is not None:
            self._by_writer.setdefault((transaction.producer_id, self._topic.partition_of(group)), {})[commit] = None
        self._topic.append(group, records, lambda error: self._note_written(commit, error), transaction)
        return commit

    def _note_written(self, commit: Commit, error: errors.SeglogError | None) -> None:
        group, transaction = commit.group, commit.transaction
        if transaction is not None:
            writer = transaction.producer_id, self._topic.partition_of(group)
            del self._by_writer[writer][commit]
            if not self._by_writer[writer]:
                del self._by_writer[writer]
        for key, committed in commit.stored:
            _count(self._under_way, (group, key), -1)
            if transaction is not None:
                _count(self._pending, (group, key), -1)
            if error is None and transaction is not None:
                self._committed.hold(transaction.producer_id, group, key, Pending(committed))
            elif error is None and not self.is_gone(key[0], committed):  # else the topic was deleted in between
                self._committed.put(group, key, committed)
        if error is None and transaction is not None and commit.is_commit is not None:
            for _ in self._committed.end_transaction(transaction.producer_id, group, is_commit=commit.is_commit):
                pass
        commit.end(error)

    def _check_memory(self, commit: Commit, key: Key, committed: CommittedOffset, taken: int) -> int:
        """The bytes that an offset takes, beside ``taken``; raises CoordinatorNotAvailableError if there is no room."""
        group = commit.group
        size, before = self._committed.size_of(group, key, committed), None
        if commit.transaction is not None:
            size += PENDING_BYTES - OFFSET_BYTES
        elif (before := self._committed.of(group).get(key)) is not None:
            size -= self._committed.size_of(group, key, before)
        self._memory.note("", self._committed.size)
        self._memory.check(group, size + taken, is_new=before is None)
        return size

    def check(
        self, group: str, committer: Committer, offsets: Iterable[OffsetToCommit], *, is_in_transaction: bool
    ) -> None:
        """Raise the error of one who may not commit, or not all of these offsets: as in Kafka, none of them then."""
        known = self._runtime.machines.get(group)
        if known is not None:
            member_id, generation, instance_id = committer
            now = self._runtime.now()
            check = known.check_commit(member_id, generation, instance_id, now, in_transaction=is_in_transaction)
            self._runtime.carry_out(group)
            if check is not None:
                for offset in offsets:
                    # An error is the result for this one alone.
                    with suppress(errors.UnknownTopicError, errors.UnknownPartitionError):
                        topic = self._table.topic_with(offset.topic, offset.partition)
                        check(id_bytes(topic.id), offset.partition)
        elif committer.generation >= 0:
            raise errors.IllegalGenerationError(
                f"group {group} has no generation {committer.generation}: it has no members; join it again", group=group
            )

    def _check_offset(self, group: str, wanted: OffsetToCommit) -> str:
        """The id of the topic. Raises the error of an offset that cannot be committed."""
        topic = self._table.topic_with(wanted.topic, wanted.partition)
        if wanted.topic_id not in {"", topic.id}:
            raise self._table.another_topic(wanted.topic, wanted.partition, _READER_OF_ANOTHER)
        limit = self._config.current.offset_metadata_max_bytes
        size = len(wanted.metadata.encode("utf-8", "surrogatepass")) if len(wanted.metadata) * 4 > limit else 0
        if size > limit:
            raise errors.MetadataTooLargeError(
                f"the text committed with {wanted.topic}-{wanted.partition} has {size:,} bytes; "
                f"offset.metadata.max.bytes is {limit:,}",
                group=group,
                size=size,
                limit=limit,
            )
        return topic.id

    def _warn_beyond_end(self, group: str, key: Key, offset: int) -> None:
        """Warn of a commit beyond the end of its log, which is taken, as in Kafka: once an hour for each partition.

        Nothing is known of a log out of service.
        """
        partition = self._table.find_readable(*key)
        if partition is None or offset <= (end := partition.log.log_end_offset):
            return
        now = trio.current_time()
        if now - self._warned_from >= 3_600:
            self._warned.clear()
            self._warned_from = now
        if len(self._warned) < LINES_AN_HOUR and (group, key) not in self._warned:
            self._warned.add((group, key))
            log.warning(
                "committed_beyond_log_end",
                group=group,
                topic=key[0],
                partition=key[1],
                offset=offset,
                log_end_offset=end,
                consequence="a member that begins there goes on where its own settings say, at the latest or earliest "
                "record; after a restart of the broker the group goes on at the end of the log",
            )


def _count(counts: dict[tuple[str, Key], int], key: tuple[str, Key], more: int) -> None:
    count = counts.get(key, 0) + more
    if count:
        counts[key] = count
    else:
        del counts[key]
