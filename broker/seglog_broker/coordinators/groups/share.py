"""A share group (KIP-932): members share the records of partitions, which the broker assigns to several at once.

As in a group of the consumer protocol the group epoch grows whenever members, their subscriptions or topics change.
A member takes its target assignment with its next heartbeat: there is nothing to revoke first. It gets partitions that
have a state alone. When members subscribe to a topic its partitions are noted as ``initializing``, and an effect has
their state made; then they are ``initialized``, and the next heartbeat begins an epoch in which they are assigned.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.assigned_group import AssignedGroup, GroupCore, GroupState
from seglog_broker.coordinators.groups.assignors import NOTHING, Assign, Assignment, Subscriber
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.consumer_member import JOINING_EPOCH, LEFT_EPOCH, Member, Progress
from seglog_broker.coordinators.groups.consumer_records import SHARE_RECORDS
from seglog_broker.coordinators.groups.consumer_requests import HeartbeatResult
from seglog_broker.coordinators.groups.consumer_state import ConsumerState
from seglog_broker.coordinators.groups.group_memory import MEMBER_BYTES, NAME_BYTES
from seglog_broker.coordinators.groups.membership import CommitCheck
from seglog_broker.coordinators.groups.share_assignor import assign_simple
from seglog_broker.coordinators.groups.shared_topics import ByTopic, NamedPartitions, SharedTopics
from seglog_broker.coordinators.groups.topics import Topics
from seglog_broker.coordinators.share.in_flight import NO_OFFSET
from seglog_broker.coordinators.share.settings import ShareSettings
from seglog_broker.coordinators.state_machine import Now, Outbox
from seglog_protocol import errors
from seglog_protocol.steps import Pace, Steps

ASSIGNOR: Final = "simple"

MEMBER_ID_CHARACTERS_MAX: Final = 36
"""Kafka's limit, which has room for a UUID."""

FIRST_EPOCH: Final = 1
"""Kafka's group epoch before the first change."""

RETRY_MS: Final = 30_000
"""Kafka's time after which partitions that are still initializing are initialized again."""

_NO_TOPICS: Final = SharedTopics()


class ShareHeartbeat(NamedTuple):
    """A ShareGroupHeartbeat. Fields that are None are unchanged since the member's last one.

    ``member_epoch`` is 0 of a member that joins, -1 of one that leaves.
    """

    member_id: str
    member_epoch: int
    rack_id: str | None = None
    topics: Collection[str] | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget for members; 0 if it changes no subscription."""
        if self.topics is None:
            return 0
        named = sum(map(len, self.topics)) + NAME_BYTES * len(self.topics)
        return MEMBER_BYTES + len(self.member_id) + len(self.client_id) + len(self.rack_id or "") + named

    def check(self, group: str) -> None:
        """Raise InvalidRequestError, in Kafka's words, for a request that no member makes."""
        for is_wrong, field, why in (
            (not 0 < len(self.member_id) <= MEMBER_ID_CHARACTERS_MAX, "member_id", "Invalid member id in the request."),
            (not self.member_id.strip(), "member_id", "MemberId can't be empty."),
            (not group.strip(), "group_id", "GroupId can't be empty."),
            (self.rack_id is not None and not self.rack_id.strip(), "rack_id", "RackId can't be empty."),
            (
                self.member_epoch == JOINING_EPOCH and not self.topics,
                "topics",
                "SubscribedTopicNames must be set in first request.",
            ),
            (self.member_epoch < LEFT_EPOCH, "member_epoch", "MemberEpoch is invalid."),
        ):
            if is_wrong:
                raise errors.InvalidRequestError(why, field=field)


class Initialize(NamedTuple):
    """An effect: the state of share partitions is to be made; then comes ``ShareGroup.end_initializing``."""

    group: str
    epoch: int
    """The group epoch."""
    start_offsets: Mapping[bytes, Mapping[int, int]]
    """By topic id and partition; NO_OFFSET: none is chosen yet."""


class ShareCore(GroupCore):
    """The members of a share group."""

    def __init__(
        self, group_id: str, outbox: Outbox, settings: Callable[[], ShareSettings], topics: Topics, assign: Assign
    ) -> None:
        super().__init__(ConsumerState(group_id, outbox, SHARE_RECORDS, FIRST_EPOCH), topics, assign)
        self.settings: Final = settings

    def session_timeout_ms(self, member: Member) -> int:  # noqa: ARG002 - it is the group's
        """The group's."""
        return self.settings().session_ms

    def unknown(self, what: str, member_id: str) -> errors.UnknownMemberError:  # noqa: ARG002 - Kafka's words
        """The error for a request of a member that is not in the group."""
        return errors.UnknownMemberError(
            f"Member {member_id} is not a member of group {self.group_id}.", group=self.group_id, member_id=member_id
        )

    def remove(self, member_ids: Collection[str], now: Now) -> None:
        """Remove members. Without any the assignment is there: that of nothing."""
        super().remove(member_ids, now)
        if not self.state.members:
            self.state.set_assignment_epoch(self.state.group_epoch, 0)


class ShareGroup(AssignedGroup):
    """A share group.

    What a ConsumerGroup says of records, replies, steps and sessions holds here, too. Effects are Initialize.
    """

    kind = "share"
    protocol_type: Final = "share"
    expires: Final = False
    consumer: Final = None
    classic: Final = None
    takes_classic: Final = False
    _core: ShareCore

    def __init__(self, group_id: str, outbox: Outbox, settings: Callable[[], ShareSettings], topics: Topics) -> None:
        super().__init__(outbox, ShareCore(group_id, outbox, settings, topics, self._assign))
        self._topics: Final = topics
        self._asked_ms: Final[dict[bytes, int]] = {}
        """When the state of a topic's partitions was last asked for, monotonic ms; not since the start: no entry."""
        self._seen: tuple[int, int, SharedTopics] | None = None
        """Version of the topics, group epoch and share partitions for which nothing was left to initialize."""
        self._assigned: tuple[int, SharedTopics] | None = None
        """Assignment epoch and share partitions at the last look whether all of these are assigned."""

    @property
    def share(self) -> "ShareGroup":
        """For members of share groups."""
        return self

    def upgraded(self, _upgrade: object) -> Steps[None]:
        """Raise UnknownGroupError: it takes no members of the consumer protocol."""
        raise self._not_for_consumers()

    # --- What it is ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        """Kafka's word for its state."""
        return GroupState.EMPTY if self.is_empty else GroupState.STABLE

    @property
    def shared(self) -> SharedTopics:
        """How far the state of its share partitions is."""
        return self._state.shared or _NO_TOPICS

    def describe(self, now: Now) -> ConsumerGroupDescription:
        """A description for admins, without target assignments."""
        return self._described(self.state, self._state.assignment_epoch, ASSIGNOR, {}, now)

    # --- Requests of members ------------------------------------------------------------------------------------------

    def heartbeat(self, request: ShareHeartbeat, now: Now) -> Steps[HeartbeatResult]:
        """A member's heartbeat, by which it also joins, leaves and subscribes; the result may carry its assignment.

        Raises the GroupError that tells it what to do.
        """
        if request.member_epoch == LEFT_EPOCH:
            self._core.remove([self._core.find(request.member_id).member_id], now)
            yield from self._core.epochs.settled(now, may_assign=False)  # for the topics that others read
            result = HeartbeatResult(request.member_id, LEFT_EPOCH)
        else:
            result = yield from self._live(request, now)
        self._state.journal.append()
        return result

    def _live(self, request: ShareHeartbeat, now: Now) -> Steps[HeartbeatResult]:
        state, settings, member_id = self._state, self._core.settings(), request.member_id
        before = self._find_or_make(request, settings)
        said = before.subscription
        topics = said.topics if request.topics is None else state.name_sets.shared(frozenset(request.topics))
        rack_id = said.rack_id if request.rack_id is None else request.rack_id
        subscription = said._replace(
            rack_id=rack_id, client_id=request.client_id, client_host=request.client_host, topics=topics
        )
        state.put_member(before._replace(subscription=subscription))
        self._core.live_on(before, now)
        epoch = state.group_epoch
        if topics != said.topics or (yield from self._has_unassigned()):
            self._core.epochs.begin()
        since_ms = now.wall_ms - state.assigned_ms
        yield from self._core.epochs.settled(now, may_assign=not 0 <= since_ms < settings.assignment_interval_ms)
        yield from self._initialize(now)
        member = yield from self._reconciled(member_id, is_other_epoch=state.group_epoch != epoch)
        assigned = member.progress.assigned
        is_told = request.topics is not None or request.member_epoch == JOINING_EPOCH
        if not is_told and assigned == before.progress.assigned:
            return HeartbeatResult(member_id, member.epoch, settings.heartbeat_ms)
        return HeartbeatResult(member_id, member.epoch, settings.heartbeat_ms, assigned)

    def _find_or_make(self, request: ShareHeartbeat, settings: ShareSettings) -> Member:
        member = self._state.members.get(request.member_id)
        if member is None:
            self._core.check_room("group.share.max.size", settings.members_max)
        if request.member_epoch == JOINING_EPOCH:
            return member or Member(request.member_id)
        member = self._core.find(request.member_id)
        epoch = request.member_epoch
        if epoch != member.epoch and not epoch == member.progress.previous_epoch < member.epoch:
            raise self._core.fenced(member, epoch)
        return member

    def _reconciled(self, member_id: str, *, is_other_epoch: bool) -> Steps[Member]:
        """A member with its target assignment, of topics to which it subscribes."""
        state, member = self._state, self._core.find(member_id)
        while member.epoch != state.assignment_epoch or is_other_epoch:
            target, names, epoch = state.targets.get(member_id, NOTHING), member.subscription.topics, member.epoch
            assigned: dict[bytes, frozenset[int]] = {}
            pace = Pace()
            for topic, numbers in target.items():
                if self._topics.name(topic) in names:
                    assigned[topic] = numbers
                if pace.is_due():
                    yield
            if target is not state.targets.get(member_id, NOTHING):
                continue  # there is another one by now
            previous = member.progress.previous_epoch if epoch == state.assignment_epoch else epoch
            kept = target if len(assigned) == len(target) else assigned
            member = self._core.find(member_id)._replace(
                progress=Progress(state.assignment_epoch, previous, assigned=kept)
            )
            state.put_member(member)
            break
        return member

    # --- Assigning ----------------------------------------------------------------------------------------------------

    def _assign(
        self, subscribers: Mapping[str, Subscriber], sizes: Mapping[bytes, int]
    ) -> Steps[dict[str, Assignment]]:
        known = self.shared.initialized
        return assign_simple(subscribers, {topic: known[topic].partitions for topic in known.keys() & sizes.keys()})

    def _has_unassigned(self) -> Steps[bool]:
        """True if share partitions of topics that are read were initialized after the last assignment."""
        state, shared = self._state, self.shared
        seen = state.assignment_epoch, shared
        if state.assignment_epoch < state.group_epoch or self._assigned == seen:
            return False
        assigned: dict[bytes, set[int]] = {}
        pace = Pace()
        for target in list(state.targets.values()):
            for topic, numbers in target.items():
                assigned.setdefault(topic, set()).update(numbers)
                if pace.is_due(len(numbers)):
                    yield
        for topic, (_, initialized) in shared.initialized.items():
            if self._topics.name(topic) in self.subscribed_topics and assigned.get(topic, set()) != set(initialized):
                return state.assignment_epoch == state.group_epoch  # else another request has begun an epoch
            if pace.is_due():
                yield
        self._assigned = seen
        return False

    # --- The state of share partitions --------------------------------------------------------------------------------

    def _initialize(self, now: Now) -> Steps[None]:
        """Have the state made of partitions that members subscribe to and that have none."""
        while (seen := (self._topics.version, self._state.group_epoch, self.shared)) != self._seen:
            shared = self.shared
            missing, starts = yield from self._missing(now)
            changed = yield from shared.with_initializing(missing)
            if self.shared is not shared:
                continue  # another request has asked for some of them
            if not missing:
                self._seen = None if shared.initializing else seen
                return
            self._state.set_shared(changed)
            self._asked_ms.update(dict.fromkeys(missing, now.monotonic_ms))
            self.outbox.effects.append(Initialize(self.key, self._state.group_epoch, starts))
            return

    def _missing(self, now: Now) -> Steps[tuple[dict[bytes, NamedPartitions], dict[bytes, dict[int, int]]]]:
        """Partitions that members subscribe to, without those for whose state it was asked not long ago.

        Then where each is to begin, by topic id. As in Kafka, partitions that a topic gets later are read from their
        beginning. A topic of which nothing was initialized is a new one, even if Kafka, after a stop in between, would
        read that from its beginning.
        """
        missing: dict[bytes, NamedPartitions] = {}
        starts: dict[bytes, dict[int, int]] = {}
        shared, pace = self.shared, Pace()
        for name in list(self.subscribed_topics):
            topic = self._topics.find(name)
            if topic is not None:
                topic_id, asked_ms = topic.topic_id, self._asked_ms.get(topic.topic_id, now.monotonic_ms - RETRY_MS)
                known = _numbers(shared.initialized, topic_id)
                start = 0 if known else NO_OFFSET
                if now.monotonic_ms - asked_ms < RETRY_MS:
                    known |= _numbers(shared.initializing, topic_id)
                if len(known) < topic.partitions:
                    numbers = frozenset(range(topic.partitions)) - known
                    missing[topic_id] = NamedPartitions(name, numbers)
                    starts[topic_id] = dict.fromkeys(numbers, start)
            if pace.is_due(1 if topic is None else topic.partitions):
                yield
        return missing, starts

    def _change(self, change: Callable[[SharedTopics], Steps[SharedTopics]]) -> Steps[None]:
        """Decide what ``change`` makes of the share partitions, which stay the same meanwhile."""
        while True:
            shared = self.shared
            changed = yield from change(shared)
            if self.shared is shared:
                break
        if changed != shared:
            self._state.set_shared(changed)
            self._state.journal.append()

    def _named(self, partitions: Mapping[bytes, Iterable[int]]) -> Steps[ByTopic]:
        """Partitions with the names of their topics; empty for a topic that is gone."""
        named: dict[bytes, NamedPartitions] = {}
        pace = Pace()
        for topic, numbers in partitions.items():
            named[topic] = NamedPartitions(self._topics.name(topic) or "", frozenset(numbers))
            if pace.is_due(1 + len(named[topic].partitions)):
                yield
        return named

    def begin_initializing(self, partitions: Mapping[bytes, Iterable[int]], now: Now) -> Steps[None]:
        """Note that the state of these partitions, by topic id, is to be made, or made anew."""
        named = yield from self._named(partitions)
        yield from self._change(lambda shared: shared.with_initializing(named))
        self._asked_ms.update(dict.fromkeys(named, now.monotonic_ms))

    def end_initializing(self, partitions: Mapping[bytes, Iterable[int]], *, is_done: bool) -> Steps[None]:
        """Note that the state of these partitions, by topic id, is made, or could not be: then it is tried again."""
        named = yield from self._named(partitions)
        there = {topic: known for topic, known in named.items() if known.name}

        def change(shared: SharedTopics) -> Steps[SharedTopics]:
            left = yield from shared.without_initializing(named)
            return (yield from left.with_initialized(there)) if is_done else left

        yield from self._change(change)

    def begin_deleting(self, topics: AbstractSet[bytes] | None = None) -> Steps[ByTopic]:
        """Note that the state of topics, None: of all, is being deleted; the partitions that may have one."""
        found: dict[bytes, NamedPartitions] = {}

        def change(shared: SharedTopics) -> Steps[SharedTopics]:
            found.clear()
            found.update((yield from shared.partitions(topics)))
            for topic, name in shared.deleting.items():  # from a deletion that did not end
                size = self._topics.find(name)
                if size is not None and size.topic_id == topic and (topics is None or topic in topics):
                    found[topic] = NamedPartitions(name, _numbers(found, topic).union(range(size.partitions)))
            return shared.with_deleting(found)

        yield from self._change(change)
        return found

    def forget_gone_topics(self) -> Steps[None]:
        """Note that the state of topics that were deleted since goes with them."""
        gone: set[bytes] = set()
        pace = Pace()
        for topic in [topic for known in self.shared for topic in known]:
            if self._topics.name(topic) is None:
                gone.add(topic)
            if pace.is_due():
                yield
        if gone:
            yield from self.forget_topics(gone)

    def forget_topics(self, topics: AbstractSet[bytes]) -> Steps[None]:
        """Note that the state of topics is deleted."""

        def change(shared: SharedTopics) -> Steps[SharedTopics]:
            yield
            return shared.without(topics)

        return self._change(change)

    # --- What is of other kinds of groups -----------------------------------------------------------------------------

    def check_commit(self, *_request: object, **_kind: object) -> CommitCheck | None:
        """Raise UnknownGroupError: nobody commits offsets for it."""
        raise self._not_for_consumers()

    def check_fetch(self, *_request: object) -> None:
        """Anybody may look for committed offsets: there are none."""

    def _not_for_consumers(self) -> errors.UnknownGroupError:
        return errors.UnknownGroupError(f"Group {self.key} is not a consumer group.", group=self.key)


def _numbers(topics: ByTopic, topic: bytes) -> frozenset[int]:
    known = topics.get(topic)
    return frozenset() if known is None else known.partitions
