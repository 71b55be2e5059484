"""The group coordinator: the requests that listeners serve about groups, and the tasks behind them."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from seglog_broker.coordinators.decisions import Waiting
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.membership import GroupDescription, ListedGroup
from seglog_broker.coordinators.groups.records import GroupReplay
from seglog_broker.coordinators.groups.service.cleanup import OffsetClamp, OffsetExpiry, OrphanedOffsets
from seglog_broker.coordinators.groups.service.machines import Group, GroupMachines, MemberService, RegistryTopics
from seglog_broker.coordinators.groups.service.offsets import OffsetService
from seglog_broker.coordinators.groups.service.share_groups import ShareGroups
from seglog_broker.coordinators.groups.service.topic_matching import TopicMatching
from seglog_broker.coordinators.loader import StateLoader
from seglog_broker.coordinators.topic import StateTopic, TopicSettings
from seglog_broker.coordinators.topic_writer import TopicWriter
from seglog_broker.engine.append import AppendService
from seglog_broker.engine.topics import TopicService
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Common
from seglog_broker.runtime import budget
from seglog_broker.runtime.live_config import LiveConfig
from seglog_protocol.errors import (
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    InvalidGroupIdError,
    SeglogError,
    UnknownGroupError,
    without_frames,
)
from seglog_protocol.internal_topics import OFFSETS_TOPIC

GROUP_BYTES_MAX: Final = 32_767
"""The limit of a group's name: that of a string in Kafka's records."""

LISTED_COST: Final = 40
"""Microseconds to list a group, without its committed offsets."""

LISTED_OFFSET_COST: Final = 0.4
"""To look at a committed offset of it."""

GROUPS_A_TURN: Final = budget.items_of(cost=40)
"""Groups that are deleted before other tasks run."""

log = get_logger()


def offsets_topic_settings(live: LiveConfig) -> TopicSettings:
    """``__consumer_offsets`` as it is created."""
    config = live.current
    return TopicSettings(
        OFFSETS_TOPIC,
        "group",
        config.offsets_topic_num_partitions,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )


class GroupFacts(NamedTuple):
    """Of one group: its state as Kafka names it, its members, and the generations begun since the start."""

    state: str
    members: int
    rebalances: int


class GroupService:
    """All groups of a broker.

    Every method may raise a GroupError for the group as a whole: InvalidGroupIdError for an id that is too long,
    CoordinatorLoadingError while the state of the group is loaded, CoordinatorNotAvailableError where it cannot be
    written.

    The group with the empty id has offsets but no members, as in Kafka, where old consumers commit for it. It is
    committed for, looked up, described, listed and deleted; all other methods raise InvalidGroupIdError.
    """

    def __init__(self, common: Common, appends: AppendService, topics: TopicService) -> None:
        registry, scheduler = common.directory.registry, common.scheduler
        self._scheduler = scheduler
        settings = partial(offsets_topic_settings, common.config)
        self._topic = StateTopic(common.config, common.clock, common.table, settings, appends.append)
        self._writer = TopicWriter(self._topic, common.scheduler, topics.create)
        self._topics = RegistryTopics(registry)
        self._topic_ids = {name: topic.id for name, topic in registry.topics.items()}
        self._machines = GroupMachines(*common, self._topic, self._topics)
        self._runtime = self._machines.runtime
        self.memory = self._machines.memory
        self._matching = TopicMatching(self._runtime.machines, self._topics, scheduler)
        self._offsets = OffsetService(*common, self._runtime, self._topic, self.check)
        self.offsets: Final = self._offsets.committed
        """Those of all groups, not to be changed."""
        self.commit = self._offsets.commit
        self.committed = self._offsets.look_up
        self.committed_topics = self._offsets.topics_of
        self._orphans = OrphanedOffsets(*common, self._offsets, self._topic)
        self._clamp = OffsetClamp(*common, self._offsets, self._topic)
        self._expiry = OffsetExpiry(*common, self._runtime, self._offsets)
        self._loader = StateLoader(*common, self._topic, lambda: GroupReplay(self._topic_ids), self._keep)
        self.shares: Final = ShareGroups(
            *common, self._machines, self.check_named, lambda group: group in self._offsets.committed
        )
        """Share groups."""
        members = MemberService(*common, self._machines, self.check_named, self._matching.match_all)
        self.join = members.join
        self.sync = members.sync
        self.heartbeat = members.heartbeat
        self.leave = members.leave
        self.end_session = members.end_session
        self.rebalance = members.rebalance
        self.with_members = members.with_members
        self.consumer_heartbeat = members.consumer_heartbeat
        self.end_waits = self._runtime.end_waits
        self.write_decided = self._topic.write_wanted

    async def run(self) -> None:
        """Load groups, then write, expire and wake them, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._writer.run)
            nursery.start_soon(self._runtime.run_timers)
            nursery.start_soon(self._matching.run)
            await self._load()
            nursery.start_soon(self._clamp.run_later)
            nursery.start_soon(self._orphans.sweep.run)
            nursery.start_soon(self._expiry.run)
            nursery.start_soon(self.shares.run)

    # --- Loading ------------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._clamp.run, lambda: self._loader.is_loading)
            seconds = await self._loader.run()
            if seconds is not None:
                log.info(
                    "groups_loaded",
                    groups=len({*self._runtime.machines, *self._offsets.committed}),
                    offsets=len(self._offsets.committed),
                    seconds=seconds,
                )
            await self._orphans.sweep.sweep()
            self.shares.sweep.want()

    async def _keep(self, replay: GroupReplay) -> None:
        """Take over the groups and offsets of a partition that was read."""
        for group, record in replay.classic.items():
            await self._runtime.restore(self._machines.classic(group), [record])
            self._note_restored(group)
            await self._scheduler.turn()
        for group, records in replay.consumer.items():
            await self._runtime.restore(self._machines.consumer(group), records.values())
            self._note_restored(group)
            self._matching.note_restored(group)
            await self._scheduler.turn()
        for group, records in replay.share.items():
            await self._runtime.restore(self._machines.share(group), records.values())
            self._note_restored(group)
            await self._scheduler.turn()
        self._offsets.committed.add(replay.offsets)
        await self._clamp.settle({group: replay.offsets.of(group) for group in replay.offsets})

    def _note_restored(self, group: str) -> None:
        restored = self._runtime.machines.get(group)
        if restored is not None:
            self._machines.generation_at_start[group] = restored.generation

    def check(self, group: str) -> None:
        """Raise the error of any request about ``group`` at the moment."""
        if len(group) * 3 > GROUP_BYTES_MAX and len(group.encode()) > GROUP_BYTES_MAX:
            raise InvalidGroupIdError(
                f"the group id is longer than {GROUP_BYTES_MAX:,} bytes: give the group a shorter one",
                group=group[:100],
            )
        if self._loader.is_unloaded(group):
            raise CoordinatorLoadingError(
                f"the broker has just started and still reads what groups committed: ask again about {group}",
                group=group,
            )
        failure = self._loader.failure(group)
        if failure is not None:
            raise CoordinatorNotAvailableError(f"what group {group} committed cannot be read: {failure}", group=group)

    def check_named(self, group: str) -> None:
        """As ``check``, for what only a group with a name is asked: the one without has offsets and no members."""
        if not group:
            raise InvalidGroupIdError("the group id is empty: give the group a name", group=group)
        self.check(group)

    async def prepare_partition(self, group: str) -> int:
        """The partition of ``__consumer_offsets`` for what a group commits, when it is there."""
        self.check(group)
        if not self._topic.exists:
            made: Waiting[None] = Waiting()
            self._topic.append(group, (), made.settle)
            await made.wait()
        return self._topic.partition_of(group)

    # --- Offsets and topics -------------------------------------------------------------------------------------------

    def partition_of(self, group: str) -> int:
        """The partition of ``__consumer_offsets`` that has what a group commits."""
        return self._topic.partition_of(group)

    def check_partition(self, partition: int) -> None:
        """Raise CoordinatorLoadingError while the groups of a partition of ``__consumer_offsets`` are loaded."""
        if self._loader.has_unloaded(partition):
            raise CoordinatorLoadingError("the broker has just started and still reads what groups there are")

    async def end_transaction(self, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """End what a producer's transaction has committed for groups of a partition of ``__consumer_offsets``.

        Its marker there is durable, and no other transaction of the producer is open there before this returns. Where
        the partition cannot be loaded there is nothing to end.
        """
        await self._loader.loaded(partition)
        ended = await self._offsets.end_transaction(partition, producer_id, is_commit=is_commit)
        await self._clamp.settle(ended.loaded)
        if ended.has_orphans:
            self._orphans.sweep.want()

    async def delete_offsets(self, group: str, partitions: Sequence[tuple[str, int]]) -> list[SeglogError | None]:
        """Delete offsets; an error or None for each, in order: GroupSubscribedError for a topic that members read.

        Raises UnknownGroupError; NonEmptyGroupError for a group with members of another protocol type.
        """
        self.check_named(group)
        known = self._known(group)
        if known is not None and known.share is not None:
            raise UnknownGroupError(f"Group {group} is not a consumer group.", group=group)
        return await self._offsets.delete(group, partitions)

    def note_topic(self, topic: str, is_deleted: bool) -> None:
        """Note that a topic was created, altered or deleted: then what was committed for it is forgotten."""
        self._topics.version += 1
        self._matching.note_topic(topic)
        if is_deleted:
            self._orphans.sweep.want()
            self.shares.sweep.want()

    # --- Groups as a whole --------------------------------------------------------------------------------------------

    async def list_groups(self, after: str | None = None, limit: int | None = None) -> list[ListedGroup]:
        """Groups by name, those after ``after``, at most ``limit`` of them."""
        if self._loader.is_loading:
            raise CoordinatorLoadingError(
                "the broker has just started and still reads what groups there are: ask again"
            )
        names = sorted(
            name for name in {*self._runtime.machines, *self._offsets.committed} if after is None or name > after
        )
        listed = []
        turns = budget.Turns(self._scheduler.turn)
        for group in names if limit is None else names[:limit]:
            await turns.spend(LISTED_COST + LISTED_OFFSET_COST * len(self._offsets.committed.of(group)))
            listed.append(self._listed(group))
        return listed

    @property
    def count_at_most(self) -> int:
        """The number of groups, those with both members and offsets counted twice: it costs nothing."""
        return len(self._runtime.machines) + self._offsets.committed.groups

    def names(self) -> list[str]:
        """All groups that are loaded."""
        return list({**self._runtime.machines, **dict.fromkeys(self._offsets.committed)})

    def has(self, group: str) -> bool:
        """Whether there is such a group."""
        return group in self._runtime.machines or group in self._offsets.committed

    def facts(self, group: str) -> GroupFacts:
        """What there is to tell of a group at any time; of one that is no more, as of one without members."""
        known = self._runtime.machines.get(group)
        if known is None:
            return GroupFacts("Empty", 0, 0)
        begun = known.generation - self._machines.generation_at_start.get(group, 0)
        return GroupFacts(known.state.value, len(known.members), begun)

    def describe(self, group: str) -> tuple[GroupDescription, ListedGroup]:
        """A group; one of the consumer protocol as if its members used the classic one. Raises UnknownGroupError."""
        self.check(group)
        known = self._known(group)
        if known is not None:
            return known.described_as_classic(self._runtime.now()), self._listed(group)
        return GroupDescription(group, "classic", "Empty", 0, "", "", "", ()), self._listed(group)

    def describe_consumer(self, group: str) -> ConsumerGroupDescription:
        """A group of the consumer protocol. Raises UnknownGroupError, for a classic one, too."""
        self.check_named(group)
        known = self._known(group)
        if known is not None and known.consumer is not None:
            return known.consumer.describe(self._runtime.now())
        raise UnknownGroupError(f"group {group} is not of the consumer protocol", group=group)

    def describe_share(self, group: str) -> ConsumerGroupDescription:
        """A share group. Raises UnknownGroupError, for one of another kind, too."""
        self.check_named(group)
        self._known(group)
        return self.shares.find(group).describe(self._runtime.now())

    def _known(self, group: str) -> Group | None:
        """A group; None for one that is nothing but offsets. Raises UnknownGroupError."""
        known = self._runtime.machines.get(group)
        if known is None and group not in self._offsets.committed:
            raise UnknownGroupError(f"there is no group {group}", group=group)
        return known

    def _listed(self, group: str) -> ListedGroup:
        known = self._runtime.machines.get(group)
        partitions = len(self._offsets.committed.of(group))
        if known is None:
            return ListedGroup(group, "classic", "Empty", "", 0, partitions, expires_ms=self._offsets.expires_ms(group))
        return ListedGroup(
            group,
            known.kind,
            known.state.value,
            known.protocol_type or "",
            len(known.members),
            partitions,
            known.empty_since_ms if known.is_empty else None,
            self._offsets.expires_ms(group) if known.is_empty else None,
        )

    async def delete(self, groups: Sequence[str]) -> list[SeglogError | None]:
        """Delete groups without members and their offsets; an error or None for each, in order.

        They share writes. A group whose deletion could not be written may be deleted again.
        """
        errors: dict[str, SeglogError] = {}

        async def delete_one(group: str) -> None:
            try:
                await self._delete(group)
            except SeglogError as error:
                errors[group] = without_frames(error)

        async with trio.open_nursery() as nursery:
            async for group in self._scheduler.spread(dict.fromkeys(groups), GROUPS_A_TURN):
                nursery.start_soon(delete_one, group)
        return [errors.get(group) for group in groups]

    async def _delete(self, group: str) -> None:
        self.check(group)
        # Tombstones are owed without a state machine where an earlier deletion could not be written.
        known = self._runtime.machines.get(group) if group in self._runtime.owed else self._known(group)
        if known is not None:
            known.check_delete()
            if known.share is not None:
                await self.shares.forget(group)
                known.check_delete()  # a member may have joined
        removed = self._runtime.remove(group)
        committed = self._offsets.committed
        await self._offsets.forget(group, list({**committed.of(group), **dict.fromkeys(committed.pending.of(group))}))
        await removed.wait()
        self._offsets.committed.end(group)
