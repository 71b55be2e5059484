"""Fetches: whole batches from an offset or a timestamp on, as leased slices of their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.engine.turns import LOOKUPS_A_TURN, SegmentTimes, lookup_cost
from seglog_broker.logger import get_logger
from seglog_broker.partitions.fetch_purgatory import FetchPurgatory, Waiter, Watching
from seglog_broker.partitions.fetch_response import FetchAnswer, RecentAnswer, gaps_of_read
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.runtime import budget
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.pauses import ColdReadError, RecordsWantedError, TurnWantedError
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.segment_log import LogSlice
from seglog_protocol import errors
from seglog_protocol.isolation import READ_COMMITTED
from seglog_protocol.messages import FetchPartition, FetchReply, FetchRequest, FetchResult

log = get_logger()

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


@dataclass(eq=False, repr=False)
class FetchService:
    """Answers fetches: at once, or when there are enough bytes, or when ``max_wait_ms`` are over."""

    table: PartitionTable
    _directory: LogDirectory
    config: LiveConfig
    _purgatory: FetchPurgatory
    metrics: Metrics

    def __post_init__(self) -> None:
        self.watched_max = WATCHED_MAX
        self.watched_a_turn = WATCHED_A_TURN
        self.aborted_max = _ABORTED_MAX
        self.bytes_with_aborted_max = _BYTES_WITH_ABORTED_MAX
        self.watching = Watching()
        self.waiters: set[Waiter] = set()  # of all partitions

    @property
    def waiting(self) -> int:
        """The number of waiting fetches."""
        return len(self.waiters)

    def fetch_now(self, request: FetchRequest, waiter: Waiter | None = None) -> FetchAnswer | None:
        """The response if it need not wait for records or the disk; else None. ``waiter`` has waited already."""
        is_over = request.max_wait_ms == 0 or (waiter is not None and trio.current_time() >= waiter.deadline)
        if len(request.partitions) > LOOKUPS_A_TURN or (not is_over and self._is_at_the_end(request)):
            return None
        answer = self._collect_warm(request)
        if answer is None or is_over or self.is_complete(request, answer):
            return answer
        answer.close()
        return None

    def wait_for(self, request: FetchRequest, waiter: Waiter) -> bool:
        """Park ``waiter``, to be retried when there may be a response, or when ``max_wait_ms`` are over.

        Returns False, and does nothing, if the fetch needs a task: then call ``WaitingFetches.fetch``.
        """
        if len(request.partitions) > self.watched_a_turn or not self.has_room(request):
            return False
        if not (self._purgatory.is_open and self._is_at_the_end(request)):
            return False
        self.metrics.fetches_waited += 1
        waiter.deadline = self.deadline_of(request)
        waiter.bytes_wanted = request.min_bytes
        waiter.watch([self.waiters, *self.watch_lists(request.partitions)], self.watching)
        self._purgatory.park(waiter)
        return True

    def deadline_of(self, request: FetchRequest) -> float:
        """When a fetch that comes now has waited long enough, on trio's clock."""
        return trio.current_time() + min(request.max_wait_ms, self.config.current.seglog_fetch_max_wait_ms_max) / 1000

    def has_room(self, request: FetchRequest) -> bool:
        """Whether its partitions may be watched as well."""
        return self.watching.count + len(request.partitions) <= self.watched_max

    def watch_lists(self, items: Sequence[FetchPartition]) -> list[set[Waiter]]:
        """Those of the partitions that can be read."""
        partitions = (self.table.find_readable(item.topic, item.partition) for item in items)
        return [partition.waiters for partition in partitions if partition is not None]

    def _collect_warm(self, request: FetchRequest) -> FetchAnswer | None:
        """The response now, for a small request; None if it would wait for the disk."""
        collection = Collection(self, request)
        try:
            with self._directory.handles.only_warm:
                return collection.go_on()
        except (ColdReadError, RecordsWantedError, TurnWantedError):
            return None
        finally:
            collection.close()

    def _is_at_the_end(self, request: FetchRequest) -> bool:
        """Whether the fetch certainly waits for records: decided by offsets alone, as for nearly all that wait."""
        return self.may_wait(request) and self.have_nothing(request.partitions, request.isolation)

    def may_wait(self, request: FetchRequest) -> bool:
        """Whether the fetch waits if none of its partitions has anything for it."""
        if not request.min_bytes or not request.max_bytes or len(request.partitions) > _PARTITIONS_PER_FETCH_MAX:
            return False
        topic_ids = request.topic_ids or {}
        if any(self.table.is_recreated(topic_ids, name) for name in topic_ids):
            return False
        return self.table.counts_differing(request.partition_counts) is None

    def have_nothing(self, items: Sequence[FetchPartition], isolation: str | None) -> bool:
        """Whether each of these is at the end of its partition."""
        is_committed = isolation == READ_COMMITTED
        for item in items:
            partition = self.table.find_readable(item.topic, item.partition)
            if partition is None or item.offset is None or item.timestamp is not None:
                return False
            end = partition.log.log_end_offset
            if not (partition.log.last_stable_offset if is_committed else end) <= item.offset <= end:
                return False
        return True

    @staticmethod
    def is_complete(request: FetchRequest, answer: FetchAnswer) -> bool:
        """Whether it need not wait for more."""
        if answer.reply.partition_counts is not None:
            return True
        return answer.size >= min(request.min_bytes, request.max_bytes) or any(
            (result.error is not None and not isinstance(result.error, errors.SegmentAwaitedError))
            or (result.gaps is not None and not result.size)
            for result in answer.reply.partitions
        )

    def read(
        self, item: FetchPartition, bytes_max: int, *, min_one: bool, is_committed: bool, is_another: bool
    ) -> tuple[FetchResult, LogSlice | None]:
        """The batches of one partition, or the error as its result. Raises what makes a look-up pause.

        ``is_another``: the request means the former topic of that name.
        """
        try:
            if is_another:
                raise self.table.another_topic(item.topic, item.partition, _CONSUMER_OF_ANOTHER)
            return self._read_one(item, bytes_max, min_one=min_one, is_committed=is_committed)
        except errors.SeglogError as error:
            return self._not_read(item, error), None

    def _not_read(self, item: FetchPartition, error: errors.SeglogError) -> FetchResult:
        partition = self.table.find(item.topic, item.partition)
        placed = partition.with_partition(error) if partition is not None else error
        if partition is not None:
            self.table.awaited.ask(partition, error)
        if isinstance(error, errors.CorruptRecordError):
            log.warning("damage_read", **{k: v for k, v in placed.facts.items() if k != "retriable"})
        return FetchResult(item.topic, item.partition, error=errors.without_frames(placed))

    def _read_one(
        self, item: FetchPartition, bytes_max: int, *, min_one: bool, is_committed: bool
    ) -> tuple[FetchResult, LogSlice | None]:
        """The result of one partition and its bytes, up to ``bytes_max``; ``min_one`` lets one batch exceed them."""
        partition = self.table.readable(item.topic, item.partition)
        partition_log = partition.log
        if (item.offset is None) == (item.timestamp is None):
            raise errors.InvalidRequestError("a fetch starts either at an offset or at a timestamp", field="offset")
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
        if partition_log.transactions.mended:
            partition.tell_mended_indexes()
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


class Collection:
    """The response to a fetch while it is collected: at most ``max_bytes``, but at least one batch if there is any.

    It holds leases. ``close`` gives back those that no answer has.
    """

    __slots__ = (
        "_aborted",
        "_alone",
        "_counts",
        "_is_committed",
        "_left",
        "_made_again",
        "_request",
        "_results",
        "_service",
        "_slices",
        "_times",
        "_turn_before",
    )

    def __init__(self, service: FetchService, request: FetchRequest) -> None:
        """Raises InvalidRequestError for too many partitions."""
        table = service.table
        table.suggestions.renew()
        items, topic_ids = request.partitions, request.topic_ids
        if len(items) > _PARTITIONS_PER_FETCH_MAX:
            raise errors.InvalidRequestError(
                f"at most {_PARTITIONS_PER_FETCH_MAX} partitions in one fetch", field="partitions"
            )
        self._service = service
        self._request = request
        self._made_again: set[str] = set()
        if topic_ids is not None:
            self._made_again = {name for name in topic_ids if table.is_recreated(topic_ids, name)}
        self._counts = table.counts_differing(request.partition_counts)
        self._alone: Partition | None = None
        if len(items) == 1 and not self._made_again and self._counts is None:
            self._alone = table.find(items[0].topic, items[0].partition)
        self._left = min(request.max_bytes, service.config.current.fetch_max_bytes)
        self._is_committed = request.isolation == READ_COMMITTED
        self._aborted = 0
        self._results: list[FetchResult] = []
        self._slices: list[LogSlice] = []
        self._times: SegmentTimes | None = None  # of the next partition
        self._turn_before = 0  # the number of the partition before which other tasks have run

    def go_on(self) -> FetchAnswer:
        """Collect what is missing. Raises what makes a look-up pause: called again, it goes on there."""
        service, request, alone = self._service, self._request, self._alone
        if alone is not None and alone.recent_answer is not None and not self._results:
            again = alone.recent_answer.again(request)
            if again is not None:
                return again
        items, table, spent = request.partitions, service.table, 0.0
        for number in range(len(self._results), len(items)):
            item = items[number]
            partition = table.find_readable(item.topic, item.partition)
            cost = lookup_cost(partition, item.timestamp)
            if (spent + cost > budget.TURN or item.verify) and number > self._turn_before:
                self._turn_before = number
                raise TurnWantedError
            spent += cost
            if item.timestamp is not None and partition is not None:
                self._times = self._times or SegmentTimes(partition)
                self._times.load()
            result, found = service.read(
                item,
                min(self._left, item.max_bytes),
                min_one=not self._slices,
                is_committed=self._is_committed,
                is_another=item.topic in self._made_again,
            )
            self._results.append(result)
            self._times = None
            if found is not None:
                self._slices.append(found)
                self._aborted += len(result.aborted or ())
                self._left = 0 if self._aborted > service.aborted_max else max(0, self._left - found.size)
        answer = FetchAnswer(FetchReply(self._results, self._counts), self._slices)
        if alone is not None:
            alone.recent_answer = RecentAnswer.of(alone.log, request, answer)
        self._slices = []
        return answer

    def close(self) -> None:
        """Release the leases that no answer has."""
        for slice_ in self._slices:
            slice_.release()
        self._slices = []


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
