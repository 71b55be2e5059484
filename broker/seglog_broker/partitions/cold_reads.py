"""Answers that may have to wait for the disk, or are more work than one turn of the loop.

What an answer needs from the disk is read in a thread first; records of large batches are searched in a process; and
between two steps other requests have their turn. So no request holds up the loop, however much it asks for.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

import trio

from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import ColdReadError, HandlePool, RecordsWantedError, TurnWantedError
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.segment_list import sizes_of
from seglog_protocol.errors import OutOfResourcesError

COLD_READS_MAX: Final = 1_000
"""Reads from the disk that one request may wait for, one after the other, before it is served on the loop anyway."""

SEARCHES_MAX: Final = 500
"""Large batches that one request has searched for timestamps, which their headers promised and they have not."""

FOUND_MAX: Final = 10_000
"""Look-ups by timestamp in large batches whose answers are kept, for who asks again."""

SIZES_AT_A_TIME: Final = 500
"""Files that are asked for their sizes in one go, off the loop."""

AnswerT = TypeVar("AnswerT")

Steps = Generator[ColdReadError | RecordsWantedError | None, None, AnswerT]
"""An answer in the making. It stops for others to have their turn (None), or for what its error asks for."""


class ColdReads:
    """Runs the steps of answers on the loop, and what they wait for beside it."""

    def __init__(self, handles: HandlePool, fs: FileSystem, offload: Offload, metrics: Metrics) -> None:
        self._handles = handles
        self._fs = fs
        self._offload = offload
        self._metrics = metrics
        self._turns = trio.Lock()

    async def turn(self) -> None:
        """Return when a request that has done much may do some more: one of all such requests in a turn of the loop."""
        async with self._turns:
            await trio.lowlevel.checkpoint()

    async def in_turns(self, steps: Steps[AnswerT]) -> AnswerT:
        """What ``steps`` return: each in a turn, and what would wait for the disk is read in a thread first."""
        only_warm = self._handles.only_warm
        last: tuple[str, int] | None = None
        reads = searches = 0
        may_wait = False
        try:
            while True:
                with only_warm.waiting() if may_wait else only_warm:
                    cold = next(steps)
                may_wait = False
                if cold is None:
                    await self.turn()
                elif isinstance(cold, RecordsWantedError):
                    searches += 1
                    await self._find_record(cold, searches)
                elif (cold.path, cold.position) == last or reads == COLD_READS_MAX:
                    may_wait = True  # this system cannot tell what is in memory, or has none to spare
                else:
                    last = (cold.path, cold.position)
                    reads += 1
                    self._metrics.cold_reads += 1
                    await self._read_in(cold)
        except StopIteration as done:
            answer: AnswerT = done.value
            return answer
        finally:
            steps.close()

    async def retry_after_cold_read(self, ask: Callable[[], AnswerT]) -> AnswerT:
        """What ``ask`` returns; where it would wait for the disk, that happens in a thread first and it is asked again.

        So it is, after others had their turn, where it has walked far. ``ask`` must have changed nothing when it raises
        ColdReadError.
        """
        return await self.in_turns(_asking(ask))

    async def _find_record(self, wanted: RecordsWantedError, searches: int) -> None:
        """Have a process go through the records of a batch that a look-up by timestamp led to.

        Raises OutOfResourcesError, also where it is one of too many for one request.
        """
        if searches > SEARCHES_MAX:
            raise OutOfResourcesError(
                f"{SEARCHES_MAX} batches have no record at the timestamp that their headers promise; ask for a later"
            )
        found = self._handles.only_warm.found
        try:
            with self._handles.lease(wanted.path) as file:
                batch = await self._offload.cold_read(file.pread, wanted.size, wanted.position)
        except OSError:
            return  # the next request meets the error too, and reports it
        *_, timestamp, offset_min = wanted.question
        answer = await self._offload.find_record(batch, timestamp, offset_min)
        if len(found) >= FOUND_MAX:
            found.clear()
        found[wanted.question] = answer

    async def _read_in(self, cold: ColdReadError) -> None:
        try:
            with self._handles.lease(cold.path) as file:
                await self._offload.cold_read(file.pread, cold.size, cold.position)
        except OSError:
            return  # the next request meets the error too, and reports it

    async def learn_sizes(self, logs: Iterable[PartitionLog]) -> None:
        """Find out, off the loop, what ``PartitionLog.size`` will ask: a log may have thousands of files."""
        for partition_log in logs:
            while paths := partition_log.segments.paths_of_unknown_size(SIZES_AT_A_TIME):
                try:
                    sizes = await self._offload.maintenance(sizes_of, self._fs, paths)
                except OSError:
                    return  # a request for the size meets the error too, and reports it
                partition_log.segments.note_sizes(sizes)
                if len(sizes) < len(paths):
                    return  # likewise


def _asking(ask: Callable[[], AnswerT]) -> Steps[AnswerT]:
    """What ``ask`` returns, asked again after each thing that it stopped for."""
    while True:
        try:
            return ask()
        except TurnWantedError:
            yield None
        except (ColdReadError, RecordsWantedError) as wanted:
            yield wanted
