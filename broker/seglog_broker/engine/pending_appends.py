"""Appends in progress: they are checked and written in the order of their requests, and wait for their ack."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mypy_extensions import mypyc_attr

from seglog_broker.config import TopicConfig
from seglog_broker.engine.append_waits import AppendWaits, Outcome, RecordWork, Wait, Wanted
from seglog_broker.logger import get_logger
from seglog_broker.partitions.commit_round import Round
from seglog_broker.partitions.durability import FlushSignal, when_durable
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.runtime import budget
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.log import batch_checks
from seglog_broker.storage.log.recompression import Recompression, recompress_small, recompression
from seglog_broker.storage.segment.segment import RECORDS_IN_LINE_BYTES
from seglog_protocol import errors
from seglog_protocol.internal_topics import is_internal
from seglog_protocol.messages import Ack, AppendPartition, AppendReply, AppendRequest, AppendResult
from seglog_protocol.record_batch import LOG_OVERHEAD, NO_PRODUCER_ID, NO_TIMESTAMP, BatchHeader, parse_header

log = get_logger()

NEXT_COST: Final = 7.5
"""Microseconds for a small batch behind another one for the same partition: a quarter of what the first one takes."""

COSTED_BYTES: Final = 64 * 1024
"""Bytes of a batch whose checksum and write cost as much as the rest of the work for a small one."""

RECOMPRESSION_COST: Final = 500
"""To recompress a small batch."""

SUGGESTION_COST: Final = 500
"""To look for the topic that an unknown name was perhaps meant to be."""


_PRODUCER_OF_ANOTHER: Final = "the records were meant for the former topic; to send to this one make a new producer"


class _Gathered:
    """Checked batches of one partition that are written together, and where their results go.

    ``now`` (ms) is the time of their checks, by which ``rules`` are those of the partition's configuration. ``wanted``
    is the recompression that it asks for. ``looks_at_records`` is whether there is either.
    """

    def __init__(self) -> None:
        self.now = 0
        self.config = TopicConfig()
        self.partition: Partition | None = None
        self.rules: batch_checks.RecordRules | None = None
        self.wanted: Recompression | None = None
        self.looks_at_records = False
        self.is_stamped = False
        self.batches: list[memoryview] = []
        self.headers: list[BatchHeader] = []
        self.results: list[list[AppendResult]] = []  # to which each batch's is added

    def begin(self, partition: Partition) -> None:
        """Gather for ``partition`` from now on."""
        config = partition.log.config
        self.partition = partition
        if config is self.config and not self.looks_at_records:
            return  # the rules for records alone change with the time
        self.config = config
        self.rules = batch_checks.record_rules(config, self.now)
        self.wanted = recompression(config)
        self.looks_at_records = self.rules is not None or self.wanted is not None
        self.is_stamped = config.message_timestamp_type == "LogAppendTime"

    def leave(self, now: int) -> None:
        """Gather for no partition, at the time ``now``."""
        self.partition, self.now = None, now
        if self.headers:
            self.clear()  # a bug ended the request that had them

    def add(self, batch: memoryview, header: BatchHeader, results: list[AppendResult]) -> None:
        """Add a batch, whose result is to be the next of ``results``."""
        self.batches.append(batch)
        self.headers.append(header)
        self.results.append(results)

    def clear(self) -> None:
        """Forget the batches: they are written."""
        self.batches.clear()
        self.headers.clear()
        self.results.clear()


def _records_cost(header: BatchHeader) -> float:
    """The cost of looking at every record of a batch; a compressed one may open to as much as is looked at at once."""
    if header.codec_id:
        return budget.TURN
    return budget.BATCH + min(budget.TURN, header.size * budget.TURN / RECORDS_IN_LINE_BYTES)


@dataclass(eq=False, repr=False)
class AppendContext:
    """The parts of the broker that appends use."""

    table: PartitionTable
    directory: LogDirectory
    clock: Clock
    waits: AppendWaits
    flush_wanted: FlushSignal
    metrics: Metrics

    def __post_init__(self) -> None:
        self.gathered = _Gathered()  # for all, because it is empty whenever an append pauses


@mypyc_attr(allow_interpreted_subclasses=True)
class Acknowledged:
    """Appends that are written, and may still wait for their ack."""

    __slots__ = ()

    @property
    def replies(self) -> list[AppendReply | errors.SeglogError] | None:
        """The reply to each request, if every partition has reached the requested ack, or failed; else None."""
        raise NotImplementedError

    def listen(self, listener: Callable[[], None]) -> bool:
        """Call ``listener`` when the replies should be complete. False if no round will do that: then call ``wait``."""
        raise NotImplementedError

    def wait(self) -> Awaitable[object]:
        """To be awaited: until every partition has reached the requested ack, or failed. ``replies`` has them then.

        Any number of tasks may wait. If cancelled, the batches stay.
        """
        raise NotImplementedError


class PendingAppends(Acknowledged):
    """Appends in progress: consecutive requests of one connection, all with one ack.

    As much as is possible without letting other tasks run is written when it is made. Call ``write_rest`` unless
    ``is_written``. Then ``replies`` has the replies if no ack is outstanding; otherwise ``wait`` returns them.
    """

    __slots__ = (
        "_at_once",
        "_context",
        "_counts",
        "_ends",
        "_payloads",
        "_refused",
        "_refused_topics",
        "_replies",
        "_requests",
        "_results",
        "_round",
        "_waits",
        "ack",
        "for_broker",
        "may_wait_for_files",
        "spent",
        "stopped_for",
    )

    def __init__(
        self,
        context: AppendContext,
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        refused: Mapping[str, errors.SeglogError] | None,
        *,
        for_broker: bool,
        at_once: bool,
    ) -> None:
        """The arguments are those of ``AppendService.append``."""
        self.ack: Ack = requests[0].ack
        self.spent = 0.0  # on writing, in microseconds (``budget``)
        self.stopped_for: Wanted | None = None  # until it is written
        self.may_wait_for_files = not at_once  # until that was in vain
        self.for_broker = for_broker
        self._context = context
        self._at_once = at_once
        self._requests = requests
        self._payloads = list(payloads)
        self._refused_topics = refused
        self._round: Round | None = None  # of group commit, which syncs all of these partitions
        self._results: list[list[AppendResult]] = []  # of each request
        self._counts: dict[int, dict[str, int]] = {}  # by request: numbers of partitions, if the client has another one
        self._refused: dict[int, errors.SeglogError] = {}  # requests that were refused as a whole
        self._ends: dict[Partition, int] = {}  # the offset up to which each must be durable
        self._waits: list[tuple[Partition, int, list[AppendResult], int]] = []  # partition, offset; place of its result
        self._replies: list[AppendReply | errors.SeglogError] | None = None  # once they are known
        context.table.suggestions.renew()  # once: a Produce request of Kafka's is a request for each of its partitions
        self.go_on(None)

    # --- Writing ------------------------------------------------------------------------------------------------------

    def keep_payloads(self) -> int:
        """Copy what is not written yet, because the buffer that holds it gets other bytes; the bytes copied."""
        copied = 0
        for number in range(max(0, len(self._results) - 1), len(self._payloads)):
            self._payloads[number] = memoryview(bytearray(self._payloads[number]))
            copied += len(self._payloads[number])
        if isinstance(self.stopped_for, RecordWork):
            self.stopped_for.batch = memoryview(bytes(self.stopped_for.batch))
        return copied

    def write_rest(self) -> Awaitable[None]:
        """Write the rest, and let other tasks run in between. If cancelled, batches that are written stay."""
        return self._context.waits.write_rest(self)

    @property
    def is_written(self) -> bool:
        """True if nothing is left to be written."""
        return self.stopped_for is None

    def go_on(self, outcome: Outcome) -> None:
        """Write as much as is possible without letting other tasks run; ``outcome`` is that of ``stopped_for``."""
        work = self.stopped_for
        self._context.gathered.leave(self._context.clock.now_ms())
        looked_at: RecordWork | None = None
        if isinstance(work, RecordWork):
            looked_at = self._judged(work, outcome)
        elif work is Wait.FILES:
            self.may_wait_for_files = outcome is True
        self.stopped_for = self._write(looked_at)
        if self.stopped_for is None:
            self._payloads.clear()  # their buffers may be large, and an ack takes its time

    def _write(self, looked_at: RecordWork | None) -> Wanted | None:
        """Write up to the first wait, which is returned; ``looked_at`` is the work on the next batch that was done.

        Each batch has one result, so that their number says where to go on.
        """
        context, payloads, all_results = self._context, self._payloads, self._results
        gathered, table, directory = context.gathered, context.table, context.directory
        may_pause, spent_before = not self._at_once, self.spent
        for number in range(max(0, len(all_results) - 1), len(payloads)):
            request, payload = self._requests[number], payloads[number]
            items = request.partitions
            if number == len(all_results):
                results: list[AppendResult] = []
                all_results.append(results)
                if not self._begin(number, request, len(payload)):
                    continue
                rest, position = items, 0
            else:
                results = all_results[number]
                rest, position = items[len(results) :], sum([item.size for item in items[: len(results)]])
            for item in rest:
                if may_pause and self.spent - spent_before >= budget.TURN:
                    self._append_gathered()
                    return Wait.TURN
                end = position + item.size
                try:
                    if request.topic_ids is not None and table.is_recreated(request.topic_ids, item.topic):
                        raise table.another_topic(item.topic, item.partition, _PRODUCER_OF_ANOTHER)
                    partition = gathered.partition
                    if partition is None or partition.number != item.partition or partition.topic != item.topic:
                        if gathered.headers:
                            self._append_gathered()
                        gathered.partition = None
                        refused = self._refused_topics and self._refused_topics.get(item.topic)
                        if isinstance(refused, errors.AuthorizationError):
                            raise refused
                        if is_internal(item.topic) and not self.for_broker:
                            raise errors.InvalidTopicError(
                                f"topic {item.topic} is the broker's own: it alone writes to it", topic=item.topic
                            )
                        partition = table.partition(item.topic, item.partition)
                        if (
                            self.may_wait_for_files
                            and looked_at is None
                            and directory.handles.is_scarce
                            and not partition.log.active.log.holds_writer
                        ):
                            return Wait.FILES
                        gathered.begin(partition)
                        self.spent += budget.BATCH
                    else:
                        self.spent += NEXT_COST
                    self.spent += item.size // COSTED_BYTES * budget.BATCH
                    batch = payload if len(items) == 1 else payload[position:end]
                    try:
                        header = batch_checks.check_batch(batch, gathered.config, gathered.now)
                    except errors.InvalidTimestampError as error:
                        early = self._work_on_early(partition, error, batch) if may_pause else None
                        if early is None:
                            raise
                        return early
                    if gathered.looks_at_records and not (self.for_broker and gathered.wanted is None):  # has keys
                        judged = self._look_at_records(partition, header, batch, looked_at)
                        if isinstance(judged, RecordWork):
                            return judged
                        header, batch = judged
                    if gathered.is_stamped:
                        header = batch_checks.stamp(batch, gathered.now)
                    directory.space.check(header.batch_length + LOG_OVERHEAD)
                except errors.SeglogError as error:
                    self._append_gathered()  # their results come before this one
                    results.append(self._failed(item, error, gathered.partition))
                else:
                    gathered.add(batch, header, results)
                position, looked_at = end, None
        self._append_gathered()
        return None

    def _begin(self, number: int, request: AppendRequest, size: int) -> bool:
        """Begin a request with a payload of ``size`` bytes. False if it is refused as a whole."""
        counts, items = request.partition_counts, request.partitions
        if counts is not None and (differing := self._context.table.counts_differing(counts)) is not None:
            self._counts[number] = differing
        asked = items[0].size if len(items) == 1 else sum([item.size for item in items])
        if asked == size:
            return True
        self._refused[number] = errors.InvalidRequestError(
            f"the batches have {asked} bytes by the request, the payload has {size}", field="partitions"
        )
        return False

    def _failed(self, item: AppendPartition, error: errors.SeglogError, partition: Partition | None) -> AppendResult:
        """The result of a batch that is not to be written."""
        if isinstance(error, errors.UnknownTopicError):
            self.spent += SUGGESTION_COST
            if self._refused_topics is not None:
                error = self._refused_topics.get(item.topic, error)
        else:
            self.spent += budget.BATCH
            if getattr(error, "records", ()):
                self.spent += budget.TURN  # its records were looked at
            if partition is not None:
                error = partition.with_partition(error)
        return AppendResult(item.topic, item.partition, error=errors.without_frames(error))

    def _judged(self, work: RecordWork, outcome: Outcome) -> RecordWork | None:
        """``work`` with its outcome, if its batch is not refused; else the batch has its result, and None."""
        error: errors.SeglogError | None = work.error
        if error is not None:
            if isinstance(outcome, errors.InvalidTimestampError) and outcome.records:
                named = {"record": outcome.record, "records": outcome.records}
                error = errors.InvalidTimestampError(error.message, **{**error.facts, **named})
        elif isinstance(outcome, errors.SeglogError):
            error = outcome
        elif work.partition.is_deleted:
            error = errors.UnknownTopicError(f"topic {work.partition.topic} was deleted", topic=work.partition.topic)
        else:
            work.outcome = outcome
            return work
        results = self._results[-1]
        item = self._requests[len(self._results) - 1].partitions[len(results)]
        results.append(self._failed(item, error, work.partition))
        return None

    def _work_on_early(
        self, partition: Partition, error: errors.InvalidTimestampError, batch: memoryview
    ) -> RecordWork | None:
        """The work that names the records with a time in the future, if a batch was refused for one by its header."""
        gathered = self._context.gathered
        was_looked_at = len(batch) <= RECORDS_IN_LINE_BYTES and not parse_header(batch).codec_id
        if error.records or was_looked_at or not batch_checks.may_be_early(batch, 0, gathered.config, gathered.now):
            return None
        self._append_gathered()
        rules = batch_checks.early_rules(gathered.config, gathered.now)
        return RecordWork(batch, rules, None, partition, gathered.config, error)

    def _look_at_records(
        self, partition: Partition, header: BatchHeader, batch: memoryview, looked_at: RecordWork | None
    ) -> tuple[BatchHeader, memoryview] | RecordWork:
        """Check the records of a checked batch and recompress it, as the topic wants it; what it is then.

        Where that takes long, the work is returned instead, and the rules in force after it decide. Raises the batch's
        error.
        """
        gathered = self._context.gathered
        if looked_at is not None and looked_at.config is gathered.config:
            outcome = looked_at.outcome
            return (parse_header(outcome), memoryview(outcome)) if isinstance(outcome, bytearray) else (header, batch)
        rules, wanted = gathered.rules, gathered.wanted
        if wanted is not None and (header.codec_id == wanted.codec or self._is_repeated(partition, header)):
            wanted = None
        if rules is not None:
            self.spent += _records_cost(header)
            if batch_checks.check_small_records(header, batch, rules):
                rules = None
        if rules is None:
            if wanted is None:
                return header, batch
            self.spent += RECOMPRESSION_COST
            small = recompress_small(header, batch, wanted)
            if small is not None:
                return parse_header(small), memoryview(small)
        self._append_gathered()
        return RecordWork(batch, rules, wanted, partition, gathered.config)

    def _is_repeated(self, partition: Partition, header: BatchHeader) -> bool:
        """Whether the log has the batch of an idempotent producer, so that it is not written again.

        Raises the error of one that is out of order. Kafka looks at producers only when it has recompressed the batch.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return False
        self._append_gathered()  # the batch may repeat or follow those
        return partition.log.producers.check(header) is not None

    def _append_gathered(self) -> None:
        """Write what is gathered, and put the results where they belong."""
        gathered, metrics = self._context.gathered, self._context.metrics
        partition = gathered.partition
        if partition is None or not gathered.headers:
            return
        headers = gathered.headers
        config, ack, now = gathered.config, self.ack, gathered.now
        append_time = now if gathered.is_stamped else NO_TIMESTAMP
        expired = batch_checks.expired_before(config, now)
        written = written_bytes = waiting = too_old = 0
        end_before = partition.log.log_end_offset
        try:
            outcomes = partition.log.append(gathered.batches, headers, by_coordinator=self.for_broker)
        except Exception as error:
            log.exception("request_crashed", api=AppendRequest.api, exc_info=error)
            outcomes = [errors.UnknownServerError("internal error while handling append; see the broker log")] * len(
                headers
            )
        for outcome, header, results in zip(outcomes, headers, gathered.results):
            if isinstance(outcome, errors.SeglogError):
                results.append(self._not_written(partition, outcome))
                continue
            repeated = outcome.duplicate_of
            if repeated is None:
                written += 1
                written_bytes += header.batch_length + LOG_OVERHEAD
                if partition.append_failure is not None:
                    partition.append_failure = None
                    log.info("append_succeeded", topic=partition.topic, partition=partition.number)
                if NO_TIMESTAMP < header.max_timestamp < expired:
                    too_old += header.record_count
                if outcome.rolled is not None:
                    partition.note_rolled(str(outcome.rolled), outcome.base_offset)
            else:
                metrics.duplicates += 1
            results.append(
                AppendResult(
                    partition.topic,
                    partition.number,
                    outcome.base_offset,
                    append_time if repeated is None or not gathered.is_stamped else repeated,
                    ack,
                    repeated is not None,
                    expired,
                )
            )
            if ack == "disk":  # a repeated one waits too, because the first append may still be waiting
                self.wait_for(partition, outcome.last_offset + 1, results, len(results) - 1)
                waiting += 1
        if written:
            metrics.appends[ack] += written
            metrics.append_bytes += written_bytes
            partition.note_written(written_bytes, partition.log.log_end_offset - end_before)
            if too_old:
                partition.expired_on_arrival += too_old
            if not waiting and partition.log.log_end_offset - partition.log.durable_end_offset >= config.flush_messages:
                self._context.flush_wanted.set()
            if partition.waiters:
                partition.note_append(written_bytes)
        gathered.clear()
        if waiting:
            self._round = partition.want_durable()  # now, so that it is part of the next round

    def _not_written(self, partition: Partition, error: errors.SeglogError) -> AppendResult:
        """The result of a batch that the log did not take."""
        if isinstance(error, errors.StorageError) and not isinstance(error, errors.PartitionReadOnlyError):
            if isinstance(error, errors.DiskFullError):
                error = self._context.directory.space.refusal_now(error.message)
            if partition.append_failure is None:  # once, not for each retry of a producer
                log.error("append_failed", topic=partition.topic, partition=partition.number, reason=error.message)
            partition.append_failure = error.message
            partition.note_read_only()
        return AppendResult(
            partition.topic, partition.number, error=errors.without_frames(partition.with_partition(error))
        )

    def wait_for(self, partition: Partition, end_offset: int, results: list[AppendResult], number: int) -> None:
        """Send result ``number`` of ``results`` when every record of ``partition`` below ``end_offset`` is durable."""
        self._waits.append((partition, end_offset, results, number))
        if end_offset > self._ends.get(partition, 0):
            self._ends[partition] = end_offset

    # --- Answering ----------------------------------------------------------------------------------------------------

    @property
    def replies(self) -> list[AppendReply | errors.SeglogError] | None:
        """See ``Acknowledged.replies``."""
        if self._replies is None:
            for partition, offset in self._ends.items():
                if partition.log.durable_end_offset < offset:
                    return None
            return self._all_replies()
        return self._replies

    def listen(self, listener: Callable[[], None]) -> bool:
        """See ``Acknowledged.listen``."""
        return self._round is not None and self._round.listen(listener)

    def wait(self) -> Awaitable[list[AppendReply | errors.SeglogError]]:
        """See ``Acknowledged.wait``."""
        return when_durable(self._ends, self._fail, self._all_replies)

    def _fail(self, partition: Partition, error: errors.SeglogError) -> None:
        """The records of ``partition`` that are not durable will not be."""
        failed = AppendResult(partition.topic, partition.number, error=errors.without_frames(error))
        durable = partition.log.durable_end_offset
        for waiting, end_offset, results, number in self._waits:
            if waiting is partition and end_offset > durable:
                results[number] = failed

    def _all_replies(self) -> list[AppendReply | errors.SeglogError]:
        counts, refused = self._counts, self._refused
        if not counts and not refused:
            self._replies = [AppendReply(results) for results in self._results]
        else:
            self._replies = [
                refused[number] if number in refused else AppendReply(results, counts.get(number))
                for number, results in enumerate(self._results)
            ]
        return self._replies


class AppendsPart(Acknowledged):
    """The appends of one connection among those that were written together: numbers ``begin`` to ``end``."""

    __slots__ = ("_begin", "_end", "_whole")

    def __init__(self, whole: Acknowledged, begin: int, end: int) -> None:
        """They belong to ``whole``, whose batches were written together."""
        self._whole = whole
        self._begin = begin
        self._end = end

    @property
    def replies(self) -> list[AppendReply | errors.SeglogError] | None:
        """See ``Acknowledged.replies``."""
        replies = self._whole.replies
        return None if replies is None else replies[self._begin : self._end]

    def listen(self, listener: Callable[[], None]) -> bool:
        """See ``Acknowledged.listen``."""
        return self._whole.listen(listener)

    def wait(self) -> Awaitable[object]:
        """See ``Acknowledged.wait``."""
        return self._whole.wait()
