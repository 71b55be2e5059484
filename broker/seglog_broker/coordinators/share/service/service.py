"""The share coordinator: which partitions share groups read, the state of records there, and the tasks behind it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import trio

from seglog_broker.config.topic_overrides import KEPT_FOR_EVER
from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.decisions import Waiting
from seglog_broker.coordinators.groups.group_memory import Budget
from seglog_broker.coordinators.groups.service.cleanup import Sweep
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.loader import StateLoader
from seglog_broker.coordinators.share.partition import PARTITION_BYTES, SharePartition
from seglog_broker.coordinators.share.records import PartitionKey, ShareReplay
from seglog_broker.coordinators.share.service.beginning import Beginning
from seglog_broker.coordinators.share.service.dead_letters import DeadLetters
from seglog_broker.coordinators.share.service.pruning import Pruning, Truncate
from seglog_broker.coordinators.share.settings import SettingsOfGroups
from seglog_broker.coordinators.topic import StateTopic, TopicSettings
from seglog_broker.coordinators.topic_writer import TopicWriter
from seglog_broker.engine.append import AppendService
from seglog_broker.engine.topics import TopicService
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Common
from seglog_broker.runtime import budget
from seglog_broker.runtime.live_config import LiveConfig
from seglog_protocol.errors import CoordinatorLoadingError, CoordinatorNotAvailableError
from seglog_protocol.internal_topics import SHARE_GROUPS_TOPIC

CHANGED_A_TURN: Final = budget.items_of(cost=100)
"""Partitions that are initialized or deleted before other tasks run."""

_LOADING: Final = "the broker has just started and still reads what share groups have acknowledged: ask again"
_UNKNOWN: Final = "what share groups have acknowledged cannot be read"

log = get_logger()


def share_topic_settings(live: LiveConfig) -> TopicSettings:
    """``__share_group_state`` as it is created: as Kafka does, never compacted, kept until it is pruned."""
    config = live.current
    return TopicSettings(
        SHARE_GROUPS_TOPIC,
        "share group",
        config.share_coordinator_state_topic_num_partitions,
        {
            **KEPT_FOR_EVER,
            "compression.type": "producer",
            "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
        },
    )


class ShareService:
    """The partitions of topics that share groups read, each a ``SharePartition`` in ``runtime``.

    A request calls the method of a state machine and then, for what is to be durable before the answer,
    ``runtime.written(key)``; for all else ``runtime.carry_out(key)``, after each call.
    """

    def __init__(self, common: Common, appends: AppendService, topics: TopicService, truncate: Truncate) -> None:
        """``truncate`` deletes records of the broker's own topics before an offset."""
        self._registry = common.directory.registry
        self._scheduler = common.scheduler
        config = common.config
        self.settings = SettingsOfGroups(config)
        """Those in force for each group."""
        self.memory = Budget(
            "seglog.share.memory.bytes", "share groups", lambda: config.current.seglog_share_memory_bytes
        )
        self.on_available: Callable[[PartitionKey], None] = lambda _key: None
        """Called when records of a partition have become available to all members of its group again."""
        self._topic = StateTopic(
            config, common.clock, common.table, partial(share_topic_settings, config), appends.append
        )
        self._writer = TopicWriter(self._topic, common.scheduler, topics.create)
        self.runtime: Final[CoordinatorRuntime[SharePartition]] = CoordinatorRuntime(
            self._topic,
            common.clock,
            common.scheduler,
            carry_out=lambda letter: self.dead_letters.add(letter),  # noqa: PLW0108 - it is made below
            note_size=self.memory.note,
        )
        self.dead_letters = DeadLetters(*common, self.runtime, self.settings.of, appends.append, topics.create)
        self._of_groups: dict[str, dict[PartitionKey, SharePartition]] = {}
        self.changes = 0
        """Grows when a group begins to read a partition, or its state there is forgotten."""
        self._loader = StateLoader(*common, self._topic, ShareReplay, self._keep)
        self.beginning = Beginning(*common, self.runtime, self.settings)
        self.pruning = Pruning(*common, self._topic, self._loader, self.runtime, truncate)
        self._orphans = Sweep(lambda: list(self._of_groups), self._clean, common.scheduler)
        self.write_decided = self._topic.write_wanted
        self.end_waits = self.runtime.end_waits

    async def run(self) -> None:
        """Load the state, then write, wake and prune it, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._writer.run)
            nursery.start_soon(self.runtime.run_timers)
            nursery.start_soon(self.dead_letters.run)
            seconds = await self._loader.run()
            if seconds is not None:
                log.info(
                    "share_groups_loaded",
                    groups=len(self._of_groups),
                    partitions=len(self.runtime.machines),
                    seconds=seconds,
                )
            nursery.start_soon(self.beginning.run)
            nursery.start_soon(self.pruning.run)
            self._orphans.want()
            nursery.start_soon(self._orphans.run)

    # --- Loading ------------------------------------------------------------------------------------------------------

    async def _keep(self, replay: ShareReplay) -> None:
        """Take over the state in a partition of the topic that was read; what follows from it is carried out."""
        await self._scheduler.in_turns(replay.catch_up())
        for key, state in replay.states.items():
            machine = self._machine(key)
            machine.load(state)
            await self.runtime.restore(machine, ())
            self._note(machine)
            self.beginning.note_restored(key)
            self.runtime.carry_out(key.text)
            await self._scheduler.turn()

    def _machine(self, key: PartitionKey) -> SharePartition:
        return SharePartition(key, self.runtime.outbox, partial(self.settings.of, key.group), self._tell_available)

    def _tell_available(self, key: PartitionKey) -> None:
        self.on_available(key)

    def _note(self, machine: SharePartition) -> None:
        self._of_groups.setdefault(machine.partition.group, {})[machine.partition] = machine
        self.changes += 1

    # --- Looking up ---------------------------------------------------------------------------------------------------

    def check_loaded(self) -> None:
        """Raise CoordinatorLoadingError, or CoordinatorNotAvailableError, while some of the state is not known."""
        if self._loader.is_loading:
            raise CoordinatorLoadingError(_LOADING)
        if self._loader.any_failure is not None:
            raise CoordinatorNotAvailableError(f"{_UNKNOWN}: {self._loader.any_failure}")

    def check(self, key: PartitionKey) -> None:
        """Raise CoordinatorLoadingError, or CoordinatorNotAvailableError, while nothing is known of a partition."""
        text = key.text
        if self._loader.is_unloaded(text):
            raise CoordinatorLoadingError(_LOADING, group=key.group)
        failure = self._loader.failure(text)
        if failure is not None:
            raise CoordinatorNotAvailableError(f"{_UNKNOWN}: {failure}", group=key.group)

    def find(self, key: PartitionKey) -> SharePartition | None:
        """The state of a partition; None if the group does not read it. Raises as ``check``."""
        if not self._loader.is_complete:
            self.check(key)
        of_group = self._of_groups.get(key.group)
        return None if of_group is None else of_group.get(key)

    def partitions_of(self, group: str) -> Mapping[bytes, Sequence[int]]:
        """The partitions that a group reads, or has read, by topic id."""
        found: dict[bytes, list[int]] = {}
        for key in self._of_groups.get(group, ()):
            found.setdefault(key.topic_id, []).append(key.partition)
        return {topic_id: sorted(numbers) for topic_id, numbers in found.items()}

    def groups(self) -> Collection[str]:
        """The groups that read, or have read, something."""
        return self._of_groups.keys()

    # --- Changes ------------------------------------------------------------------------------------------------------

    async def initialize(self, group: str, topic_id: bytes, start_offsets: Mapping[int, int], state_epoch: int) -> None:
        """Have a group read partitions of a topic from these offsets on (-1: by its settings, at the first fetch).

        What was known of them is replaced. It is durable when this returns. ``state_epoch`` is the epoch of the
        group. Raises as ``check``, and CoordinatorNotAvailableError where there is no memory, or it could not be
        written.
        """
        keys = [PartitionKey(group, topic_id, number) for number in start_offsets]
        machines = self.runtime.machines
        for key in keys:
            self.check(key)
        new = sum(key.text not in machines for key in keys)
        self.memory.check(group, PARTITION_BYTES * new, is_new=True)
        written: list[Waiting[None]] = []
        async for key in self._scheduler.spread(keys, CHANGED_A_TURN):
            machine = machines.get(key.text)
            if machine is None:
                machine = machines[key.text] = self._machine(key)
                self._note(machine)
            machine.initialize(start_offsets[key.partition], state_epoch, self.runtime.now())
            written.append(self.runtime.begin_write(key.text))
        if self._registry.topics.with_id(id_text(topic_id)) is None:  # deleted since the caller found it
            self._orphans.want()
        for each in written:
            await each.wait()

    async def delete(self, group: str, topic_id: bytes, partitions: Iterable[int]) -> None:
        """Forget the state of partitions; durable when it returns. What is not known is passed over.

        Raises as ``check``, and CoordinatorNotAvailableError where it could not be written: then ask again.
        """
        keys = [PartitionKey(group, topic_id, number) for number in partitions]
        for key in keys:
            self.check(key)
        await self._delete(keys)

    async def _delete(self, keys: Iterable[PartitionKey]) -> None:
        removed: list[Waiting[None]] = []
        async for key in self._scheduler.spread(keys, CHANGED_A_TURN):
            of_group = self._of_groups.get(key.group, {})
            of_group.pop(key, None)
            self.changes += 1
            if not of_group:
                self._of_groups.pop(key.group, None)
            if key.text in self.runtime.machines or key.text in self.runtime.owed:
                removed.append(self.runtime.remove(key.text))
        for each in removed:
            await each.wait()

    def note_topic(self, _topic: str, is_deleted: bool) -> None:
        """Note that a topic was created, altered or deleted: then what groups acknowledged of it is forgotten."""
        if is_deleted:
            self._orphans.want()

    async def _clean(self, group: str) -> None:
        """Forget the state of topics that are gone, also where one of the same name was made since."""
        topics = self._registry.topics
        gone = [key for key in self._of_groups.get(group, ()) if topics.with_id(id_text(key.topic_id)) is None]
        if gone:
            await self._delete(gone)
            log.info("share_state_forgotten", group=group, partitions=len(gone), reason="the topic was deleted")
