"""Group commit: acks of ``disk`` share fdatasyncs, across connections and partitions.

Flushes run in rounds, one at a time. While a round is under way, everything that is appended waits for the next one,
which syncs all their files side by side (``Offload.commit``). There is no task for it: the first task that waits for
a round leads it (``durability``). The others wait for its end, or register a listener, which takes no task. A failure
of one partition's files is raised for those who wait for that partition only.

The kernel syncs while the loop serves others. Where there are no others, the loop itself waits for the sync, which ends
sooner: it takes no way to the kernel's worker and back.
"""

import errno
from collections.abc import Callable, KeysView
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.commit_round import Flushable, Round
from seglog_broker.partitions.feed import Feed
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
PAUSE_FACTOR: Final = 10
"""After a sync that took longer, the loop waits for none, for so many times what it took: a slow disk holds the loop up
for a tenth of the time at most."""

IDLE_ROUNDS_MIN: Final = 4
ROUNDS_ON_LOOP: Final = 16
"""After IDLE_ROUNDS_MIN rounds in a row during which hardly a request was served, the loop waits for so many itself.
The one after them shows whether that is still so."""

IDLE_SHARE: Final = 8
"""Hardly a request: at most one is served during a round for so many that were served since the round before."""

LITTLE_SECONDS: Final = 0.05
"""What was appended within so long after the round before, to partitions that this had synced, is little to sync."""


class GroupCommit:
    """The rounds of group commit of one broker."""

    def __init__(self, fs: FileSystem, offload: Offload, metrics: Metrics, is_in_place: Callable[[], bool]) -> None:
        """``is_in_place`` returns, after files were synced, whether the log directory still has them."""
        self.fs = fs
        self.offload = offload
        self._metrics = metrics
        self._is_in_place = is_in_place
        self.feed = Feed()
        self.next = Round()
        self.under_way: Round | None = None
        self.may_wait_at = 0.0
        """From this moment on the loop may wait for a sync, by the loop's clock."""
        self._idle_rounds = 0  # in a row
        self._on_loop = 0  # rounds for which the loop waits, the next ones
        self._before = self._requests = 0  # served until the round before, and until the latest one, began
        self._latest: KeysView[Flushable] = Round().partitions.keys()  # of the latest round
        self._ended_at = 0.0  # when that had ended

    def want(self, partition: Flushable) -> Round:
        """Add ``partition`` to the next round, which begins when a task waits for it."""
        self.next.partitions[partition] = None
        return self.next

    def may_run_at(self, now: float) -> bool:
        """True if the loop may wait for the next round itself, at a moment of its clock."""
        return self.under_way is None and not self.next.has_leader and now >= self.may_wait_at

    def run_now(self) -> None:
        """Run the next round at once, while the loop waits, unless there is one under way, or syncs take long.

        For the broker's only client at the moment: it gets its ack sooner than by any way past the loop.
        """
        this, began = self.next, trio.current_time()
        if not this.partitions or not self.may_run_at(began):
            return
        this.has_leader = True
        flushes: list[tuple[Flushable, Flush]] = []
        errors: list[OSError | None] | None = None
        try:
            self.begin(this, flushes)
            if flushes:
                errors = self._sync_on_loop([flush for _, flush in flushes], began)
        finally:
            self.end(this, flushes, errors)

    def sync_if_idle(self, this: Round, flushes: list[Flush], began: float) -> list[OSError | None] | None:
        """Sync while the loop waits, where that is little, and it has next to nothing else to do; else None."""
        self._before, self._requests = self._requests, self._metrics.requests_total
        is_little = began - self._ended_at < LITTLE_SECONDS and this.partitions.keys() <= self._latest
        self._latest = this.partitions.keys()
        if not self._on_loop or not is_little or began < self.may_wait_at:
            return None
        self._on_loop -= 1
        return self._sync_on_loop(flushes, began)

    def note_synced(self, errors: list[OSError | None], began: float) -> list[OSError | None]:
        """Take the outcome of a sync that began then and ended beside the loop; returns the error of each flush."""
        errors = self._note(errors, began, trio.current_time())
        served = self._metrics.requests_total - self._requests
        is_idle = served * IDLE_SHARE <= self._requests - self._before
        self._idle_rounds = self._idle_rounds + 1 if is_idle else 0
        self._on_loop = ROUNDS_ON_LOOP if self._idle_rounds >= IDLE_ROUNDS_MIN else 0
        return errors

    def _sync_on_loop(self, flushes: list[Flush], began: float) -> list[OSError | None]:
        """Sync while the loop waits; the error of each flush. After a sync that took long it does not for a while."""
        errors = run_flushes(self.fs, flushes)
        ended = trio.current_time()
        if ended - began > SYNC_SECONDS_SHORT:
            self.may_wait_at = ended + PAUSE_FACTOR * (ended - began)
        return self._note(errors, began, ended)

    def begin(self, this: Round, flushes: list[tuple[Flushable, Flush]]) -> None:
        """Begin a round, and add to ``flushes`` what it has to sync. However that ends, ``end`` must follow."""
        self.under_way, self.next = this, Round()
        for partition in this.partitions:
            try:
                flush = partition.begin_flush()
            except StorageError as error:
                this.failures[partition] = error
                continue
            if flush is not None:
                flushes.append((partition, flush))

    def _note(self, errors: list[OSError | None], began: float, ended: float) -> list[OSError | None]:
        """Count flushes that have ended. Returns the error of each, which all have if the directory is gone."""
        self._metrics.note_flushes(len(errors), ended - began)
        self._ended_at = ended
        return errors if self._is_in_place() else [LogDirectoryGoneError() for _ in errors]

    def end(self, this: Round, flushes: list[tuple[Flushable, Flush]], errors: list[OSError | None] | None) -> None:
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
        self.under_way = None
        this.ended.set()
        for listener in this.listeners:
            listener()
