"""Writes what an append could not write at once: in turns of the loop, and when what it waits for is done."""

from dataclasses import dataclass

from seglog_broker.engine.pending_appends import FilesWanted, PendingAppends, RecordWork
from seglog_broker.partitions.idle_writers import IdleWriters
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime.offload import Offload
from seglog_protocol.errors import SeglogError


@dataclass(eq=False)
class AppendTurns:
    """Has other tasks run, files closed and records looked at, as appends want it."""

    _scheduler: Scheduler
    _idle_writers: IdleWriters
    _offload: Offload

    async def write_rest(self, pending: PendingAppends) -> None:
        """See ``PendingAppends.write_rest``."""
        while not pending.is_written:
            outcome: SeglogError | bytearray | None = None
            work = pending.stopped_for
            if work is None:
                await self._scheduler.turn()
            elif isinstance(work, FilesWanted):
                pending.may_wait_for_files = await self._idle_writers.wait_for_room()
            else:
                try:
                    outcome = await self._done(work)
                except SeglogError as error:
                    outcome = error
            pending.go_on(outcome)

    async def _done(self, work: RecordWork) -> bytearray | None:
        if work.wanted is not None:
            return await self._offload.recompress(work.batch, work.wanted, work.rules)
        if work.rules is not None:
            await self._offload.check_records(work.batch, work.rules)
        return None
