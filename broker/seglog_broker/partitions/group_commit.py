"""Group commit: acks of ``disk`` share fdatasyncs, across connections and partitions.

Flushes run in rounds, one at a time. While a round is under way, everything that is appended waits for the next one,
which syncs all their files side by side (``Offload.commit``). There is no task for it: the first task that waits for
a round leads it. The others wait for its end, or register a listener, which takes no task. A failure of one partition's
files is raised for those who wait for that partition only.

The kernel syncs while the loop serves others. Where there are no others, the loop itself waits for the sync, which ends
sooner: it takes no way to the kernel's worker and back.
"""

import errno
from collections.abc import Awaitable, Callable, KeysView
from functools import partial
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.commit_round import Flushable, Round
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.flushes import Flush, run_flushes
from seglog_broker.storage.io.os_errors import LogDirectoryGoneError
from seglog_protocol.errors import StorageError

UNKNOWN_OUTCOME: Final = OSError(errno.EIO, "it is not known how it ended")
"""A flush that ended by an internal error counts as failed."""

log = get_logger()

SYNC_SECONDS_SHORT: Final = 0.002
PAUSE_FACTOR: Final = 50
"""After a sync that took longer, the loop waits for none, for so many times what it took: a slow disk holds the loop up
for a fiftieth of the time at most."""

IDLE_ROUNDS_MIN: Final = 4
ROUNDS_ON_LOOP: Final = 16
"""After IDLE_ROUNDS_MIN rounds in a row during which hardly a request was served, the loop waits for so many itself.
The one after them shows whether that is still so."""

IDLE_SHARE: Final = 8
"""Hardly a request: at most one is served during a round for so many that were served since the round before."""

LITTLE_SECONDS: Final = 0.05
"""What was appended within so long after the round before, to partitions that this had synced, is little to sync."""


class FlushSignal:
    """Signals that a partition has ``flush.messages`` unsynced records."""

    def __init__(self) -> None:
        self._is_set = trio.Event()

    def set(self) -> None:
        """Wake the flush task, now or when it next waits."""
        self._is_set.set()

    def clear(self) -> None:
        """Forget earlier signals. The task calls this before it checks the partitions."""
        self._is_set = trio.Event()

    async def wait(self) -> None:
        """Return when a signal is set."""
        await self._is_set.wait()


class GroupCommit:
    """The rounds of group commit of one broker."""

    def __init__(self, fs: FileSystem, offload: Offload, metrics: Metrics, is_in_place: Callable[[], bool]) -> None:
        """``is_in_place`` returns, after files were synced, whether the log directory still has them."""
        self._fs = fs
        self._offload = offload
        self._metrics = metrics
        self._is_in_place = is_in_place
        self._next = Round()
        self._under_way: Round | None = None
        self.may_wait_at = 0.0
        """From this moment on the loop may wait for a sync, by the loop's clock."""
        self._idle_rounds = 0  # in a row
        self._on_loop = 0  # rounds for which the loop waits, the next ones
        self._requests = 0  # served until the latest round began
        self._latest: KeysView[Flushable] = Round().partitions.keys()  # of the latest round
        self._ended_at = 0.0  # when that had ended

    def want(self, partition: Flushable) -> Round:
        """Add ``partition`` to the next round, which begins when a task waits for it."""
        self._next.partitions[partition] = None
        return self._next

    async def wait_next(self, partition: Flushable) -> None:
        """Return when the next round, which includes ``partition``, has ended.

        Raises a retriable StorageError if the partition's files could not be synced for now. Whether they were synced
        is recorded in the partition. A waiting task can be cancelled at once, the leader only after the round.
        """
        joined = self.want(partition)
        if joined.has_leader:
            await joined.ended.wait()
        else:
            joined.has_leader = True
            await self._lead(joined)
        failure = joined.failures.get(partition)
        if failure is not None:
            raise partition.with_partition(failure)

    def begin_soon(self, start_soon: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Have a task lead the next round, if there is something to sync and the round has no leader yet.

        Whoever then listens for its end needs no task.
        """
        this = self._next
        if this.partitions and not this.has_leader:
            start_soon(partial(self._lead, this))
            this.has_leader = True

    async def _lead(self, this: Round) -> None:
        """Run a round when the one under way has ended. Not to be cancelled.

        An fsync whose outcome is not noted would leave pages that are neither dirty nor on disk. And others wait for
        this round, whatever becomes of who leads it.
        """
        with trio.CancelScope(shield=True):
            if self._under_way is not None:
                await self._under_way.ended.wait()
            await trio.lowlevel.checkpoint()  # appends that are ready now join this round
            await self._run(this)

    @property
    def may_run_now(self) -> bool:
        """True if the loop may wait for the next round itself."""
        return self._under_way is None and not self._next.has_leader and trio.current_time() >= self.may_wait_at

    def run_now(self) -> None:
        """Run the next round at once, while the loop waits, unless there is one under way, or syncs take long.

        For the broker's only client at the moment: it gets its ack sooner than by any way past the loop.
        """
        this, began = self._next, trio.current_time()
        if not this.partitions or not self.may_run_now:
            return
        this.has_leader = True
        flushes: list[tuple[Flushable, Flush]] = []
        errors: list[OSError | None] | None = None
        try:
            self._begin(this, flushes)
            if flushes:
                errors = self._sync_on_loop([flush for _, flush in flushes], began)
        finally:
            self._end(this, flushes, errors)

    async def _run(self, this: Round) -> None:
        flushes: list[tuple[Flushable, Flush]] = []
        errors: list[OSError | None] | None = None
        try:
            self._begin(this, flushes)
            if flushes:
                errors = await self._sync(this, [flush for _, flush in flushes])
        finally:
            self._end(this, flushes, errors)

    async def _sync(self, this: Round, flushes: list[Flush]) -> list[OSError | None]:
        """The error of each flush. The loop waits where that is little, and it has next to nothing else to do."""
        began = trio.current_time()
        before, self._requests = self._requests, self._metrics.requests_total
        is_little = began - self._ended_at < LITTLE_SECONDS and this.partitions.keys() <= self._latest
        self._latest = this.partitions.keys()
        if self._on_loop and is_little and began >= self.may_wait_at:
            self._on_loop -= 1
            return self._sync_on_loop(flushes, began)
        errors = self._note(await self._offload.commit(self._fs, flushes), began)
        served = self._metrics.requests_total - self._requests
        self._idle_rounds = self._idle_rounds + 1 if served * IDLE_SHARE <= self._requests - before else 0
        self._on_loop = ROUNDS_ON_LOOP if self._idle_rounds >= IDLE_ROUNDS_MIN else 0
        return errors

    def _sync_on_loop(self, flushes: list[Flush], began: float) -> list[OSError | None]:
        """The same, while the loop waits. After a sync that took long it does not for a while."""
        errors = self._note(run_flushes(self._fs, flushes), began)
        seconds = trio.current_time() - began
        if seconds > SYNC_SECONDS_SHORT:
            self.may_wait_at = trio.current_time() + PAUSE_FACTOR * seconds
        return errors

    def _begin(self, this: Round, flushes: list[tuple[Flushable, Flush]]) -> None:
        """Begin a round, and add to ``flushes`` what it has to sync. However that ends, ``_end`` must follow."""
        self._under_way, self._next = this, Round()
        for partition in this.partitions:
            try:
                flush = partition.begin_flush()
            except StorageError as error:
                this.failures[partition] = error
                continue
            if flush is not None:
                flushes.append((partition, flush))

    def _note(self, errors: list[OSError | None], began: float) -> list[OSError | None]:
        """Count flushes that have ended. Returns the error of each, which all have if the directory is gone."""
        self._metrics.note_flushes(len(errors), trio.current_time() - began)
        return errors if self._is_in_place() else [LogDirectoryGoneError() for _ in errors]

    def _end(self, this: Round, flushes: list[tuple[Flushable, Flush]], errors: list[OSError | None] | None) -> None:
        """End a round, whose flushes had these ``errors``; None if it is not known how they ended."""
        for number, (partition, flush) in enumerate(flushes):
            failure: StorageError | None
            try:
                failure = partition.end_flush(flush, UNKNOWN_OUTCOME if errors is None else errors[number])
            except Exception:  # a bug: the others of the round, and all rounds after it, go on
                log.exception("flush_outcome_not_noted")
                failure = StorageError("it is not known what reached the disk: an internal error; see the broker's log")
            if failure is not None:
                this.failures[partition] = failure
        self._under_way = None
        self._ended_at = trio.current_time()
        this.ended.set()
        for listener in this.listeners:
            listener()
