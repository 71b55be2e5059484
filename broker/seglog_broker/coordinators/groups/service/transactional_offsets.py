"""Offsets that are committed in transactions, from when they are written until their transaction ends."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset, CommittedOffsets, Key, Pending
from seglog_broker.coordinators.records import ProducerIdAndEpoch
from seglog_broker.coordinators.topic import StateTopic
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime import budget
from seglog_protocol.errors import SeglogError

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
    ) -> Callable[[SeglogError | None], None]:
        """Offsets are to be written; call what this returns when they are durable, or cannot be."""
        commit = _Commit(group, stored)
        writer = transaction.producer_id, self._topic.partition_of(group)
        self._writing.setdefault(writer, {})[commit] = None
        self._keys.update((group, key) for key, _ in stored)
        return partial(self._note_written, writer, commit)

    def _note_written(self, writer: _Writer, commit: _Commit, error: SeglogError | None) -> None:
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
