"""What an append that cannot be written at once waits for: a turn of the loop, closed files, work on records."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from seglog_broker.config import TopicConfig
from seglog_broker.partitions.idle_writers import IdleWriters
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.log.batch_checks import RecordRules
from seglog_broker.storage.log.recompression import Recompression
from seglog_protocol.errors import InvalidTimestampError, SeglogError

Outcome = SeglogError | bytearray | bool | None
"""The outcome of a wait.

After a ``RecordWork`` its error, the recompressed batch, or None where the batch stays as it is. After ``Wait.FILES``
whether others were closed.
"""


class Wait(Enum):
    """A wait for something other than work on records."""

    TURN = 1
    """Other tasks are to run."""
    FILES = 2
    """The next partition needs a file to be opened, and others have to be closed first."""


@dataclass(slots=True, eq=False)
class RecordWork:
    """A batch whose records take too long for the loop: they are to be checked, recompressed, or both.

    ``config`` is that of ``partition`` by which the batch was judged so far. With ``error`` its records are looked at
    only to be named in it.
    """

    batch: memoryview
    rules: RecordRules | None
    wanted: Recompression | None
    partition: Partition
    config: TopicConfig
    error: InvalidTimestampError | None = None
    outcome: Outcome = None


Wanted = RecordWork | Wait


class Stopped(Protocol):
    """Appends that are written up to where something is waited for."""

    stopped_for: Wanted | None
    """None: all is written."""

    def go_on(self, outcome: Outcome) -> None:
        """Write on, up to the next wait."""


@dataclass(eq=False, repr=False)
class AppendWaits:
    """Has other tasks run, files closed and records looked at, as appends want it."""

    _scheduler: Scheduler
    _idle_writers: IdleWriters
    _offload: Offload

    async def write_rest(self, appends: Stopped) -> None:
        """Write the rest, and let other tasks run in between."""
        while (wanted := appends.stopped_for) is not None:
            appends.go_on(await self._outcome(wanted))

    async def _outcome(self, wanted: Wanted) -> Outcome:
        if wanted is Wait.FILES:
            return await self._idle_writers.wait_for_room()
        if not isinstance(wanted, RecordWork):
            await self._scheduler.turn()
            return None
        try:
            if wanted.wanted is not None:
                return await self._offload.recompress(wanted.batch, wanted.wanted, wanted.rules)
            if wanted.rules is not None:
                await self._offload.check_records(wanted.batch, wanted.rules)
        except SeglogError as error:
            return error
        return None
