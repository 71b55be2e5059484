"""Requests about committed offsets: they are stored, looked up and deleted; and those committed in transactions."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime, Waiting
from seglog_broker.coordinators.groups.committed_offsets import (
    Committed,
    CommittedOffset,
    CommittedOffsets,
    Committer,
    Key,
    OffsetToCommit,
    Pending,
    Retention,
)
from seglog_broker.coordinators.groups.group_memory import OFFSET_BYTES, PENDING_BYTES, Budget
from seglog_broker.coordinators.groups.records import encode_commit, encode_tombstone
from seglog_broker.coordinators.groups.service.machines import Group
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.topic import Encoded, StateTopic
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Scheduler, Service
from seglog_broker.runtime import budget
from seglog_protocol import errors

OFFSETS_A_WRITE: Final = 200
"""Offsets that are written together, and handled before other tasks run."""

LINES_AN_HOUR: Final = 100
"""Lines in the log about commits beyond the end of a log; a partition of a group has one an hour."""

log = get_logger()

_NOTHING: Final[dict[Key, CommittedOffset]] = {}

_READER_OF_ANOTHER: Final = "what was read belongs to the former one: read the new one with a new consumer"


@dataclass(eq=False, repr=False)
class OffsetService(Service):
    """The committed offsets of all groups."""

    _runtime: CoordinatorRuntime[Group]
    _topic: StateTopic
    _check_group: Callable[[str], None]  # raises the error of any request about a group at the moment

    def __post_init__(self) -> None:
        self.committed = CommittedOffsets()
        self.unsettled: dict[str, dict[Key, CommittedOffset]] = {}
        """By group: offsets that are not answered yet. The logs of some are being recovered, and may end before them;
        others were set back, and are answered when that is durable."""
        self._memory = Budget(
            "seglog.offsets.memory.bytes", "committed offsets", lambda: self._config.current.seglog_offsets_memory_bytes
        )
        self.transactions = TransactionalOffsets(self.committed, self._topic, self._scheduler, self.is_gone)
        self._under_way: Counter[tuple[str, Key]] = Counter()  # commits that are being written
        self._warned: set[tuple[str, Key]] = set()  # of commits beyond the log end
        self._warned_from = 0.0  # loop time

    # --- Commits ------------------------------------------------------------------------------------------------------

    async def commit(
        self,
        group: str,
        committer: Committer,
        offsets: Sequence[OffsetToCommit],
        transaction: ProducerIdAndEpoch | None = None,
    ) -> list[errors.SeglogError | None]:
        """Store offsets; returns when they are durable, with an error or None for each, in order.

        Those of a ``transaction`` count when it is committed; see ``StateTopic.append`` for its errors.
        Raises UnknownMemberError, IllegalGenerationError and their like for all of them.
        """
        self._check_group(group)
        self._check_committer(group, committer, offsets, transaction)
        results: list[errors.SeglogError | None] = []
        for begin in range(0, len(offsets), OFFSETS_A_WRITE):
            if begin:
                await self._scheduler.turn()
            results += await self._commit_some(group, offsets[begin : begin + OFFSETS_A_WRITE], transaction)
        return results

    async def _commit_some(
        self, group: str, offsets: Sequence[OffsetToCommit], transaction: ProducerIdAndEpoch | None
    ) -> list[errors.SeglogError | None]:
        """As ``commit``, for offsets that are written as one append."""
        results: list[errors.SeglogError | None] = [None] * len(offsets)
        now = self._runtime.now()
        records: list[Encoded] = []
        stored: list[tuple[Key, CommittedOffset]] = []
        places: list[int] = []
        taken = 0  # bytes of those before it
        for number, wanted in enumerate(offsets):
            try:
                topic_id = self._check(group, wanted)
                committed = CommittedOffset(
                    wanted.offset, wanted.leader_epoch, wanted.metadata, now.wall_ms, topic_id=topic_id
                )
                key = wanted.topic, wanted.partition
                taken += self._check_memory(group, key, committed, transaction, taken)
            except errors.SeglogError as error:
                results[number] = errors.without_frames(error)
                continue
            self._warn_beyond_end(group, key, wanted.offset)
            records.append(encode_commit(group, key, committed))
            stored.append((key, committed))
            places.append(number)
        if not records:
            return results
        self._under_way.update((group, key) for key, _ in stored)
        waiting: Waiting[None] = Waiting()
        keep: Callable[[errors.SeglogError | None], None] = partial(self._keep, group, stored)
        if transaction is not None:
            keep = self.transactions.begin(transaction, group, stored)

        def note_committed(error: errors.SeglogError | None) -> None:
            for key, _ in stored:
                self._under_way[group, key] -= 1
                if not self._under_way[group, key]:
                    del self._under_way[group, key]
            keep(error)
            waiting.settle(error)

        self._topic.append(group, records, note_committed, transaction)
        try:
            await waiting.wait()
        except errors.SeglogError as error:
            for number in places:
                results[number] = errors.without_frames(error)
        return results

    def _check_memory(
        self, group: str, key: Key, committed: CommittedOffset, transaction: ProducerIdAndEpoch | None, taken: int
    ) -> int:
        """The bytes that an offset takes, beside ``taken``; raises CoordinatorNotAvailableError if there is no room."""
        before = self.committed.of(group).get(key) if transaction is None else None
        size = self.committed.size_of(group, key, committed) + (PENDING_BYTES - OFFSET_BYTES) * (
            transaction is not None
        )
        if before is not None:
            size -= self.committed.size_of(group, key, before)
        self._memory.note("", self.committed.size)
        self._memory.check(group, size + taken, is_new=before is None)
        return size

    def _keep(
        self, group: str, stored: Sequence[tuple[Key, CommittedOffset]], error: errors.SeglogError | None
    ) -> None:
        """Note what was committed outside of transactions."""
        if error is None:
            for key, committed in stored:
                if not self.is_gone(key[0], committed):  # else the topic was deleted in between
                    self.committed.put(group, key, committed)

    def _check_committer(
        self,
        group: str,
        committer: Committer,
        offsets: Iterable[OffsetToCommit],
        transaction: ProducerIdAndEpoch | None,
    ) -> None:
        """Raise the error of one who may not commit, or not all of these offsets: as in Kafka, none of them then."""
        known = self._runtime.machines.get(group)
        if known is not None:
            member_id, generation, instance_id = committer
            now = self._runtime.now()
            in_transaction = transaction is not None
            check = known.check_commit(member_id, generation, instance_id, now, in_transaction=in_transaction)
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

    def _check(self, group: str, wanted: OffsetToCommit) -> str:
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

    # --- Looked up ----------------------------------------------------------------------------------------------------

    def topics_of(self, group: str, committer: Committer | None = None) -> dict[str, list[int]]:
        """The partitions, ascending, by topic, for which ``look_up`` may find a committed offset."""
        self._check_group(group)
        self._check_fetch(group, committer)
        numbers: dict[str, list[int]] = {}
        for topic, number in self.committed.of(group):
            numbers.setdefault(topic, []).append(number)
        return {topic: sorted(numbers[topic]) for topic in sorted(numbers)}

    def _check_fetch(self, group: str, committer: Committer | None) -> None:
        known = self._runtime.machines.get(group)
        if committer is not None and known is not None:
            known.check_fetch(committer.member_id, committer.generation, committer.instance_id)

    def look_up(
        self, group: str, partitions: Sequence[tuple[str, int]] | None, committer: Committer | None = None
    ) -> list[Committed]:
        """The committed offsets of partitions, in their order; None: of all, by topic and number.

        ``committer`` is checked if there is one. An unknown group has committed nothing.
        """
        self._check_group(group)
        self._check_fetch(group, committer)
        kept = self.committed.of(group)
        unsettled = self.unsettled.get(group, _NOTHING)
        retention = self.retention(group)
        found: list[Committed] = []
        for topic, number in sorted(kept) if partitions is None else partitions:
            stored = kept.get((topic, number))
            is_unstable = self.transactions.is_unstable(group, (topic, number))
            if stored is None or self.is_gone(topic, stored):
                if partitions is not None:
                    found.append(Committed(topic, number, is_unstable=is_unstable))
            elif unsettled.get((topic, number)) is stored:
                raise errors.CoordinatorLoadingError(
                    f"what group {group} committed for {topic}-{number} is being compared with its log: ask again",
                    group=group,
                )
            else:
                expires_ms = retention.expires_ms(topic, stored)
                found.append(Committed(topic, number, *stored[:4], expires_ms, is_unstable))
        return found

    def is_under_way(self, group: str, key: Key) -> bool:
        """True while a commit is being written: a tombstone of the offset before must not be written behind it."""
        return (group, key) in self._under_way

    def is_gone(self, topic: str, committed: CommittedOffset) -> bool:
        """True if the topic was deleted since, also where another one has its name now."""
        known = self._table.find_topic(topic)
        return known is None or committed.topic_id not in {"", known.id}

    def retention(self, group: str) -> Retention:
        """Decides when the offsets of ``group`` expire."""
        known = self._runtime.machines.get(group)
        retention_ms = self._config.current.offsets_retention_minutes * 60_000
        if known is None:
            return Retention(retention_ms, is_empty=True, empty_since_ms=None, read_topics=None)
        return Retention(
            retention_ms,
            is_empty=known.is_empty,
            empty_since_ms=known.empty_since_ms if known.protocol_type else None,
            read_topics=known.subscribed_topics,
        )

    def expires_ms(self, group: str) -> int | None:
        """When the last offset of a group expires, as things stand; None: not, or there is none."""
        retention = self.retention(group)
        moments = [retention.expires_ms(topic, stored) for (topic, _), stored in self.committed.of(group).items()]
        known = [moment for moment in moments if moment is not None]
        return max(known) if known and len(known) == len(moments) else None

    # --- Deleted ------------------------------------------------------------------------------------------------------

    async def delete(self, group: str, partitions: Sequence[tuple[str, int]]) -> list[errors.SeglogError | None]:
        """As ``GroupService.delete_offsets``, for a group that is loaded and known."""
        read = self.retention(group)
        results: list[errors.SeglogError | None] = []
        forgotten: dict[Key, None] = {}
        for topic, number in partitions:
            if len(results) % OFFSETS_A_WRITE == OFFSETS_A_WRITE - 1:
                await self._scheduler.turn()
            if read.may_be_read(topic):
                results.append(
                    errors.GroupSubscribedError(
                        f"members of group {group} read topic {topic}: stop them first", group=group, topic=topic
                    )
                )
                continue
            results.append(None)
            if (topic, number) in self.committed.of(group) or self.committed.is_unstable(group, (topic, number)):
                forgotten[topic, number] = None
        await self.forget(group, list(forgotten))
        return results

    async def forget(self, group: str, keys: Sequence[Key]) -> None:
        """Forget offsets; return when that is durable. Raises CoordinatorNotAvailableError."""
        async for some in self._scheduler.parts(keys, OFFSETS_A_WRITE):
            waiting: Waiting[None] = Waiting()
            tombstones = [encode_tombstone(group, key) for key in some]
            self._topic.append(group, tombstones, partial(self._note_forgotten, group, some, waiting))
            await waiting.wait()

    def _note_forgotten(
        self, group: str, keys: Sequence[Key], waiting: Waiting[None], error: errors.SeglogError | None
    ) -> None:
        for key in keys if error is None else ():
            self.committed.drop(group, key)
        waiting.settle(error)


ENDED_A_TURN: Final = budget.items_of(cost=5)
"""Offsets of a transaction that are ended before other tasks run."""

_Writer = tuple[int, int]
"""A producer id, and a partition of the topic."""


@dataclass(slots=True, eq=False)
class _Commit:
    """Offsets of a group that are being written; ``is_commit`` is how their transaction has ended, None if it is open.

    It may end before: the marker is behind them in the log, but is called back for earlier.
    """

    group: str
    stored: Sequence[tuple[Key, CommittedOffset]]
    is_commit: bool | None = None


class Ended(NamedTuple):
    """What counts since a transaction is committed: what was loaded after the last start, by group.

    ``has_orphans`` is whether some of all that counts is for topics that were deleted.
    """

    loaded: Mapping[str, Mapping[Key, CommittedOffset]]
    has_orphans: bool


@dataclass(eq=False, repr=False)
class TransactionalOffsets:
    """The commits of transactions that are being written, and what becomes of those that are durable."""

    _committed: CommittedOffsets
    _topic: StateTopic
    _scheduler: Scheduler
    _is_gone: Callable[[str, CommittedOffset], bool]  # whether the topic of an offset was deleted

    def __post_init__(self) -> None:
        self._writing: dict[_Writer, dict[_Commit, None]] = {}
        self._keys: Counter[tuple[str, Key]] = Counter()  # of what is being written

    def is_unstable(self, group: str, key: Key) -> bool:
        """True if an open transaction has committed an offset here, or is about to."""
        return self._committed.is_unstable(group, key) or (group, key) in self._keys

    def begin(
        self, transaction: ProducerIdAndEpoch, group: str, stored: Sequence[tuple[Key, CommittedOffset]]
    ) -> Callable[[errors.SeglogError | None], None]:
        """Offsets are to be written; call what this returns when they are durable, or cannot be."""
        commit = _Commit(group, stored)
        writer = transaction.producer_id, self._topic.partition_of(group)
        self._writing.setdefault(writer, {})[commit] = None
        self._keys.update((group, key) for key, _ in stored)
        return partial(self._note_written, writer, commit)

    def _note_written(self, writer: _Writer, commit: _Commit, error: errors.SeglogError | None) -> None:
        del self._writing[writer][commit]
        if not self._writing[writer]:
            del self._writing[writer]
        producer_id, _ = writer
        for key, committed in commit.stored:
            self._keys[commit.group, key] -= 1
            if not self._keys[commit.group, key]:
                del self._keys[commit.group, key]
            if error is None:
                self._committed.hold(producer_id, commit.group, key, Pending(committed))
        if error is None and commit.is_commit is not None:
            for _ in self._committed.end_transaction(producer_id, commit.group, is_commit=commit.is_commit):
                pass

    async def end(self, partition: int, producer_id: int, *, is_commit: bool) -> Ended:
        """End a producer's transaction in a partition of the topic, where its marker is durable."""
        for commit in self._writing.get((producer_id, partition), ()):
            commit.is_commit = is_commit
        loaded: dict[str, dict[Key, CommittedOffset]] = {}
        has_orphans = False
        count = 0
        for group in self._committed.pending.groups_of(producer_id):
            if self._topic.partition_of(group) != partition:
                continue
            for counting in self._committed.end_transaction(producer_id, group, is_commit=is_commit):
                if counting is not None:
                    key, pending = counting
                    has_orphans = has_orphans or self._is_gone(key[0], pending.committed)
                    if pending.is_loaded:
                        loaded.setdefault(group, {})[key] = pending.committed
                count += 1
                if count % ENDED_A_TURN == 0:
                    await self._scheduler.turn()
        return Ended(loaded, has_orphans)
