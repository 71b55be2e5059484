"""Requests about committed offsets: they are stored, looked up and deleted; and those committed in transactions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.decisions import Waiting
from seglog_broker.coordinators.groups.committed_offsets import (
    Committed,
    CommittedOffset,
    CommittedOffsets,
    Committer,
    Key,
    OffsetToCommit,
    Retention,
)
from seglog_broker.coordinators.groups.records import encode_tombstone
from seglog_broker.coordinators.groups.service.commits import Commits
from seglog_broker.coordinators.groups.service.machines import Group
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.topic import StateTopic
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_protocol import errors

OFFSETS_A_WRITE: Final = 200
"""Offsets that are written together, and handled before other tasks run."""

ENDED_A_TURN: Final = budget.items_of(cost=5)
"""Offsets of a transaction that are ended before other tasks run."""

_NOTHING: Final[dict[Key, CommittedOffset]] = {}


class Ended(NamedTuple):
    """What counts since a transaction is committed: what was loaded after the last start, by group.

    ``has_orphans`` is whether some of all that counts is for topics that were deleted.
    """

    loaded: Mapping[str, Mapping[Key, CommittedOffset]]
    has_orphans: bool


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
        self._commits = Commits(self._config, self._table, self._runtime, self._topic, self.committed)
        self.is_under_way = self._commits.is_under_way
        self.is_gone = self._commits.is_gone

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
        self._commits.check(group, committer, offsets, is_in_transaction=transaction is not None)
        results: list[errors.SeglogError | None] = []
        for begin in range(0, len(offsets), OFFSETS_A_WRITE):
            if begin:
                await self._scheduler.turn()
            commit = self._commits.begin(group, offsets[begin : begin + OFFSETS_A_WRITE], transaction)
            await commit.ended.wait()
            results += commit.results
        return results

    async def end_transaction(self, partition: int, producer_id: int, *, is_commit: bool) -> Ended:
        """End a producer's transaction in a partition of the topic, where its marker is durable."""
        self._commits.note_ended(partition, producer_id, is_commit=is_commit)
        loaded: dict[str, dict[Key, CommittedOffset]] = {}
        has_orphans = False
        count = 0
        for group in self.committed.pending.groups_of(producer_id):
            if self._topic.partition_of(group) != partition:
                continue
            for counting in self.committed.end_transaction(producer_id, group, is_commit=is_commit):
                if counting is not None:
                    key, pending = counting
                    has_orphans = has_orphans or self.is_gone(key[0], pending.committed)
                    if pending.is_loaded:
                        loaded.setdefault(group, {})[key] = pending.committed
                count += 1
                if count % ENDED_A_TURN == 0:
                    await self._scheduler.turn()
        return Ended(loaded, has_orphans)

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
            is_unstable = self._commits.is_unstable(group, (topic, number))
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
