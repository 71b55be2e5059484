"""Loads groups and committed offsets after a start, and holds them against the logs that there are."""

from collections.abc import Mapping
from typing import Final

import structlog
import trio

from seglog_broker.coordinators.groups.records import partition_of
from seglog_broker.coordinators.groups.replay import Replay
from seglog_broker.coordinators.groups.service.clamping import RECOVERY_POLL_SECONDS, OffsetClamp
from seglog_broker.coordinators.groups.service.gone_topics import GoneTopics
from seglog_broker.coordinators.groups.service.loading import replay_partition
from seglog_broker.coordinators.groups.service.offsets import OffsetService
from seglog_broker.coordinators.groups.service.offsets_topic import OffsetsTopic
from seglog_broker.coordinators.groups.service.runner import GroupRunner
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.recoveries import Recoveries
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.io.os_errors import why
from seglog_protocol.errors import (
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    InvalidGroupIdError,
    PartitionOfflineError,
    SeglogError,
)
from seglog_protocol.internal_topics import OFFSETS_TOPIC

GROUP_BYTES_MAX: Final = 32_767
"""Of a group's name: what a string in Kafka's records can have."""

log = structlog.get_logger()


class GroupLoader:
    """Which groups are loaded, and the task that loads them."""

    def __init__(
        self,
        runner: GroupRunner,
        offsets: OffsetService,
        topic: OffsetsTopic,
        table: PartitionTable,
        recoveries: Recoveries,
        reads: ColdReads,
        offload: Offload,
        clamp: OffsetClamp,
        gone: GoneTopics,
        topic_ids: Mapping[str, str],
    ) -> None:
        """``topic_ids``: by name, of the topics that there are at the start."""
        self._runner = runner
        self._offsets = offsets
        self._topic = topic
        self._table = table
        self._recoveries = recoveries
        self._reads = reads
        self._offload = offload
        self._clamp = clamp
        self._gone = gone
        self._topic_ids = dict(topic_ids)
        self._unloaded: set[int] = set(range(topic.partitions)) if topic.exists else set()
        self._failed: dict[int, str] = {}  # partition -> why it cannot be loaded

    @property
    def is_loading(self) -> bool:
        """Whether some groups are not known yet."""
        return bool(self._unloaded)

    def check_named(self, group: str) -> None:
        """As ``check``, for what only a group with a name is asked: the one without has offsets and no members."""
        if not group:
            raise InvalidGroupIdError("the group id is empty: give the group a name", group=group)
        self.check(group)

    def check(self, group: str) -> None:
        """Raise the GroupError of any request about ``group``, if there is one now."""
        if len(group) * 3 > GROUP_BYTES_MAX and len(group.encode()) > GROUP_BYTES_MAX:
            raise InvalidGroupIdError(
                f"the group id is longer than {GROUP_BYTES_MAX:,} bytes: give the group a shorter one",
                group=group[:100],
            )
        if self._unloaded or self._failed:
            number = partition_of(group, self._topic.partitions)
            if number in self._unloaded:
                raise CoordinatorLoadingError(
                    f"the broker has just started and still reads what groups committed: ask again about {group}",
                    group=group,
                )
            if number in self._failed:
                raise CoordinatorNotAvailableError(
                    f"what group {group} committed cannot be read: {self._failed[number]}", group=group
                )

    async def run(self) -> None:
        """Load every partition, then end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._clamp.run, lambda: self.is_loading)
            await self._load_all()

    async def _load_all(self) -> None:
        began = trio.current_time()
        was_there = self._topic.exists
        for number in sorted(self._unloaded):
            replay = Replay(self._topic_ids)
            try:
                partition = await self._in_service(number)
                await replay_partition(partition, replay, self._reads, self._offload)
                replay.end()
            except (SeglogError, OSError) as error:
                # Of what was read nothing is kept: a later record, which was not read, may have replaced it.
                self._failed[number] = reason = why(error) if isinstance(error, OSError) else error.message
                log.error("groups_not_loaded", topic=OFFSETS_TOPIC, partition=number, reason=reason)  # noqa: TRY400
            else:
                await self._keep(replay, number)
            self._unloaded.discard(number)
        if was_there:
            log.info(
                "groups_loaded",
                groups=len({*self._runner.groups, *self._offsets.committed}),
                offsets=len(self._offsets.committed),
                seconds=round(trio.current_time() - began, 3),
            )
        await self._gone.forget()

    async def _keep(self, replay: Replay, number: int) -> None:
        for what, count in replay.unknown.items():
            log.warning("group_records_skipped", topic=OFFSETS_TOPIC, partition=number, records=count, reason=what)
        for group, value in replay.classic.items():
            self._runner.restore(group, value)
            await self._reads.turn()
        for group, records in replay.consumer.items():
            await self._runner.restore_consumer(group, records.values(), self._reads.turn)
            await self._reads.turn()
        self._offsets.committed.add(replay.offsets)
        await self._clamp.settle(replay.offsets)

    async def _in_service(self, number: int) -> Partition:
        """A partition, once it is recovered. Raises PartitionOfflineError."""
        while True:
            partition = self._table.find_readable(OFFSETS_TOPIC, number)
            if partition is not None:
                return partition
            if self._recoveries.refusal(OFFSETS_TOPIC, number) is None:
                self._table.partition(OFFSETS_TOPIC, number)  # raises why it is not there
                raise PartitionOfflineError(f"{OFFSETS_TOPIC}-{number} is not in service")
            await trio.sleep(RECOVERY_POLL_SECONDS)
