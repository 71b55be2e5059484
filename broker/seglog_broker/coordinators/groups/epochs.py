"""The epochs of a group to which the broker assigns partitions: when one begins, and the assignment that belongs to it.

The group epoch grows whenever members, their subscriptions or topics change. Whoever comes next makes the target
assignment of that epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from seglog_broker.coordinators.groups.assignors import NOTHING, Assign, Subscriber
from seglog_broker.coordinators.groups.consumer_state import ConsumerState
from seglog_broker.coordinators.groups.topics import Topics, TopicSize
from seglog_broker.coordinators.state_machine import Now
from seglog_protocol.steps import ITEMS_A_STEP, Pace, Steps, finished


@dataclass(eq=False, repr=False)
class Epochs:
    """The group epoch and the assignment epoch of ``state``; ``assign`` makes an assignment."""

    _state: Final[ConsumerState]
    _topics: Final[Topics]
    _assign: Final[Assign]

    def __post_init__(self) -> None:
        self._topics_version = -1
        """The version of ``topics`` at the last look."""
        self._is_hash_due = False
        """True if the group epoch has begun without another look at the topics."""
        self._assigning: Steps[None] | None = None
        """The computation of the assignment. All requests wait for it, and each does a step of it in its turn."""

    def begin(self) -> None:
        """Begin another epoch."""
        self._state.set_group_epoch(self._state.group_epoch + 1, self._state.metadata_hash)
        self._is_hash_due = True

    def look(self) -> None:
        """Begin another epoch if topics have changed so that this makes a difference."""
        if self._topics_version < self._topics.version:
            finished(self._look())

    def restart(self) -> None:
        """Give up an assignment that is being computed."""
        self._assigning = None

    def settled(self, now: Now, *, may_assign: bool = True) -> Steps[None]:
        """Wait for the target assignment of the group epoch, for topics as they are now or later.

        Without ``may_assign`` wait for the group epoch alone.
        """
        state, version = self._state, self._topics.version
        while (
            self._is_hash_due
            or self._topics_version < version
            or (may_assign and state.group_epoch > state.assignment_epoch)
        ):
            if self._assigning is None:
                self._assigning = self._look_and_assign(now, may_assign=may_assign)
            try:
                next(self._assigning)
            except StopIteration:
                self._assigning = None
            else:
                yield

    def _look_and_assign(self, now: Now, *, may_assign: bool) -> Steps[None]:
        """Make the assignment of the group epoch, unless another epoch begins between two steps."""
        state = self._state
        found = yield from self._look()
        epoch = state.group_epoch
        if found is None or not may_assign or epoch == state.assignment_epoch:
            return
        subscribers = yield from self._subscribers(found)
        sizes = {topic.topic_id: topic.partitions for topic in found.values()}
        assigned = yield from self._assign(subscribers, sizes)
        if state.group_epoch != epoch:
            return
        for member_id, target in assigned.items():
            state.set_target(member_id, target)
        state.set_assignment_epoch(epoch, now.wall_ms)
        if len(sizes) >= ITEMS_A_STEP:
            yield

    def _look(self) -> Steps[dict[str, TopicSize] | None]:
        """Topics that members read, by name; begins an epoch if they differ. None if another one began meanwhile."""
        state, epoch, version = self._state, self._state.group_epoch, self._topics.version
        found: dict[str, TopicSize] = {}
        total = 0
        pace = Pace()
        for name in list(state.name_sets.all_names):
            topic = self._topics.find(name)
            if topic is not None:
                found[name] = topic
                total += hash((int.from_bytes(topic.topic_id), topic.partitions))  # the same in every process
            if pace.is_due():
                yield
        if state.group_epoch != epoch:
            return None
        hashed = (total + 2**63) % 2**64 - 2**63
        if hashed != state.metadata_hash:
            state.set_group_epoch(epoch if self._is_hash_due else epoch + 1, hashed)
        self._is_hash_due = False
        self._topics_version = version
        return found

    def _subscribers(self, found: Mapping[str, TopicSize]) -> Steps[dict[str, Subscriber]]:
        """The members as an assignor sees them; ``found`` are the topics that there are, by name."""
        state = self._state
        ids: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
        subscribers: dict[str, Subscriber] = {}
        pace = Pace()
        for member in list(state.members.values()):
            said = member.subscription
            key = said.topics, said.regex
            if key not in ids:  # most members report the same
                names = state.topics_of(member)
                ids[key] = frozenset([found[name].topic_id for name in names if name in found])
                if pace.is_due(len(names)):
                    yield
            targets = state.targets.get(member.member_id, NOTHING)
            subscribers[member.member_id] = Subscriber(ids[key], targets, member.instance_id)
        return subscribers
