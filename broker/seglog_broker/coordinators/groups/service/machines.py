"""The state machines of groups: how each is made, how another takes its place, and how often each rebalances."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from seglog_broker.config.dynamic_config import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.groups.classic import ClassicGroup
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_classic import ClassicMembership
from seglog_broker.coordinators.groups.group_memory import Budget
from seglog_broker.coordinators.groups.membership import Limits
from seglog_broker.coordinators.groups.migration import downgraded, upgraded
from seglog_broker.coordinators.groups.topics import Topics, TopicSize, id_bytes, id_text
from seglog_broker.coordinators.topic import StateTopic
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_protocol.steps import Steps

log = get_logger()

ClassicMembers: TypeAlias = ClassicGroup | ClassicMembership
"""Where members of the classic protocol send their requests, whatever the kind of their group."""

Group: TypeAlias = ClassicGroup | ConsumerGroup
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
        self.runtime: CoordinatorRuntime[Group] = CoordinatorRuntime(
            self._topic, self._clock, self._scheduler, note_size=self._note, successor=self._successor
        )
        self.rebalances = Rebalances()
        self.new_id: Callable[[], str] = lambda: str(uuid.uuid4())
        """Makes the random part of a member id."""

    def _note(self, group: str, size: int) -> None:
        """A group takes so many bytes; it may be at another generation."""
        self.memory.note(group, size)
        known = self.runtime.machines.get(group)
        if known is None:
            self.rebalances.forget(group)
        else:
            self.rebalances.note(group, known.generation)

    def limits(self, group: str) -> Limits:
        """The limits in force for a group, with the settings that it has of its own."""
        config, own = self._config.current, self._config.dynamic.of_group(group)
        session_ms, heartbeat_ms = own.get(SESSION_TIMEOUT), own.get(HEARTBEAT_INTERVAL)
        return Limits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
            consumer_session_timeout_ms=int(session_ms or config.group_consumer_session_timeout_ms),
            consumer_heartbeat_interval_ms=int(heartbeat_ms or config.group_consumer_heartbeat_interval_ms),
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

    def _successor(self, known: Group) -> Callable[[], Group] | None:
        consumer = known.consumer
        if consumer is None or not consumer.may_be_classic:
            return None
        return partial(self._downgraded, consumer, self.classic(known.key))


def _log_change(made: Group) -> None:
    log.info("group_protocol_changed", group=made.key, kind=made.kind, members=len(made.members))


class Rebalances:
    """Counts of the groups that there are."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # group -> its last generation, how many have begun

    def note(self, group: str, generation: int) -> None:
        """A group is at this generation now."""
        last, count = self._seen.get(group, (0, 0))
        if generation != last:
            self._seen[group] = generation, count + max(0, generation - last)

    def restored(self, group: str, generation: int) -> None:
        """A group was at this generation when the broker started."""
        self._seen[group] = generation, 0

    def forget(self, group: str) -> None:
        """A group is gone."""
        self._seen.pop(group, None)

    def count(self, group: str) -> int:
        """Generations begun since the start."""
        return self._seen.get(group, (0, 0))[1]
