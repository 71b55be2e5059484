"""Gives turns of the loop to requests that take long, and reads what they need from the disk before they go on.

Bytes that a request needs from the disk are first read in a thread; records of large batches are searched in a process;
and other tasks run between two steps. So no request blocks the loop, however large it is.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

import trio

from seglog_broker.partitions.clock_trust import ClockTrust
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.recoveries import Recoveries
from seglog_broker.runtime.begun import by_task
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.pauses import ColdReadError, RecordsWantedError, TurnWantedError
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.segment_list import sizes_of
from seglog_protocol.errors import OutOfResourcesError
from seglog_protocol.steps import Steps, in_turns_of

COLD_READS_MAX: Final = 1_000
"""Reads from the disk that one request may wait for, one after the other, before it is served on the loop anyway."""

SEARCHES_MAX: Final = 500
"""Large batches that are searched for one request, because no record had the timestamp that the header promised."""

FOUND_MAX: Final = 10_000
"""Results of look-ups by timestamp in large batches that are kept for later requests."""

SIZES_AT_A_TIME: Final = 500
"""Files whose sizes are read at a time, in a thread."""

AnswerT = TypeVar("AnswerT")
ItemT = TypeVar("ItemT")


@dataclass(eq=False, repr=False)
class Spread(Generic[ItemT]):
    """Items with turns for other tasks between them. Unlike a generator, it can be left before its end."""

    _turn: Callable[[], Awaitable[None]]
    _items: Iterator[ItemT]
    _at_once: int
    _left: int
    """Items before the next turn."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        for item in self._items:
            if not self._left:
                await self._turn()
                self._left = self._at_once
            self._left -= 1
            return item
        raise StopAsyncIteration


@dataclass(eq=False, repr=False)
class Scheduler:
    """Runs the steps of requests on the loop, one of all requests at a time, and their reads in threads."""

    _handles: HandlePool
    _fs: FileSystem
    _offload: Offload
    _metrics: Metrics

    def __post_init__(self) -> None:
        self.searches_max = SEARCHES_MAX
        self.found_max = FOUND_MAX
        self._turns = trio.Lock()

    async def turn(self) -> None:
        """Let other tasks run. Of all requests that wait here, one continues in each turn of the loop."""
        await by_task()
        async with self._turns:
            await trio.lowlevel.checkpoint()

    async def quiet_turn(self) -> None:
        """As ``turn``, after a rest while a sync is awaited: for background work."""
        await self._offload.rest()
        await self.turn()

    async def in_turns(self, steps: Steps[AnswerT]) -> AnswerT:
        """Run ``steps`` to their end and return their answer; other tasks run in between."""
        try:
            return await in_turns_of(steps, self.turn)
        finally:
            steps.close()

    def spread(self, items: Iterable[ItemT], at_once: int) -> "Spread[ItemT]":
        """The items; other tasks run before each one whose number is a multiple of ``at_once``."""
        return Spread(self.turn, iter(items), at_once, at_once - 1)

    def parts(self, items: Sequence[ItemT], size: int) -> "Spread[Sequence[ItemT]]":
        """The items, ``size`` of them at a time; other tasks run between two parts."""
        return Spread(self.turn, (items[first : first + size] for first in range(0, len(items), size)), 1, 1)

    async def retry_after_cold_read(self, call: Callable[[], AnswerT]) -> AnswerT:
        """Return ``call()``. While it raises ColdReadError, do the read in a thread and call again.

        Likewise after RecordsWantedError and TurnWantedError. ``call`` changes nothing before it raises one of them, or
        goes on where it was.
        """
        only_warm = self._handles.only_warm
        last: tuple[str, int] | None = None
        reads = searches = 0
        may_wait = False
        while True:
            try:
                with only_warm.waiting() if may_wait else only_warm:
                    return call()
            except (ColdReadError, RecordsWantedError, TurnWantedError) as error:
                wanted = error.with_traceback(None)  # else it would hold what this holds, in a circle
            may_wait = False
            if isinstance(wanted, TurnWantedError):
                await self.turn()
            elif isinstance(wanted, RecordsWantedError):
                searches += 1
                await self._find_record(wanted, searches)
            elif (wanted.path, wanted.position) == last or reads == COLD_READS_MAX:
                may_wait = True  # the system cannot say what is in memory, or evicts it at once
            else:
                last = (wanted.path, wanted.position)
                reads += 1
                self._metrics.cold_reads += 1
                await self._read_in(wanted)

    async def read_batches(self, log: PartitionLog, offset: int, bytes_max: int) -> bytes:
        """Whole batches from the one that holds or follows ``offset``, verified; at least one. Empty at the log end.

        Raises what ``PartitionLog.read`` raises, and OSError.
        """
        found = await self.retry_after_cold_read(lambda: log.read(offset, bytes_max, verify=True))
        if found is None:
            return b""
        try:
            return await self._offload.cold_read(found.file.pread, found.size, found.position)
        finally:
            found.release()

    async def _find_record(self, wanted: RecordsWantedError, searches: int) -> None:
        """Have a process search a large batch for a timestamp. Raises OutOfResourcesError, also after SEARCHES_MAX."""
        if searches > self.searches_max:
            raise OutOfResourcesError(
                f"{self.searches_max} batches have no record at the timestamp that their headers promise; "
                "use a later one"
            )
        found = self._handles.only_warm.found
        try:
            with self._handles.lease(wanted.path) as file:
                batch = await self._offload.cold_read(file.pread, wanted.size, wanted.position)
        except OSError:
            return  # the next request meets the error too, and reports it
        *_, timestamp, offset_min = wanted.question
        record = await self._offload.find_record(batch, timestamp, offset_min)
        if len(found) >= self.found_max:
            found.clear()
        found[wanted.question] = record

    async def _read_in(self, cold: ColdReadError) -> None:
        try:
            with self._handles.lease(cold.path) as file:
                await self._offload.cold_read(file.pread, cold.size, cold.position)
        except OSError:
            return  # the next request meets the error too, and reports it

    async def verify_transaction_indexes(self, partition_log: PartitionLog) -> None:
        """Read those of a log in a thread, and have wrong ones built again. Raises OSError."""
        transactions = partition_log.transactions
        if transactions.bases:
            for base in await self._offload.maintenance(transactions.look_at_files()):
                if base in transactions.bases:
                    await self.retry_after_cold_read(partial(transactions.mend, base))

    async def learn_sizes(self, logs: Iterable[PartitionLog]) -> None:
        """Read, in a thread, the file sizes that ``PartitionLog.size`` needs: a log may have thousands of files."""
        for partition_log in logs:
            while paths := partition_log.segments.paths_of_unknown_size(SIZES_AT_A_TIME):
                try:
                    sizes = await self._offload.maintenance(sizes_of, self._fs, paths)
                except OSError:
                    return  # a request for the size meets the error too, and reports it
                partition_log.segments.note_sizes(sizes)
                if len(sizes) < len(paths):
                    return  # likewise


class Common(NamedTuple):
    """What nearly every part of the broker uses: its own fields, in the order of those of ``Service``."""

    config: LiveConfig
    fs: FileSystem
    clock: Clock
    offload: Offload
    scheduler: Scheduler
    directory: LogDirectory
    table: PartitionTable
    recoveries: Recoveries
    clock_trust: ClockTrust
    metrics: Metrics


@dataclass(eq=False, repr=False)
class Service:
    """A part of the broker, with what nearly every part uses."""

    _config: LiveConfig
    _fs: FileSystem
    _clock: Clock
    _offload: Offload
    _scheduler: Scheduler
    _directory: LogDirectory
    _table: PartitionTable
    _recoveries: Recoveries
    _clock_trust: ClockTrust
    _metrics: Metrics

    async def _replace_file(self, what_failed: str, advice: str, write: Callable[..., object], *given: Any) -> None:
        """Call ``write`` in a thread, which replaces a file of the directory. Raises StorageError with the advice."""
        try:
            await self._offload.maintenance(write, *given)
        except OSError as error:
            raise self._directory.space.why_not_written(what_failed, error, advice) from error
