"""Sets committed offsets beyond the ends of their logs back to those, after a start.

A power cut may have taken records that were read, and committed, before they were on the disk. Or the commit was beyond
the log end when it came (``beyond_end``).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import structlog
import trio

from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset, CommittedOffsets, Key
from seglog_broker.coordinators.groups.records import encode_commit
from seglog_broker.coordinators.groups.service.offsets import OFFSETS_A_WRITE, OffsetService
from seglog_broker.coordinators.groups.service.offsets_topic import OffsetsTopic
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.recoveries import Recoveries
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
    """Compares each offset that is loaded with the end of its log, once, before the offset is answered."""

    def __init__(
        self,
        offsets: OffsetService,
        topic: OffsetsTopic,
        table: PartitionTable,
        recoveries: Recoveries,
        reads: ColdReads,
    ) -> None:
        self._offsets = offsets
        self._topic = topic
        self._table = table
        self._recoveries = recoveries
        self._reads = reads
        self._to_compare: dict[str, dict[Key, CommittedOffset]] = {}
        self._groups = self._partitions = 0

    async def settle(self, loaded: CommittedOffsets) -> None:
        """Compare what was loaded, before requests reach its groups.

        Offsets of logs that are still being recovered are ``OffsetService.unsettled`` until ``run`` has compared them,
        and those that are set back until that is durable, so that a second crash does not bring them forward again.
        """
        for number, group in enumerate(loaded, start=1):
            if number % GROUPS_A_TURN == 0:
                await self._reads.turn()
            self._settle(group, loaded.of(group))

    async def run(self, is_loading: Callable[[], bool]) -> None:
        """Compare what is unsettled, each partition as soon as it is recovered. Ends when all is loaded and settled."""
        while is_loading() or self._to_compare:
            for number, group in enumerate(list(self._to_compare), start=1):
                if number % GROUPS_A_TURN == 0:
                    await self._reads.turn()
                self._settle(group, self._to_compare.pop(group))
            await trio.sleep(RECOVERY_POLL_SECONDS)
        if self._groups > GROUP_LINES_MAX:
            log.warning("committed_offsets_clamped_in_all", groups=self._groups, partitions=self._partitions)

    def _settle(self, group: str, loaded: Mapping[Key, CommittedOffset]) -> None:
        clamped: list[_Clamped] = []
        later: dict[Key, CommittedOffset] = {}
        for key, stored in loaded.items():
            if self._offsets.committed.of(group).get(key) is not stored or self._offsets.is_gone(key[0], stored):
                continue  # a commit or a deletion came after it
            partition = self._table.find_readable(*key)  # a view ends where the recovery is going to leave the log
            if self._offsets.is_under_way(group, key) or (partition is None and self._recoveries.refusal(*key)):
                later[key] = stored
            elif partition is not None and stored.offset > partition.end_offset_at_start:
                end = max(partition.end_offset_at_start, partition.log.log_start_offset)
                clamped.append(_Clamped(key, stored.offset, stored._replace(offset=end, leader_epoch=-1)))
        unsettled = self._offsets.unsettled.pop(group, {})
        for key in loaded:
            unsettled.pop(key, None)
        unsettled.update(later)
        for key, _, now in clamped:
            self._offsets.committed.put(group, key, now)
            unsettled[key] = now
        if unsettled:
            self._offsets.unsettled[group] = unsettled
        if clamped:
            self._write(group, clamped)
        if later:
            self._to_compare[group] = later

    def _write(self, group: str, clamped: Sequence[_Clamped]) -> None:
        for begin in range(0, len(clamped), OFFSETS_A_WRITE):
            some = clamped[begin : begin + OFFSETS_A_WRITE]
            records = [encode_commit(group, offset.key, offset.now) for offset in some]
            self._topic.write(group, records, partial(self._end, group, some))
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

    def _end(self, group: str, clamped: Sequence[_Clamped], error: SeglogError | None) -> None:
        """Answer the offsets from now on: they are durable, or cannot be written."""
        note_corrected(group, error)
        unsettled = self._offsets.unsettled.get(group, {})
        for key, _, now in clamped:
            if unsettled.get(key) is now:
                del unsettled[key]
        if not unsettled:
            self._offsets.unsettled.pop(group, None)


def note_corrected(group: str, error: SeglogError | None) -> None:
    """Tell the log of a correction that could not be written. The next start makes it again."""
    if error is not None:
        log.warning("committed_offsets_not_corrected", group=group, reason=error.message)
