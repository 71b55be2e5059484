"""Cuts: one moment of the whole broker, captured in one turn of the loop, and told when all of it is on the disk.

Whatever is acknowledged is appended before, and every record that refers to another one (a committed offset, the state
of a share group, a decision about a transaction) is appended after that. So the files, as long as they are in the turn
of the cut, are what a ``kill -9`` in that turn would leave, and are opened by the same recovery. Nothing waits for it.

A cut waits until it survives a power cut, so that a copy of it is never ahead of its broker. A partition whose files
cannot be synced holds up no other: of it the cut has what is known to be on the disk.
"""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Final, cast

import trio

from seglog_broker.backup.agent_messages import Cut, PartitionCut, pieces_of
from seglog_broker.partitions.durability import wait_durable
from seglog_broker.partitions.feed import Feed
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import states_of
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_protocol.errors import PartitionReadOnlyError, SeglogError, StorageError, UnknownTopicError

PARTITION_COST: Final = 3.0
"""Microseconds to encode a partition."""
BASE_COST: Final = 0.05
"""For each of its segments."""

ENCODED_AT_ONCE: Final = 500
"""Partitions in one piece of a line, of which others get their turns between any two."""

SYNCED_AT_ONCE: Final = 100
"""Partitions of a cut that join one round of group commit, at most, so that a round stays short for everybody."""

RETRY_SECONDS: Final = 1.0
"""Between two looks at what a cut waits for."""

START, END, SIZE, REMOVALS, COUNT, FIELDS = range(6)
"""Places in the numbers of a partition, see ``states_of``."""


@dataclass(slots=True, eq=False)
class Moment:
    """The state that a cut captured."""

    number: int
    at_ms: int
    at: float
    """By the loop's clock."""
    records: int
    size: int
    """Appended until then, by the feed."""
    is_whole: bool
    partitions: list[Partition]
    gone: list[tuple[str, int]]
    offline: tuple[tuple[str, int], ...]
    topics: dict[str, Topic]
    has_other_topics: bool
    states: list[int]
    """Of the partitions, as ``states_of`` has them."""

    def end_of(self, place: int) -> int:
        """The log end of a partition, by its place; -1: what the destination has of it stays."""
        return self.states[place * FIELDS + END]


@dataclass(eq=False, repr=False)
class CutMaker(Service):
    """Makes the cuts of a broker for the one who follows its feed."""

    _feed: Feed

    def __post_init__(self) -> None:
        self.left_behind: dict[Partition, str] = {}
        """Partitions of which cuts do not have everything, and a sentence about each."""
        self.waits_for: str | None = None
        """The reason why the next cut waits, if that may take long."""
        self._sent: dict[Partition, tuple[int, int]] = {}  # removals and count of the segments that were told
        self._topics: dict[str, Topic] = {}
        self._topic_changes = -1  # when they were those

    def begin(self) -> None:
        """The next cut has everything, for another one who follows."""
        self._feed.begin()
        self._sent.clear()
        self.left_behind.clear()
        self._topic_changes = -1

    async def cut(self, *, is_whole: bool = False) -> Moment:
        """The present moment, when it is durable; of all partitions, or of those that have changed since the last."""
        await self._wait_for_recoveries()
        moment = self.capture(is_whole=is_whole)
        await self._make_durable(moment)
        return moment

    def capture(self, *, is_whole: bool = False) -> Moment:
        """The present moment, in one turn of the loop."""
        feed, topics = self._feed, self._directory.registry.topics
        is_whole = is_whole or feed.has_lost
        changed, gone = feed.take()
        partitions = list(self._table.values()) if is_whole else cast("list[Partition]", changed)
        has_other_topics = is_whole or topics.changes != self._topic_changes
        if has_other_topics:
            self._topics, self._topic_changes = dict(topics), topics.changes
        offline = *self._directory.report.offline, *(recovery.key for recovery in self._recoveries.without_room)
        return Moment(
            feed.number,
            self._clock_trust.now_ms(),  # old moments are removed by it
            trio.current_time(),
            feed.records,
            feed.size,
            is_whole,
            partitions,
            [] if is_whole else gone,
            offline if is_whole else (),
            self._topics,
            has_other_topics,
            states_of(partitions),
        )

    async def pieces(self, moment: Moment) -> AsyncGenerator[bytes, None]:
        """The line of a durable moment for who follows, in pieces, with turns of others between them."""
        turns = budget.Turns(self._scheduler.turn)
        registry = None
        if moment.has_other_topics:
            registry = self._directory.registry.content_of(moment.topics).decode()
        if moment.gone or moment.is_whole:
            self._sent = {partition: told for partition, told in self._sent.items() if not partition.is_deleted}
            self.left_behind = {
                partition: why for partition, why in self.left_behind.items() if not partition.is_deleted
            }
        kept = [*moment.offline]
        parts: list[list[PartitionCut]] = [[]]
        for place, partition in enumerate(moment.partitions):
            topic = moment.topics.get(partition.topic)
            if topic is None or moment.end_of(place) < 0:
                kept.append((partition.topic, partition.number))
                continue
            start, end, size, removals, count = moment.states[place * FIELDS : (place + 1) * FIELDS]
            bases = self._bases(partition, removals, count, is_wanted=moment.is_whole)
            await turns.spend(PARTITION_COST + BASE_COST * len(bases or ()))
            if len(parts[-1]) == ENCODED_AT_ONCE:
                parts.append([])
            parts[-1].append(PartitionCut(partition.topic, partition.number, topic.id, start, end, size, bases))
        whole = Cut(moment.number, moment.at_ms, moment.is_whole, (), tuple(moment.gone), registry, tuple(kept))
        for piece in pieces_of(whole, parts):
            yield piece
            await turns.spend(budget.TURN)

    def _bases(self, partition: Partition, removals: int, count: int, *, is_wanted: bool) -> tuple[int, ...] | None:
        """The base offsets of a partition's segments then; None where who follows has them, unless ``is_wanted``.

        They are read later than in the turn of the cut, where that would take long. Where segments were removed
        meanwhile the partition counts as replaced, so that what is read by these is not believed.
        """
        if self._sent.get(partition) == (removals, count) and not is_wanted:
            return None
        segments = partition.log.segments
        if segments.removals != removals:
            partition.note_changed(is_replaced=True)
        self._sent[partition] = removals, count
        return tuple(segments.bases[:count])

    def replaced(self) -> tuple[tuple[str, int], ...]:
        """Topic and number of partitions whose files were replaced, or that are new, since the last cut.

        Those that are gone are among them: another topic of the name may be in the making.
        """
        found = cast("Iterable[Partition]", self._feed.replaced)
        return *((partition.topic, partition.number) for partition in found), *self._feed.gone

    async def _wait_for_recoveries(self) -> None:
        """Return when every partition is recovered that can be: the others wait for room on the disk."""
        while (left := len(self._recoveries) - self._recoveries.postponed) > 0:
            self.waits_for = f"{left} partitions are being recovered"
            await trio.sleep(RETRY_SECONDS)
        self.waits_for = None

    async def _make_durable(self, moment: Moment) -> None:
        """Return when the moment survives a power cut; what cannot is changed in it to what is on the disk."""
        await self._scheduler.turn()  # that of the cut is long enough
        waiting = [
            place
            for place, partition in enumerate(moment.partitions)
            if partition.log.offsets.durable_end < moment.end_of(place)
        ]
        for first in range(0, len(waiting), SYNCED_AT_ONCE):
            some = waiting[first : first + SYNCED_AT_ONCE]
            for place in some:
                partition = moment.partitions[place]
                if not partition.is_deleted and partition.log.durable_end_offset < moment.end_of(place):
                    partition.want_durable()
            for place in some:
                await self._sync(moment, place)

    async def _sync(self, moment: Moment, place: int) -> None:
        partition = moment.partitions[place]
        while True:
            try:
                await wait_durable(partition, moment.end_of(place))
            except UnknownTopicError:
                return  # deleted meanwhile, which the next cut says
            except PartitionReadOnlyError as error:
                await self._leave_behind(moment, place, error)
                return
            except StorageError as error:
                self.waits_for = error.message
                await trio.sleep(RETRY_SECONDS)
                self.waits_for = None
            else:
                self.left_behind.pop(partition, None)
                return

    async def _leave_behind(self, moment: Moment, place: int, error: SeglogError) -> None:
        """Have the moment end, in this partition, with what is known to be on the disk."""
        partition = moment.partitions[place]
        log, durable = partition.log, partition.log.durable_end_offset
        name = f"{partition.topic}-{partition.number}"
        self.left_behind[partition] = f"the backup has {name} up to offset {durable} alone: {error.message}"
        try:
            found = await self._scheduler.retry_after_cold_read(lambda: log.seek(max(durable, log.log_start_offset)))
        except (SeglogError, OSError):
            found = None
        first = place * FIELDS
        if found is None or found[1].header.base_offset != durable:
            moment.states[first + END] = -1
            return
        number, batch = found
        moment.states[first + END : first + FIELDS] = durable, batch.position, log.segments.removals, number + 1
