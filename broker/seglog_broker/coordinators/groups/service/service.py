"""Consumer groups: what listeners ask of them (``groups.groups_api.Groups``), and the tasks that groups need."""

from collections.abc import Sequence
from typing import Final

import trio

from seglog_broker.api.append import AppendService
from seglog_broker.api.topics import TopicService
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription, as_classic
from seglog_broker.coordinators.groups.groups_api import Committed, Committer, ListedGroup, OffsetToCommit
from seglog_broker.coordinators.groups.membership import GroupDescription, LeaveResult, LeavingMember, Record
from seglog_broker.coordinators.groups.service.clamping import OffsetClamp
from seglog_broker.coordinators.groups.service.expiry import OffsetExpiry
from seglog_broker.coordinators.groups.service.gone_topics import GoneTopics
from seglog_broker.coordinators.groups.service.group_topics import GroupTopics
from seglog_broker.coordinators.groups.service.loader import GroupLoader
from seglog_broker.coordinators.groups.service.members import MemberService
from seglog_broker.coordinators.groups.service.offsets import OffsetService
from seglog_broker.coordinators.groups.service.offsets_topic import Encoded, OffsetsTopic
from seglog_broker.coordinators.groups.service.runner import Group, GroupRunner
from seglog_broker.coordinators.groups.service.topic_matching import TopicMatching
from seglog_broker.partitions.clock_trust import ClockTrust
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.recoveries import Recoveries
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.errors import (
    CoordinatorLoadingError,
    SeglogError,
    UnknownGroupError,
    without_frames,
)

EFFORT_A_TURN: Final = 5_000
"""Committed offsets of groups that are listed before other tasks run; a group counts as a hundred of them."""

_EFFORT_OF_GROUP: Final = 100

GROUPS_A_TURN: Final = 50
"""Groups that are deleted before other tasks run."""

MEMBERS_A_TURN: Final = 200
"""Memberships that end before other tasks run."""


class GroupService:
    """All groups of a broker."""

    def __init__(
        self,
        appends: AppendService,
        topics: TopicService,
        table: PartitionTable,
        directory: LogDirectory,
        recoveries: Recoveries,
        config: LiveConfig,
        clock: Clock,
        clock_trust: ClockTrust,
        reads: ColdReads,
        offload: Offload,
    ) -> None:
        self._reads = reads
        self._topic = OffsetsTopic(appends, topics, table, directory, config, clock, reads)
        self._topics = GroupTopics(directory.registry)
        self._runner = GroupRunner(self._topic, self._topics, config, clock)
        self.memory = self._runner.memory
        self._matching = TopicMatching(self._runner.groups, self._topics, reads)
        self._runner.note_restored = self._matching.note_restored
        self._offsets = OffsetService(self._runner, self._topic, table, config, reads)
        self._gone = GoneTopics(self._offsets, self._topic, reads)
        clamp = OffsetClamp(self._offsets, self._topic, table, recoveries, reads)
        self._loader = GroupLoader(
            self._runner,
            self._offsets,
            self._topic,
            table,
            recoveries,
            reads,
            offload,
            clamp,
            self._gone,
            {name: topic.id for name, topic in directory.registry.topics.items()},
        )
        self._expiry = OffsetExpiry(self._runner, self._offsets, config, clock_trust, reads)
        members = MemberService(self._runner, reads, self._loader.check_named, self._matching.match_all)
        self.check = self._loader.check
        self.join = members.join
        self.sync = members.sync
        self.heartbeat = members.heartbeat
        self._leave = members.leave
        self.consumer_heartbeat = members.consumer_heartbeat
        self.end_waits = self._runner.end_waits

    async def run(self) -> None:
        """Load groups, then write, expire and wake them, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._topic.run)
            nursery.start_soon(self._runner.run_timers)
            nursery.start_soon(self._matching.run)
            await self._loader.run()
            nursery.start_soon(self._gone.run)
            nursery.start_soon(self._expiry.run)

    # --- Offsets ------------------------------------------------------------------------------------------------------

    async def commit(
        self, group: str, committer: Committer, offsets: Sequence[OffsetToCommit]
    ) -> list[SeglogError | None]:
        """As ``Groups.commit``."""
        self.check(group)
        return await self._offsets.commit(group, committer, offsets)

    async def leave(self, group: str, members: Sequence[LeavingMember]) -> list[LeaveResult]:
        """As ``Groups.leave``."""
        results = await self._leave(group, members[:MEMBERS_A_TURN])
        for begin in range(MEMBERS_A_TURN, len(members), MEMBERS_A_TURN):
            await self._reads.turn()
            results += await self._leave(group, members[begin : begin + MEMBERS_A_TURN])
        return results

    def committed_topics(self, group: str, committer: Committer | None = None) -> dict[str, list[int]]:
        """As ``Groups.committed_topics``."""
        self.check(group)
        return self._offsets.topics_of(group, committer)

    def committed(
        self, group: str, partitions: Sequence[tuple[str, int]] | None, committer: Committer | None = None
    ) -> list[Committed]:
        """As ``Groups.committed``."""
        self.check(group)
        return self._offsets.look_up(group, partitions, committer)

    async def delete_offsets(self, group: str, partitions: Sequence[tuple[str, int]]) -> list[SeglogError | None]:
        """As ``Groups.delete_offsets``."""
        self._loader.check_named(group)
        self._known(group)
        return await self._offsets.delete(group, partitions)

    def note_topic(self, topic: str, is_deleted: bool) -> None:
        """Note that a topic was created, altered or deleted: then what was committed for it is forgotten."""
        self._topics.version += 1
        self._matching.note_topic(topic)
        if is_deleted:
            self._gone.note_deleted()

    # --- Groups as a whole --------------------------------------------------------------------------------------------

    async def list_groups(self, after: str | None = None, limit: int | None = None) -> list[ListedGroup]:
        """As ``Groups.list_groups``."""
        if self._loader.is_loading:
            raise CoordinatorLoadingError(
                "the broker has just started and still reads what groups there are: ask again"
            )
        names = sorted(
            name for name in {*self._runner.groups, *self._offsets.committed} if after is None or name > after
        )
        listed = []
        effort = 0
        for group in names if limit is None else names[:limit]:
            effort += _EFFORT_OF_GROUP + len(self._offsets.committed.of(group))
            if effort > EFFORT_A_TURN:
                effort = 0
                await self._reads.turn()
            listed.append(self._listed(group))
        return listed

    def describe(self, group: str) -> tuple[GroupDescription, ListedGroup]:
        """As ``Groups.describe``."""
        self.check(group)
        known = self._known(group)
        if isinstance(known, ConsumerGroup):
            return as_classic(known.describe(self._runner.now())), self._listed(group)
        if known is not None:
            return known.describe(self._runner.now()), self._listed(group)
        return GroupDescription(group, "classic", "Empty", 0, "", "", "", ()), self._listed(group)

    def describe_consumer(self, group: str) -> ConsumerGroupDescription:
        """As ``Groups.describe_consumer``."""
        self._loader.check_named(group)
        known = self._known(group)
        if isinstance(known, ConsumerGroup):
            return known.describe(self._runner.now())
        raise UnknownGroupError(f"group {group} is not of the consumer protocol", group=group)

    def _known(self, group: str) -> Group | None:
        """A group; None for one that is nothing but offsets. Raises UnknownGroupError."""
        known = self._runner.groups.get(group)
        if known is None and group not in self._offsets.committed:
            raise UnknownGroupError(f"there is no group {group}", group=group)
        return known

    def _listed(self, group: str) -> ListedGroup:
        known = self._runner.groups.get(group)
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
        """As ``Groups.delete``. What deletes them is written together."""
        errors: dict[str, SeglogError] = {}

        async def delete_one(group: str) -> None:
            try:
                await self._delete(group)
            except SeglogError as error:
                errors[group] = without_frames(error)

        async with trio.open_nursery() as nursery:
            for number, group in enumerate(dict.fromkeys(groups), start=1):
                nursery.start_soon(delete_one, group)
                if number % GROUPS_A_TURN == 0:
                    await self._reads.turn()
        return [errors.get(group) for group in groups]

    async def _delete(self, group: str) -> None:
        self.check(group)
        known = self._known(group)
        tombstones: list[Encoded | Record] = []
        if known is not None:
            known.check_delete()
            tombstones = self._runner.remove(group)
        await self._offsets.forget(group, list(self._offsets.committed.of(group)), tombstones)
        self._offsets.committed.end(group)
