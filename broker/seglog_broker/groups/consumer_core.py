"""What a group of the consumer protocol does with its members, whichever protocol these speak."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from seglog_broker.groups import consumer_errors as errors
from seglog_broker.groups.assignors import ASSIGNORS, NOTHING, Assignment, Subscriber, assign
from seglog_broker.groups.consumer_member import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    Member,
    MemberState,
    Reconciliation,
    Subscription,
)
from seglog_broker.groups.consumer_requests import Topics, TopicSize
from seglog_broker.groups.consumer_state import ConsumerState
from seglog_broker.groups.deadlines import Deadlines
from seglog_broker.groups.membership import Effects, Limits, Now
from seglog_broker.groups.topic_regexes import TopicRegexes

SESSION: Final = "session "
REVOCATION: Final = "revocation "
JOIN: Final = "join "
SYNC: Final = "sync "
"""What the deadlines of a member are for: the beginnings of their keys, before its id."""


class ConsumerCore:
    """The members of a group, their subscriptions, and the assignment that they go towards.

    Records of what changes are appended by ``state.journal.append()``.
    """

    def __init__(self, group_id: str, effects: Effects, limits: Callable[[], Limits], topics: Topics) -> None:
        self.group_id: Final = group_id
        self.limits: Final = limits
        self.topics: Final = topics
        self.state: Final = ConsumerState(group_id, effects)
        self.regexes: Final = TopicRegexes(self.state)
        self.deadlines: Final = Deadlines()
        self.last_seen: Final[dict[str, int]] = {}
        """When there was a request of each member, by its id, ms of the monotonic clock."""
        self.empty_since_ms: int | None = None
        """Since when there are no members, of the wall clock; it says nothing while there are some."""
        self._hashed: tuple[frozenset[str], int, int] | None = None
        """The names of topics, their version, and the hash of both, of last time."""
        self._topics_version: int | None = None
        """Of the topics that the group epoch is for."""

    # --- Members ------------------------------------------------------------------------------------------------------

    def find(self, member_id: str) -> Member:
        """A member. Raises UnknownMemberError."""
        member = self.state.members.get(member_id)
        if member is None:
            raise errors.unknown_member(self.group_id, member_id)
        return member

    def find_static(self, member_id: str, instance_id: str) -> Member:
        """A static member. Raises UnknownMemberError, or FencedInstanceError if another took its place."""
        owner = self.state.static_member(instance_id)
        if owner is None:
            raise errors.unknown_instance(self.group_id, member_id, instance_id)
        if owner.member_id != member_id:
            raise errors.fenced_instance(self.group_id, member_id, owner)
        return owner

    def make_or_replace(self, member_id: str, instance_id: str | None) -> tuple[Member, Member | None]:
        """A member that is not part of the group yet; and the static member whose place it is to take, if there is one.

        Raises UnreleasedInstanceError, GroupMaxSizeError.
        """
        owner = self.state.static_member(instance_id)
        if owner is None:
            self.check_size()
            return Member(member_id), None
        if owner.classic is None and owner.epoch != AWAY_EPOCH:
            raise errors.unreleased_instance(self.group_id, owner)
        progress = owner.progress._replace(epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
        return Member(member_id, owner.subscription, progress), owner

    def check_size(self) -> None:
        """Raise GroupMaxSizeError if there is no room for a member more."""
        limit = self.limits().consumer_max_size
        if len(self.state.members) >= limit:
            raise errors.group_is_full(self.group_id, limit)

    def replace(self, old: Member, new: Member) -> None:
        """Have ``new`` take the place of a static member: what that had, and was to have."""
        target = self.state.targets.get(old.member_id, NOTHING)
        self._forget(old.member_id)
        self.state.put_member(new)
        self.state.set_target(new.member_id, target)

    def adopt(self, members: Iterable[Member], epoch: int, now: Now) -> None:
        """Take members with what they have, which is their assignment of ``epoch``."""
        for member in members:
            self.state.put_member(member)
            self.state.set_target(member.member_id, member.progress.assigned)
            self.live_on(member, now)
        self.state.set_group_epoch(epoch, metadata_hash(self.state.all_topics(), self.topics))
        self.state.set_assignment_epoch(epoch, now.wall_ms)
        self.empty_since_ms = now.wall_ms

    def remove(self, member_ids: Iterable[str], now: Now) -> None:
        """Have these members no more."""
        regexes = set()
        for member_id in member_ids:
            regexes.add(self.state.members[member_id].subscription.regex)
            self._forget(member_id)
        self.regexes.drop_unused(regexes)
        self._grow_epoch(must=True)
        if not self.state.members:
            self.empty_since_ms = now.wall_ms

    def live_on(self, member: Member, now: Now) -> None:
        """From now on the member has its session timeout for its next request."""
        self.last_seen[member.member_id] = now.monotonic_ms
        self.deadlines.set(SESSION + member.member_id, now.monotonic_ms + self.session_timeout_ms(member))

    def session_timeout_ms(self, member: Member) -> int:
        """A member of the classic protocol says its own."""
        classic = member.classic
        return self.limits().consumer_session_timeout_ms if classic is None else classic.session_timeout_ms

    def _forget(self, member_id: str) -> None:
        self.state.remove_member(member_id)
        self.last_seen.pop(member_id, None)
        for purpose in (SESSION, REVOCATION, JOIN, SYNC):
            self.deadlines.discard(purpose + member_id)

    # --- Assigning ----------------------------------------------------------------------------------------------------

    def settle(
        self, member: Member, subscription: Subscription, topics_differ: bool, owned: Assignment | None, now: Now
    ) -> Member:
        """Have ``member`` say ``subscription``, make an assignment if one is due, and let it go towards that.

        ``topics_differ`` if the group reads other topics for another reason; ``owned``: as in Reconciliation.
        """
        state, before = self.state, member.subscription
        subscription = subscription._replace(topics=state.name_sets.shared(subscription.topics))
        updated = member._replace(subscription=subscription)
        changed = subscription.topics != before.topics or subscription.regex != before.regex
        state.put_member(updated)
        if subscription.regex != before.regex:
            self.regexes.drop_unused([before.regex])
        topics_differ |= self.regexes.refresh(now)
        must = changed or topics_differ or state.group_epoch == 0
        if must or self._topics_version != self.topics.version:
            self._grow_epoch(must)
        if state.group_epoch > state.assignment_epoch:
            self._assign(now)
        if changed or not updated.is_at(state.assignment_epoch):
            updated = self._reconcile(updated, changed, owned, now)
        self.live_on(updated, now)
        return updated

    def preferred_assignor(self) -> str:
        """The one that most members ask for; the first of the configuration if none does."""
        votes = Counter(member.subscription.assignor for member in self.state.members.values())
        asked = [(-count, name) for name, count in votes.items() if name is not None and name in ASSIGNORS]
        return min(asked)[1] if asked else self.limits().consumer_assignors[0]

    def await_revocation(self, member: Member, now: Now) -> None:
        """Give a member of the consumer protocol its rebalance timeout to give up what it has to, if it has to."""
        key = REVOCATION + member.member_id
        if member.classic is None and member.progress.state is MemberState.UNREVOKED_PARTITIONS:
            self.deadlines.set(key, now.monotonic_ms + member.subscription.rebalance_timeout_ms)
        else:
            self.deadlines.discard(key)

    def is_behind(self, member: Member) -> bool:
        """Whether a member of the classic protocol has to join again, to give partitions up or to get its own."""
        if member.epoch < self.state.group_epoch:
            return True
        match member.progress.state:
            case MemberState.UNREVOKED_PARTITIONS:
                return True
            case MemberState.UNRELEASED_PARTITIONS:
                has = member.progress.assigned
                return all(
                    self.state.owner(topic, number) is None
                    for topic, numbers in self.state.targets.get(member.member_id, NOTHING).items()
                    for number in numbers - has.get(topic, frozenset())
                )
        return False

    def look_at_topics(self) -> None:
        """Begin another epoch if topics have changed so that this makes a difference."""
        if self._topics_version != self.topics.version:
            self._grow_epoch(must=False)

    def _grow_epoch(self, must: bool) -> None:
        """Begin another epoch if there is reason to, or if the topics that members read are not what they were."""
        names, version = self.state.all_topics(), self.topics.version
        if self._hashed is None or self._hashed[0] is not names or self._hashed[1] != version:
            self._hashed = names, version, metadata_hash(names, self.topics)
        found = self._hashed[2]
        if must or found != self.state.metadata_hash:
            self.state.set_group_epoch(self.state.group_epoch + 1, found)
        self._topics_version = self.topics.version

    def _assign(self, now: Now) -> None:
        """Make the assignment of the group epoch."""
        state = self.state
        found = {name: topic for name in state.all_topics() if (topic := self.topics.find(name)) is not None}
        ids = SharedIds(found)
        subscribers = {
            member.member_id: Subscriber(
                ids.of(state.topics_of(member)),
                state.targets.get(member.member_id, NOTHING),
                member.instance_id,
            )
            for member in state.members.values()
        }
        sizes = {topic.topic_id: topic.partitions for topic in found.values()}
        for member_id, target in assign(self.preferred_assignor(), subscribers, sizes).items():
            state.set_target(member_id, target)
        state.set_assignment_epoch(state.group_epoch, now.wall_ms)

    def _reconcile(self, member: Member, subscription_changed: bool, owned: Assignment | None, now: Now) -> Member:
        state = self.state
        found = (self.topics.find(name) for name in state.topics_of(member))
        progress = Reconciliation(
            state.assignment_epoch,
            state.targets.get(member.member_id, NOTHING),
            frozenset(topic.topic_id for topic in found if topic is not None),
            subscription_changed,
            owned,
            lambda topic, partition: state.owner(topic, partition) not in {None, member.member_id},
        ).next(member.progress)
        if progress == member.progress:
            return member
        updated = member._replace(progress=progress)
        state.put_member(updated)
        self.await_revocation(updated, now)
        return updated


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A number that is another one as soon as topics are created, enlarged or deleted; 0 if there is none of them."""
    found = [topic for name in names if (topic := topics.find(name)) is not None]
    hashed = hashlib.blake2b(digest_size=8)
    for topic_id, partitions in sorted(found):
        hashed.update(topic_id + partitions.to_bytes(4))
    return int.from_bytes(hashed.digest(), signed=True) if found else 0


class SharedIds:
    """The ids of topics by their names, made once for each set of names that is one and the same."""

    def __init__(self, found: Mapping[str, TopicSize]) -> None:
        self._found = found
        self._made: dict[int, tuple[AbstractSet[str], frozenset[bytes]]] = {}

    def of(self, names: AbstractSet[str]) -> frozenset[bytes]:
        """Those of topics that there are."""
        made = self._made.get(id(names))
        if made is None:  # the set is kept, so that its number belongs to no other
            ids = frozenset(self._found[name].topic_id for name in names if name in self._found)
            made = self._made[id(names)] = names, ids
        return made[1]
