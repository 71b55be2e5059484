"""Where a group begins to read a partition, and where it goes on when the log has other ends than its state."""

from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.loader import RECOVERY_POLL_SECONDS
from seglog_broker.coordinators.share.in_flight import NO_OFFSET
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.settings import SettingsOfGroups
from seglog_broker.engine.turns import SegmentTimes
from seglog_broker.logger import get_logger
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget

SETTLED_A_TURN: Final = budget.items_of(cost=50)
"""States that are compared with their logs before other tasks run."""

log = get_logger()


@dataclass(eq=False, repr=False)
class Beginning(Service):
    """Makes states ready for the logs that they are about.

    A start offset that is chosen here is written before the first record is delivered. Kafka writes it with the first
    acknowledgement; a broker that is killed before that begins at another "latest" then, and loses what came between.
    """

    _runtime: CoordinatorRuntime[SharePartition]
    _settings: SettingsOfGroups

    def __post_init__(self) -> None:
        self._unsettled: set[str] = set()
        """Coordinator keys whose states are as they were loaded, not compared with their logs yet."""
        self._starting: set[str] = set()
        """Those for which a start was chosen that is not durable yet."""

    def note_restored(self, key: PartitionKey) -> None:
        """Note that a state was loaded."""
        self._unsettled.add(key.text)

    def is_ready(self, machine: SharePartition, partition: Partition) -> bool:
        """True if records may be acquired; else call ``make_ready`` first. Ask before each ``acquire``."""
        offsets, key = partition.log.offsets, machine.key
        is_known = key not in self._unsettled and key not in self._starting
        return is_known and offsets.start <= machine.start_offset <= offsets.end

    async def make_ready(self, machine: SharePartition, partition: Partition) -> None:
        """Choose where the group begins; pass what is not in the log any more, and forget what is not in it yet.

        Raises CoordinatorNotAvailableError where the choice cannot be written, and what look-ups by time raise.
        """
        if machine.start_offset == NO_OFFSET or machine.key in self._starting:
            await self._begin(machine, partition)
        self._settle(machine, partition)

    async def run(self) -> None:
        """Compare all states that were loaded with their logs, each when this is recovered.

        To wait for a fetch would be too late: after another start the log may have other records where some were lost.
        """
        waiting = list(self._unsettled)
        while waiting:
            later: list[str] = []
            async for key in self._scheduler.spread(waiting, SETTLED_A_TURN):
                machine = self._runtime.machines.get(key)
                if machine is None or key not in self._unsettled:
                    self._unsettled.discard(key)
                    continue
                _, topic_id, number = machine.partition
                topic = self._directory.registry.topics.with_id(id_text(topic_id))
                partition = None if topic is None else self._table.find_readable(topic.name, number)
                if partition is not None:
                    self._settle(machine, partition)
                elif topic is not None and self._recoveries.refusal(topic.name, number):
                    later.append(key)
            if waiting := later:
                await trio.sleep(RECOVERY_POLL_SECONDS)

    def _settle(self, machine: SharePartition, partition: Partition) -> None:
        """Pass what is not in the log any more, and forget what is not in it yet.

        Records that a power cut took from the log may have been acknowledged: others get their offsets.
        """
        end = partition.log.log_end_offset
        if machine.key in self._unsettled:
            self._unsettled.discard(machine.key)
            end = partition.end_offset_at_start
        elif machine.start_offset <= end:
            end = machine.end_offset
        if machine.end_offset > end:
            log.warning(
                "share_state_clamped",
                group=machine.partition.group,
                topic=partition.topic,
                partition=partition.number,
                known_until=machine.end_offset,
                log_end_offset=end,
                consequence="the log lost records that the group had read, or the group was to begin beyond the log "
                "end; it goes on at that end",
            )
            machine.note_log_end(end, self._runtime.now())
        machine.note_log_start(partition.log.log_start_offset)
        self._runtime.carry_out(machine.key)

    async def _begin(self, machine: SharePartition, partition: Partition) -> None:
        reset = self._settings.of(machine.partition.group).auto_offset_reset
        partition_log = partition.log
        offset = partition_log.log_start_offset if reset == "earliest" else partition_log.log_end_offset
        if isinstance(reset, int):
            timestamp = self._clock.now_ms() - reset
            await self._scheduler.retry_after_cold_read(SegmentTimes(partition).load)
            found = await self._scheduler.retry_after_cold_read(lambda: partition_log.find_timestamp(timestamp))
            offset = partition_log.log_end_offset if found is None else found.offset
        if machine.start_offset == NO_OFFSET:  # nobody else has chosen meanwhile
            machine.initialize(offset, machine.state_epoch, self._runtime.now())
            self._starting.add(machine.key)
        elif machine.is_unwritten:
            machine.snapshot(self._runtime.now())
        await self._runtime.written(machine.key)
        self._starting.discard(machine.key)
