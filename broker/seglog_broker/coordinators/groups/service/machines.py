"""The state machines of groups: how each is made, and how another takes its place.

Requests of members, by either protocol, go to them.
"""

import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import trio

from seglog_broker.config.group_keys import group_value
from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.decisions import Waiting
from seglog_broker.coordinators.groups import consumer_requests, membership
from seglog_broker.coordinators.groups.classic import ClassicGroup
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_classic import ClassicMembership
from seglog_broker.coordinators.groups.consumer_member import JOINING_EPOCH
from seglog_broker.coordinators.groups.consumer_requests import MaySee, all_topics
from seglog_broker.coordinators.groups.group_memory import MEMBER_BYTES, Budget
from seglog_broker.coordinators.groups.migration import downgraded, upgraded
from seglog_broker.coordinators.groups.share import Initialize, ShareGroup
from seglog_broker.coordinators.groups.topics import Topics, TopicSize, id_bytes, id_text
from seglog_broker.coordinators.share.settings import SettingsOfGroups
from seglog_broker.coordinators.topic import StateTopic
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_protocol.errors import GroupError, InconsistentGroupProtocolError, UnknownGroupError, UnknownMemberError
from seglog_protocol.steps import Steps
from seglog_protocol.texts import first_of

log = get_logger()

ClassicMembers: TypeAlias = ClassicGroup | ClassicMembership
"""Where members of the classic protocol send their requests, whatever the kind of their group."""

Group: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup
"""A group of any kind. Services ask none which it is, but call the methods that all have."""


class RegistryTopics(Topics):
    """The topics of a log directory."""

    def __init__(self, registry: TopicRegistry) -> None:
        self._registry: Final = registry
        self._found: dict[str, tuple[Topic, TopicSize]] = {}

    def find(self, name: str) -> TopicSize | None:
        """As ``Topics.find``."""
        topic = self._registry.topics.get(name)
        if topic is None:
            self._found.pop(name, None)
            return None
        found = self._found.get(name)
        if found is None or found[0] is not topic:
            found = self._found[name] = topic, TopicSize(id_bytes(topic.id), topic.partitions)
        return found[1]

    def name(self, topic_id: bytes) -> str | None:
        """As ``Topics.name``."""
        topic = self._registry.topics.with_id(id_text(topic_id))
        return None if topic is None else topic.name

    def names(self) -> Iterable[str]:
        """As ``Topics.names``."""
        return list(self._registry.topics)


@dataclass(eq=False, repr=False)
class GroupMachines(Service):
    """The groups of a broker that have, or had, members, in ``runtime``."""

    _topic: StateTopic
    _topics: Topics

    def __post_init__(self) -> None:
        self.memory = Budget(
            "seglog.groups.memory.bytes", "members of groups", lambda: self._config.current.seglog_groups_memory_bytes
        )
        self.follow: Callable[[Initialize], None] = lambda _effect: None
        """Takes the effects of share groups."""
        self.runtime: CoordinatorRuntime[Group] = CoordinatorRuntime(
            self._topic,
            self._clock,
            self._scheduler,
            carry_out=lambda effect: self.follow(effect),  # noqa: PLW0108 - it is set later
            note_size=self._note,
            successor=self._successor,
        )
        config = self._config
        self._share_settings = SettingsOfGroups(config)
        self.generation_at_start: dict[str, int] = {}
        """Of groups that were restored and are still there."""
        self.new_id: Callable[[], str] = lambda: str(uuid.uuid4())
        """Makes the random part of a member id."""

    def _note(self, group: str, size: int) -> None:
        """A group takes so many bytes; 0: it is gone."""
        self.memory.note(group, size)
        if not size:
            self.generation_at_start.pop(group, None)

    def limits(self, group: str) -> membership.Limits:
        """The limits in force for a group, with the settings that it has of its own."""
        config, own = self._config.current, self._config.dynamic.of_group(group)
        session_ms, heartbeat_ms = (
            int(group_value(f"consumer.{name}.ms", own, config)) for name in ("session.timeout", "heartbeat.interval")
        )
        return membership.Limits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
            consumer_session_timeout_ms=session_ms,
            consumer_heartbeat_interval_ms=heartbeat_ms,
            consumer_max_size=config.group_consumer_max_size,
            consumer_assignors=config.group_consumer_assignors,
            consumer_migration_policy=config.group_consumer_migration_policy,
        )

    def classic(self, group: str) -> ClassicGroup:
        """A classic group without members, which is not in the runtime yet."""
        return ClassicGroup(group, self.runtime.outbox, partial(self.limits, group), self.new_id)

    def consumer(self, group: str) -> ConsumerGroup:
        """A group of the consumer protocol without members, which is not in the runtime yet."""
        return ConsumerGroup(group, self.runtime.outbox, partial(self.limits, group), self.new_id, self._topics)

    def share(self, group: str) -> ShareGroup:
        """A share group without members, which is not in the runtime yet."""
        return ShareGroup(group, self.runtime.outbox, partial(self._share_settings.of, group), self._topics)

    def upgrade(self, known: ClassicGroup) -> Steps[None]:
        """Replace a classic group, if it is still there, by one of the consumer protocol. Raises UnknownGroupError."""
        runtime, group = self.runtime, known.key
        limits = partial(self.limits, group)
        made = yield from upgraded(known, lambda: self.consumer(group), limits, self._topics, runtime.now())

        def begin() -> ConsumerGroup:
            known.refuse_waits()
            made.begin()
            _log_change(made)
            return made

        if runtime.machines.get(group) is known:
            runtime.replace(group, begin)
            # Without a look for a successor: it may be a classic one again unless the member joins that it is for.
            runtime.append_decided(group)

    def downgrade(self, known: ConsumerGroup) -> ClassicGroup:
        """Replace a group of the consumer protocol by a classic one, for which ``carry_out`` is still to be called."""
        made = self.classic(known.key)
        self.runtime.replace(known.key, partial(self._downgraded, known, made))
        return made

    def _downgraded(self, known: ConsumerGroup, made: ClassicGroup) -> ClassicGroup:
        downgraded(known, made, self._topics, self.runtime.now())
        _log_change(made)
        return made

    def check_memory(self, group: str, member_id: str, size: int) -> None:
        """Raise CoordinatorNotAvailableError if there is no memory for a member, which may be a new one."""
        known = self.runtime.machines.get(group)
        before = None if known is None else known.size_of(member_id)
        self.memory.check(group, size - (before or 0), is_new=before is None)

    def _successor(self, known: Group) -> Callable[[], Group] | None:
        consumer = known.consumer
        if consumer is None or not consumer.may_be_classic:
            return None
        return partial(self._downgraded, consumer, self.classic(known.key))


def _log_change(made: Group) -> None:
    log.info("group_protocol_changed", group=made.key, kind=made.kind, members=len(made.members))


MEMBERS_A_TURN: Final = budget.items_of(cost=10)
"""Memberships that end before other tasks run."""


@dataclass(eq=False, repr=False)
class MemberService(Service):
    """Serves members: they join, send heartbeats and leave.

    A caller may be cancelled while it waits; what is decided stays.
    """

    _machines: GroupMachines
    _check: Callable[[str], None]  # raises what any request about a group would raise
    _match: Callable[[str, MaySee], Awaitable[consumer_requests.Matching]]  # a regular expression

    def __post_init__(self) -> None:
        self._runtime = self._machines.runtime

    # --- The classic protocol -----------------------------------------------------------------------------------------

    async def join(self, group: str, request: membership.JoinRequest) -> membership.JoinResult:
        """Wait for the next generation. Errors stand in the result, those for the group as a whole too."""
        waiting: Waiting[membership.JoinResult] = Waiting()
        try:
            self._check(group)
            self._machines.check_memory(group, request.member_id, request.size)
            known = self._group_to_join(group, request.member_id)
            await self._runtime.in_steps(group, known.join(request, waiting, self._runtime.now()))
            self._runtime.carry_out(group)
            self._runtime.drop_if_unused(group)
            return await self._runtime.wait(group, waiting)
        except GroupError as error:
            return membership.JoinResult(request.member_id, error=error)
        except trio.Cancelled:
            left = self._runtime.machines.get(group)
            if left is not None:
                left.end_join(waiting, self._runtime.now())
                self._runtime.carry_out(group)
                self._runtime.drop_if_unused(group)
            raise

    def _group_to_join(self, group: str, member_id: str) -> ClassicMembers:
        known = self._runtime.machines.get(group)
        if known is not None and known.classic is None:
            raise InconsistentGroupProtocolError(f"group {group} is a {known.kind} group: use another one", group=group)
        if known is not None and known.takes_classic:
            return known.classic
        if member_id:
            raise _unknown_member(group, member_id)
        if known is not None and known.consumer is not None:
            return self._machines.downgrade(known.consumer)
        made = self._runtime.machines[group] = self._machines.classic(group)
        return made

    async def sync(self, group: str, request: membership.SyncRequest) -> membership.SyncResult:
        """Wait for the leader's assignments. Errors stand in the result."""
        try:
            self._check(group)
            waiting: Waiting[membership.SyncResult] = Waiting()
            self._machines.memory.check(group, sum(map(len, request.assignments.values())), is_new=False)
            known = self._find(group, request.member_id)
            await self._runtime.in_steps(group, known.sync(request, waiting, self._runtime.now()))
            request = request._replace(assignments={})  # those of one that does not lead say nothing while it waits
            self._runtime.carry_out(group)
            return await self._runtime.wait(group, waiting)
        except GroupError as error:
            return membership.SyncResult(error=error)

    def heartbeat(self, group: str, member_id: str, generation: int, instance_id: str | None = None) -> None:
        """Restart a member's session timer. Raises the GroupError that tells it what to do."""
        self._check(group)
        try:
            self._find(group, member_id).heartbeat(member_id, generation, instance_id, self._runtime.now())
        finally:
            self._runtime.carry_out(group)

    async def leave(self, group: str, members: Sequence[membership.LeavingMember]) -> list[membership.LeaveResult]:
        """End memberships, in turns with other tasks; one result per member, in order."""
        results = await self._leave(group, members[:MEMBERS_A_TURN])
        for begin in range(MEMBERS_A_TURN, len(members), MEMBERS_A_TURN):
            await self._scheduler.turn()
            results += await self._leave(group, members[begin : begin + MEMBERS_A_TURN])
        return results

    async def _leave(self, group: str, members: Sequence[membership.LeavingMember]) -> list[membership.LeaveResult]:
        self._check(group)
        known = self._runtime.machines.get(group)
        if known is None or known.classic is None:
            return [
                membership.LeaveResult(member.member_id, member.instance_id, _unknown_member(group, member.member_id))
                for member in members
            ]
        results = known.classic.leave(members, self._runtime.now())
        await self._runtime.written(group)
        return results

    def _find(self, group: str, member_id: str) -> ClassicMembers:
        """The state machine for members of the classic protocol. Raises UnknownMemberError if the group has none."""
        known = self._runtime.machines.get(group)
        if known is None or known.classic is None:
            raise _unknown_member(group, member_id)
        return known.classic

    # --- The consumer protocol ----------------------------------------------------------------------------------------

    async def consumer_heartbeat(
        self, group: str, request: consumer_requests.ConsumerHeartbeat, may_see: MaySee = all_topics
    ) -> consumer_requests.HeartbeatResult:
        """A heartbeat of the consumer protocol, by which members also join and leave; returns when it is durable.

        Regular expressions match topics of which ``may_see`` of the member that was heard of last is true.
        Raises the GroupError that tells the member what to do, or InvalidRequestError.
        """
        self._check(group)
        if request.regex and not self._has(group, request.regex):
            self._machines.check_memory(group, request.member_id, len(request.regex) + MEMBER_BYTES)
            request = request._replace(matching=await self._match(request.regex, may_see))
        self._machines.check_memory(group, request.member_id, request.size)
        known = await self._consumer(group, request)
        known.regexes.may_see = may_see
        result = await self._runtime.in_steps(group, known.heartbeat(request, self._runtime.now()))
        await self._runtime.written(group)
        return result

    def _has(self, group: str, regex: str) -> bool:
        """True if a member subscribes by this expression."""
        known = self._runtime.machines.get(group)
        return known is not None and known.consumer is not None and regex in known.consumer.regexes

    async def _consumer(self, group: str, request: consumer_requests.ConsumerHeartbeat) -> ConsumerGroup:
        """The group of a member of the consumer protocol, made for one that joins."""
        while (known := self._runtime.machines.get(group)) is None or (consumer := known.consumer) is None:
            consumer_requests.check_heartbeat(group, request, self._machines.limits(group))
            if request.member_epoch != JOINING_EPOCH and (known is None or known.classic is not None):
                raise _unknown_member(group, request.member_id)
            if known is None:
                made = self._runtime.machines[group] = self._machines.consumer(group)
                return made
            await self._scheduler.in_turns(known.upgraded(self._machines.upgrade))
        return consumer

    # --- Without a request --------------------------------------------------------------------------------------------

    def end_session(self, group: str, member_id: str) -> None:
        """End a member's session as if its heartbeats had not come. Raises UnknownGroupError, UnknownMemberError."""
        self.with_members(group).end_session(member_id, self._runtime.now())
        self._runtime.carry_out(group)

    def rebalance(self, group: str) -> None:
        """Have the members of a group rebalance as if one had joined. Raises UnknownGroupError if it has none."""
        self.with_members(group).rebalance(self._runtime.now())
        self._runtime.carry_out(group)

    def with_members(self, group: str) -> Group:
        """A group that has members. Raises UnknownGroupError, which names those that have some."""
        self._check(group)
        known = self._runtime.machines.get(group)
        if known is None or known.is_empty:
            names = sorted(repr(name) for name, machine in self._runtime.machines.items() if not machine.is_empty)
            there = first_of(names, len(names)) or "there are none"
            raise UnknownGroupError(f"group {group!r} has no members; groups with members: {there}", group=group)
        return known


def _unknown_member(group: str, member_id: str) -> UnknownMemberError:
    return UnknownMemberError(
        f"group {group} has no member {member_id}: join it again, without a member id", group=group, member_id=member_id
    )
