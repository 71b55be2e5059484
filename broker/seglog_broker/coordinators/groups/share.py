"""A share group (KIP-932): members share the records of partitions, which the broker assigns to several at once.

As in a group of the consumer protocol the group epoch grows whenever members, their subscriptions or topics change.
A member takes its target assignment with its next heartbeat: there is nothing to revoke first. It gets partitions that
have a state alone. When members subscribe to a topic its partitions are noted as ``initializing``, and an effect has
their state made; then they are ``initialized``, and the next heartbeat begins an epoch in which they are assigned.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from seglog_broker.coordinators.deadlines import Deadlines
from seglog_broker.coordinators.groups.assigned_group import AssignedGroup, GroupState
from seglog_broker.coordinators.groups.assignors import NOTHING, Assignment, Subscriber
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription, as_classic, describe_member
from seglog_broker.coordinators.groups.consumer_member import JOINING_EPOCH, LEFT_EPOCH, Member, Progress
from seglog_broker.coordinators.groups.consumer_records import SHARE_RECORDS
from seglog_broker.coordinators.groups.consumer_requests import HeartbeatResult
from seglog_broker.coordinators.groups.consumer_state import ConsumerState
from seglog_broker.coordinators.groups.epochs import Epochs
from seglog_broker.coordinators.groups.group_memory import MEMBER_BYTES, NAME_BYTES
from seglog_broker.coordinators.groups.membership import TOLD_MAX, CommitCheck, Each, GroupDescription, warn_of_silence
from seglog_broker.coordinators.groups.share_assignor import assign_simple
from seglog_broker.coordinators.groups.shared_topics import ByTopic, NamedPartitions, SharedTopics
from seglog_broker.coordinators.groups.topics import Topics
from seglog_broker.coordinators.share.in_flight import NO_OFFSET
from seglog_broker.coordinators.share.settings import ShareSettings
from seglog_broker.coordinators.state_machine import Answer, Now, Outbox
from seglog_broker.texts import counted
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


class ShareGroup(AssignedGroup):
    """A share group.

    What a ConsumerGroup says of records, replies, steps and sessions holds here, too. Effects are Initialize.
    """

    kind: Final = "share"
    protocol_type: Final = "share"
    expires: Final = False
    consumer: Final = None
    classic: Final = None
    takes_classic: Final = False

    def __init__(self, group_id: str, outbox: Outbox, settings: Callable[[], ShareSettings], topics: Topics) -> None:
        state = ConsumerState(group_id, outbox, SHARE_RECORDS, FIRST_EPOCH)
        super().__init__(group_id, outbox, state, Epochs(state, topics, self._assign))
        self._settings: Final = settings
        self._topics: Final = topics
        self._sessions: Final = Deadlines()
        self._last_seen: Final[dict[str, int]] = {}  # by member id, monotonic ms
        self._asked_ms: Final[dict[bytes, int]] = {}
        """When the state of a topic's partitions was last asked for, monotonic ms; not since the start: no entry."""
        self._seen: tuple[int, int, SharedTopics] | None = None
        """Version of the topics, group epoch and share partitions for which nothing was left to initialize."""
        self._assigned: tuple[int, SharedTopics] | None = None
        """Assignment epoch and share partitions at the last look whether all of these are assigned."""
        self._empty_since_ms: int | None = None

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
    def empty_since_ms(self) -> int | None:
        """Wall time (ms) at which it became empty, or was restored so; None while it has members, or never had any."""
        return self._empty_since_ms if self.is_empty else None

    @property
    def deadline_ms(self) -> int | None:
        """When the next session ends, ms of the monotonic clock; None: there are no members."""
        return self._sessions.earliest()

    @property
    def shared(self) -> SharedTopics:
        """How far the state of its share partitions is."""
        return self._state.shared or _NO_TOPICS

    def described_as_classic(self, now: Now) -> GroupDescription:
        """A description as if all its members used the classic protocol."""
        return as_classic(self.describe(now), self.kind)

    def describe(self, now: Now) -> ConsumerGroupDescription:
        """A description for admins."""
        state, topics, timeout_ms = self._state, self._topics, self._settings().session_ms
        return ConsumerGroupDescription(
            self.key,
            self.state.value,
            state.group_epoch,
            state.assignment_epoch,
            ASSIGNOR,
            Each(
                self.members,
                lambda member: describe_member(
                    member,
                    NOTHING,  # none is told
                    topics,
                    timeout_ms,
                    now.monotonic_ms - self._last_seen.get(member.member_id, now.monotonic_ms),
                ),
            ),
        )

    # --- Requests of members ------------------------------------------------------------------------------------------

    def heartbeat(self, request: ShareHeartbeat, now: Now) -> Steps[HeartbeatResult]:
        """A member's heartbeat, by which it also joins, leaves and subscribes; the result may carry its assignment.

        Raises the GroupError that tells it what to do.
        """
        if request.member_epoch == LEFT_EPOCH:
            self._remove([self._find(request.member_id).member_id], now)
            yield from self._epochs.settled(now, may_assign=False)  # for the topics that others read
            result = HeartbeatResult(request.member_id, LEFT_EPOCH)
        else:
            result = yield from self._live(request, now)
        self._state.journal.append()
        return result

    def _live(self, request: ShareHeartbeat, now: Now) -> Steps[HeartbeatResult]:
        state, settings, member_id = self._state, self._settings(), request.member_id
        before = self._find_or_make(request, settings)
        said = before.subscription
        topics = said.topics if request.topics is None else state.name_sets.shared(frozenset(request.topics))
        rack_id = said.rack_id if request.rack_id is None else request.rack_id
        subscription = said._replace(
            rack_id=rack_id, client_id=request.client_id, client_host=request.client_host, topics=topics
        )
        state.put_member(before._replace(subscription=subscription))
        self._last_seen[member_id] = now.monotonic_ms
        self._sessions.set(member_id, now.monotonic_ms + settings.session_ms)
        epoch = state.group_epoch
        if topics != said.topics or (yield from self._has_unassigned()):
            self._epochs.begin()
        since_ms = now.wall_ms - state.assigned_ms
        yield from self._epochs.settled(now, may_assign=not 0 <= since_ms < settings.assignment_interval_ms)
        yield from self._initialize(now)
        member = yield from self._reconciled(member_id, is_other_epoch=state.group_epoch != epoch)
        assigned = member.progress.assigned
        is_told = request.topics is not None or request.member_epoch == JOINING_EPOCH
        if not is_told and assigned == before.progress.assigned:
            return HeartbeatResult(member_id, member.epoch, settings.heartbeat_ms)
        return HeartbeatResult(member_id, member.epoch, settings.heartbeat_ms, assigned)

    def _find(self, member_id: str) -> Member:
        member = self._state.members.get(member_id)
        if member is None:
            raise errors.UnknownMemberError(
                f"Member {member_id} is not a member of group {self.key}.", group=self.key, member_id=member_id
            )
        return member

    def _find_or_make(self, request: ShareHeartbeat, settings: ShareSettings) -> Member:
        member = self._state.members.get(request.member_id)
        if member is None and len(self._state.members) >= settings.members_max:
            raise errors.GroupMaxSizeError(
                f"share group {self.key!r} has {counted(settings.members_max, 'member')}, as many as "
                "group.share.max.size allows: end one of them first",
                group=self.key,
            )
        if request.member_epoch == JOINING_EPOCH:
            return member or Member(request.member_id)
        member = self._find(request.member_id)
        epoch = request.member_epoch
        if epoch != member.epoch and not epoch == member.progress.previous_epoch < member.epoch:
            raise errors.FencedMemberEpochError(
                f"member {member.member_id!r} of group {self.key!r} has epoch {member.epoch} and came with {epoch}:"
                " give up all partitions and rejoin with epoch 0",
                group=self.key,
            )
        return member

    def _reconciled(self, member_id: str, *, is_other_epoch: bool) -> Steps[Member]:
        """A member with its target assignment, of topics to which it subscribes."""
        state, member = self._state, self._find(member_id)
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
            member = self._find(member_id)._replace(progress=Progress(state.assignment_epoch, previous, assigned=kept))
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

    def end_join(self, answer: Answer, now: Now) -> None:
        """Nothing: no join waits."""

    def _not_for_consumers(self) -> errors.UnknownGroupError:
        return errors.UnknownGroupError(f"Group {self.key} is not a consumer group.", group=self.key)

    # --- Sessions -----------------------------------------------------------------------------------------------------

    def _remove(self, member_ids: Iterable[str], now: Now) -> None:
        state = self._state
        for member_id in member_ids:
            state.remove_member(member_id)
            self._last_seen.pop(member_id, None)
            self._sessions.discard(member_id)
        self._epochs.begin()
        if self.is_empty:
            state.set_assignment_epoch(state.group_epoch, 0)
            self._empty_since_ms = now.wall_ms

    def advance(self, now: Now) -> None:
        """Remove members whose session has ended."""
        gone: list[str] = []
        while (member_id := self._sessions.pop_due(now.monotonic_ms)) is not None:
            gone.append(member_id)
            if len(gone) <= TOLD_MAX:
                client_id = self._find(member_id).subscription.client_id
                warn_of_silence(self.key, member_id, client_id, self._settings().session_ms)
        if gone:
            self._remove(gone, now)
            self._state.journal.append()

    def end_session(self, member_id: str, now: Now) -> None:
        """End a member's session before its deadline. Raises UnknownMemberError."""
        self._remove([self._find(member_id).member_id], now)
        self._state.journal.append()

    def restored(self, now: Now) -> None:
        """Go on from the records that were replayed. Sessions of members begin now."""
        for member in self.members:
            self._last_seen[member.member_id] = now.monotonic_ms
            self._sessions.set(member.member_id, now.monotonic_ms + self._settings().session_ms)
        if self.is_empty:
            self._empty_since_ms = now.wall_ms


def _numbers(topics: ByTopic, topic: bytes) -> frozenset[int]:
    known = topics.get(topic)
    return frozenset() if known is None else known.partitions
