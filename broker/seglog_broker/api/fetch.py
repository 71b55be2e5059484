"""Fetches: whole batches from an offset or a timestamp on, as leased slices of their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from seglog_broker.api.turns import LOOKUPS_A_TURN, bring_in_times, lookup_cost
from seglog_broker.partitions.fetch_purgatory import FetchPurgatory, Waiter, Watching
from seglog_broker.partitions.fetch_response import FetchAnswer, RecentAnswer, gaps_of_read
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.scheduler import RequestSteps, Scheduler
from seglog_broker.partitions.waiting_fetches import wait_woken
from seglog_broker.runtime import budget
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.pauses import ColdReadError, RecordsWantedError, TurnWantedError
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.segment_log import LogSlice
from seglog_protocol.errors import (
    CorruptRecordError,
    InvalidRequestError,
    OutOfResourcesError,
    RequestCancelledError,
    SeglogError,
    without_frames,
)
from seglog_protocol.isolation import READ_COMMITTED
from seglog_protocol.messages import FetchPartition, FetchReply, FetchRequest, FetchResult

log = structlog.get_logger()

_PARTITIONS_PER_FETCH_MAX: Final = 10_000

WATCHED_MAX: Final = 1_000_000
"""Partitions that all waiting fetches watch together; one more fetch is refused. Each takes some 200 bytes."""

WATCHED_A_TURN: Final = budget.items_of(cost=4)
"""Partitions whose ends are looked at, or that are watched for records, before other tasks run."""

_ABORTED_MAX: Final = 10_000
"""Aborted transactions named in one reply, after which no further partition is read: so its header fits its frame."""

_BYTES_WITH_ABORTED_MAX: Final = 1024 * 1024
"""The most bytes of one partition at "read_committed", if its log has aborted transactions. They hold at most 7,000."""

_CONSUMER_OF_ANOTHER: Final = (
    "positions in the former topic mean nothing in this one; start the consumer again: at the earliest, at the latest, "
    "or at a moment"
)


@dataclass(eq=False)
class FetchService:
    """Answers fetches: at once, or when there are enough bytes, or when ``max_wait_ms`` are over."""

    _table: PartitionTable
    _directory: LogDirectory
    _config: LiveConfig
    _scheduler: Scheduler
    _purgatory: FetchPurgatory
    _metrics: Metrics

    def __post_init__(self) -> None:
        self.watched_max = WATCHED_MAX
        self.watched_a_turn = WATCHED_A_TURN
        self.aborted_max = _ABORTED_MAX
        self.bytes_with_aborted_max = _BYTES_WITH_ABORTED_MAX
        self._watching = Watching()
        self._waiters: set[Waiter] = set()  # of all partitions

    @property
    def waiting(self) -> int:
        """The number of waiting fetches."""
        return len(self._waiters)

    def fetch_now(self, request: FetchRequest, waiter: Waiter | None = None) -> FetchAnswer | None:
        """The response if it need not wait for records or the disk; else None. ``waiter`` has waited already."""
        is_over = request.max_wait_ms == 0 or (waiter is not None and trio.current_time() >= waiter.deadline)
        if len(request.partitions) > LOOKUPS_A_TURN or (not is_over and self._is_at_the_end(request)):
            return None
        answer = self._collect_warm(request)
        if answer is None or is_over or self._is_complete(request, answer):
            return answer
        answer.close()
        return None

    def wait_for(self, request: FetchRequest, waiter: Waiter) -> bool:
        """Park ``waiter``, to be retried when there may be a response, or when ``max_wait_ms`` are over.

        Returns False, and does nothing, if the fetch needs a task: then call ``fetch``.
        """
        if len(request.partitions) > self.watched_a_turn or not self._has_room(request):
            return False
        if not (self._purgatory.is_open and self._is_at_the_end(request)):
            return False
        self._metrics.fetches_waited += 1
        waiter.deadline = self._deadline(request)
        waiter.bytes_wanted = request.min_bytes
        waiter.watch([self._waiters, *self._watch_lists(request.partitions)], self._watching)
        self._purgatory.park(waiter)
        return True

    async def fetch(self, request: FetchRequest, waiter: Waiter | None = None) -> FetchAnswer:
        """The response, when it has ``min_bytes``, an error or a gap, or when ``max_wait_ms`` are over.

        With ``waiter`` the caller can end the waiting: then RequestCancelledError is raised. Time that ``waiter`` has
        waited before counts. Raises OutOfResourcesError where too many partitions are waited for already.
        """
        waiter = waiter or Waiter()
        waiter.deadline = min(waiter.deadline, self._deadline(request))
        while True:
            # It watches before it looks: records may come while other tasks have their turn.
            waiter.bytes_wanted = request.min_bytes
            try:
                await self._watch(request, waiter)
                if not await self._is_at_the_end_in_turns(request) or trio.current_time() >= waiter.deadline:
                    answer = await self._scheduler.in_turns(self._collect(request))
                    if self._is_complete(request, answer) or trio.current_time() >= waiter.deadline:
                        return answer
                    waiter.bytes_wanted -= answer.size
                    answer.close()
                self._metrics.fetches_waited += 1
                with trio.CancelScope(deadline=waiter.deadline):
                    await wait_woken(waiter)
                if len(request.partitions) > self.watched_a_turn:
                    await self._scheduler.turn()  # one append may have woken many of them
            finally:
                waiter.unwatch()
            if waiter.is_ended:
                raise RequestCancelledError("the fetch was cancelled by its client")

    def _deadline(self, request: FetchRequest) -> float:
        return trio.current_time() + min(request.max_wait_ms, self._config.current.seglog_fetch_max_wait_ms_max) / 1000

    async def _watch(self, request: FetchRequest, waiter: Waiter) -> None:
        """Wake ``waiter`` by changes to the partitions of a request. Raises OutOfResourcesError."""
        if not self._has_room(request):
            raise OutOfResourcesError(
                f"fetches wait for {self._watching.count} partitions, with this one they would be above the limit of "
                f"{self.watched_max}; ask again later"
            )
        waiter.watch([self._waiters], self._watching)
        for begin in range(0, len(request.partitions), self.watched_a_turn):
            if len(request.partitions) > self.watched_a_turn:
                await self._scheduler.turn()
            waiter.watch(self._watch_lists(request.partitions[begin : begin + self.watched_a_turn]), self._watching)

    def _has_room(self, request: FetchRequest) -> bool:
        return self._watching.count + len(request.partitions) <= self.watched_max

    def _watch_lists(self, items: Sequence[FetchPartition]) -> list[set[Waiter]]:
        partitions = (self._table.find_readable(item.topic, item.partition) for item in items)
        return [partition.waiters for partition in partitions if partition is not None]

    def _collect_warm(self, request: FetchRequest) -> FetchAnswer | None:
        """The response now, for a small request; None if it would wait for the disk."""
        collecting = self._collect(request)
        try:
            with self._directory.handles.only_warm:
                next(collecting)
        except StopIteration as done:
            answer: FetchAnswer = done.value
            return answer
        collecting.close()
        return None

    def _is_at_the_end(self, request: FetchRequest) -> bool:
        """Whether the fetch certainly waits for records: decided by offsets alone, as for nearly all that wait."""
        return self._may_wait(request) and self._have_nothing(request.partitions, request.isolation)

    async def _is_at_the_end_in_turns(self, request: FetchRequest) -> bool:
        """``_is_at_the_end``, where there may be many partitions."""
        if not self._may_wait(request):
            return False
        for begin in range(0, len(request.partitions), self.watched_a_turn):
            if len(request.partitions) > self.watched_a_turn:
                await self._scheduler.turn()
            if not self._have_nothing(request.partitions[begin : begin + self.watched_a_turn], request.isolation):
                return False
        return True

    def _may_wait(self, request: FetchRequest) -> bool:
        """Whether the fetch waits if none of its partitions has anything for it."""
        if not request.min_bytes or not request.max_bytes or len(request.partitions) > _PARTITIONS_PER_FETCH_MAX:
            return False
        topic_ids = request.topic_ids or {}
        if any(self._table.is_recreated(topic_ids, name) for name in topic_ids):
            return False
        return self._table.counts_differing(request.partition_counts) is None

    def _have_nothing(self, items: Sequence[FetchPartition], isolation: str | None) -> bool:
        """Whether each of these is at the end of its partition."""
        is_committed = isolation == READ_COMMITTED
        for item in items:
            partition = self._table.find_readable(item.topic, item.partition)
            if partition is None or item.offset is None or item.timestamp is not None:
                return False
            end = partition.log.log_end_offset
            if not (partition.log.last_stable_offset if is_committed else end) <= item.offset <= end:
                return False
        return True

    @staticmethod
    def _is_complete(request: FetchRequest, answer: FetchAnswer) -> bool:
        if answer.reply.partition_counts is not None:
            return True
        return answer.size >= min(request.min_bytes, request.max_bytes) or any(
            result.error is not None or (result.gaps is not None and not result.size)
            for result in answer.reply.partitions
        )

    def _collect(self, request: FetchRequest) -> RequestSteps[FetchAnswer]:
        """The steps of the response now: at most ``max_bytes``, but at least one batch if there is any.

        Yields None to let other tasks run, and the error of a read that would wait for the disk: then that partition is
        tried again.
        """
        self._table.suggestions.renew()
        if len(request.partitions) > _PARTITIONS_PER_FETCH_MAX:
            raise InvalidRequestError(
                f"at most {_PARTITIONS_PER_FETCH_MAX} partitions in one fetch", field="partitions"
            )
        topic_ids = request.topic_ids or {}
        made_again = {name for name in topic_ids if self._table.is_recreated(topic_ids, name)}
        counts = self._table.counts_differing(request.partition_counts)
        alone = None
        if len(request.partitions) == 1 and not made_again and counts is None:
            item = request.partitions[0]
            alone = self._table.find(item.topic, item.partition)
            again = None if alone is None or alone.recent_answer is None else alone.recent_answer.again(request)
            if again is not None:
                return again
        left = min(request.max_bytes, self._config.current.fetch_max_bytes)
        is_committed = request.isolation == READ_COMMITTED
        aborted = 0
        results: list[FetchResult] = []
        slices: list[LogSlice] = []
        spent = 0.0
        try:
            for number, item in enumerate(request.partitions):
                cost = lookup_cost(self._table.find_readable(item.topic, item.partition), item.timestamp)
                if number and (spent + cost > budget.TURN or item.verify):
                    spent = 0.0
                    yield None
                spent += cost
                if item.timestamp is not None:
                    yield from bring_in_times(self._table.find_readable(item.topic, item.partition))
                result: FetchResult | None = None
                found: LogSlice | None = None
                while result is None:
                    try:
                        if item.topic in made_again:
                            raise self._table.another_topic(item.topic, item.partition, _CONSUMER_OF_ANOTHER)
                        result, found = self._read_one(
                            item, min(left, item.max_bytes), min_one=not slices, is_committed=is_committed
                        )
                    except (ColdReadError, RecordsWantedError) as wanted:
                        yield wanted
                    except TurnWantedError:
                        yield None
                    except SeglogError as error:
                        result = self._not_read(item, error)
                results.append(result)
                if found is not None:
                    slices.append(found)
                    aborted += len(result.aborted or ())
                    left = 0 if aborted > self.aborted_max else max(0, left - found.size)
        except BaseException:
            for slice_ in slices:
                slice_.release()
            raise
        answer = FetchAnswer(FetchReply(results, counts), slices)
        if alone is not None:
            alone.recent_answer = RecentAnswer.of(alone.log, request, answer)
        return answer

    def _not_read(self, item: FetchPartition, error: SeglogError) -> FetchResult:
        partition = self._table.find(item.topic, item.partition)
        placed = partition.with_partition(error) if partition is not None else error
        if isinstance(error, CorruptRecordError):
            log.warning("damage_read", **{k: v for k, v in placed.facts.items() if k != "retriable"})
        return FetchResult(item.topic, item.partition, error=without_frames(placed))

    def _read_one(
        self, item: FetchPartition, bytes_max: int, *, min_one: bool, is_committed: bool
    ) -> tuple[FetchResult, LogSlice | None]:
        partition = self._table.readable(item.topic, item.partition)
        partition_log = partition.log
        if (item.offset is None) == (item.timestamp is None):
            raise InvalidRequestError("a fetch starts either at an offset or at a timestamp", field="offset")
        stable = partition_log.last_stable_offset
        end = stable if is_committed else partition_log.log_end_offset
        if item.timestamp is not None:
            moment = partition_log.find_timestamp(item.timestamp)
            offset = end if moment is None else min(moment.offset, end)
        else:
            assert item.offset is not None
            offset = item.offset
        if is_committed and partition_log.transactions.bases:
            bytes_max = min(bytes_max, self.bytes_with_aborted_max)
        found, aborted = _read_batches(
            partition_log,
            offset,
            bytes_max,
            min_one=min_one,
            verify=item.verify is True,
            before=stable if is_committed else None,
        )
        gaps, compacted_before = gaps_of_read(partition_log, offset, found, end, min_one=min_one)
        result = FetchResult(
            item.topic,
            item.partition,
            size=found.size if found else 0,
            offset=offset,
            earliest=partition_log.log_start_offset,
            latest=partition_log.log_end_offset,
            durable=partition_log.durable_end_offset,
            leader_epoch=partition_log.leader_epoch,
            gaps=gaps,
            compacted_before=compacted_before,
            last_stable_offset=stable,
            aborted=aborted,
        )
        return result, found


def _read_batches(
    log: PartitionLog, offset: int, bytes_max: int, *, min_one: bool, verify: bool, before: int | None
) -> tuple[LogSlice | None, list[list[int]] | None]:
    """The batches, and at "read_committed" the aborted transactions with their first offsets.

    ``before`` is then the last stable offset, None at "read_uncommitted".
    """
    if before is None:
        return log.read(offset, bytes_max, min_one=min_one, verify=verify), None
    found = log.read(offset, bytes_max, min_one=min_one, verify=verify, before=before)
    if found is None:
        return None, []
    try:
        return found, [[entry.producer_id, entry.first_offset] for entry in log.aborted_in(found)]
    except BaseException:
        found.release()
        raise
