"""Sets committed offsets beyond the ends of their logs back to those, after a start.

A power cut may have taken records that were read, and committed, before they were on the disk. Or the commit was beyond
the log end when it came (``beyond_end``).
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import structlog
import trio

from seglog_broker.api.groups.offsets import OFFSETS_A_WRITE, OffsetService
from seglog_broker.api.groups.offsets_topic import OffsetsTopic
from seglog_broker.groups.committed_offsets import CommittedOffset, Key
from seglog_broker.groups.records import encode_commit
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.recoveries import Recoveries
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_protocol.errors import SeglogError

RECOVERY_POLL_SECONDS: Final = 0.05
"""Between two looks whether a partition has been recovered."""

GROUPS_A_TURN: Final = 100
"""Groups that are looked at before other tasks run."""

GROUP_LINES_MAX: Final = 100
"""Groups that have a line of their own in the log."""
_OFFSETS_SHOWN: Final = 5

log = structlog.get_logger()


class _Clamped(NamedTuple):
    key: Key
    before: int
    now: CommittedOffset


class OffsetClamp:
    """The task that looks at all that is committed once, each partition as soon as it is recovered."""

    def __init__(
        self,
        offsets: OffsetService,
        topic: OffsetsTopic,
        table: PartitionTable,
        directory: LogDirectory,
        recoveries: Recoveries,
        reads: ColdReads,
    ) -> None:
        self._offsets = offsets
        self._topic = topic
        self._table = table
        self._directory = directory
        self._recoveries = recoveries
        self._reads = reads
        self._groups = self._partitions = 0

    async def run(self) -> None:
        """Look at everything that is committed now, and end."""
        loaded = {group: dict(self._offsets.committed.of(group)) for group in self._offsets.committed}
        while loaded:
            for number, group in enumerate(list(loaded), start=1):
                if number % GROUPS_A_TURN == 0:
                    await self._reads.turn()
                kept = loaded[group]
                ready = [key for key in kept if self._recoveries.refusal(*key) is None]
                clamped = [found for key in ready if (found := self._clamp(group, key, kept.pop(key))) is not None]
                if clamped:
                    self._write(group, clamped)
                if not kept:
                    del loaded[group]
            if loaded:
                await trio.sleep(RECOVERY_POLL_SECONDS)
        if self._groups > GROUP_LINES_MAX:
            log.warning("committed_offsets_clamped_in_all", groups=self._groups, partitions=self._partitions)

    def _clamp(self, group: str, key: Key, loaded: CommittedOffset) -> _Clamped | None:
        partition = self._table.find(*key)
        topic = self._directory.registry.topics.get(key[0])
        if partition is None or topic is None or self._offsets.committed.of(group).get(key) is not loaded:
            return None
        end = self._end_before_start(partition)
        if loaded.offset <= end:
            return None
        clamped = loaded._replace(offset=end, leader_epoch=-1, topic_id=topic.id)
        self._offsets.committed.put(group, key, clamped)
        return _Clamped(key, loaded.offset, clamped)

    def _end_before_start(self, partition: Partition) -> int:
        """Where the log ended when the broker started: after an unclean stop, what came since has another epoch."""
        entries = partition.log.epochs.entries
        if not self._directory.report.clean and entries and entries[-1].epoch == partition.log.leader_epoch:
            return max(entries[-1].start_offset, partition.log.log_start_offset)
        return partition.log.log_end_offset

    def _write(self, group: str, clamped: Sequence[_Clamped]) -> None:
        for begin in range(0, len(clamped), OFFSETS_A_WRITE):
            records = [
                encode_commit(group, offset.key, offset.now) for offset in clamped[begin : begin + OFFSETS_A_WRITE]
            ]
            self._topic.write(group, records, partial(note_corrected, group))
        self._groups += 1
        self._partitions += len(clamped)
        if self._groups <= GROUP_LINES_MAX:
            shown = [
                {"topic": key[0], "partition": key[1], "committed": before, "log_end_offset": now.offset}
                for key, before, now in clamped[:_OFFSETS_SHOWN]
            ]
            log.warning(
                "committed_offsets_clamped",
                group=group,
                partitions=len(clamped),
                first=shown,
                consequence="the log lost records that the group had read, or the commit was beyond the log end; "
                "the group goes on at that end",
            )


def note_corrected(group: str, error: SeglogError | None) -> None:
    """Tell the log of a correction that could not be written. The next start makes it again."""
    if error is not None:
        log.warning("committed_offsets_not_corrected", group=group, reason=error.message)
