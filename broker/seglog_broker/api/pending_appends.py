"""Appends in progress: they are checked and written in the order of their requests, and wait for their ack."""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from seglog_broker.config import TopicConfig
from seglog_broker.partitions.commit_round import Round
from seglog_broker.partitions.durability import wait_durable
from seglog_broker.partitions.group_commit import FlushSignal
from seglog_broker.partitions.idle_writers import IdleWriters
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime import budget
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.log.batch_checks import (
    RecordRules,
    check_batch,
    check_small_records,
    early_rules,
    may_be_early,
    record_rules,
    stamp,
)
from seglog_broker.storage.log.recompression import Recompression, recompress_small, recompression
from seglog_broker.storage.log.retention import expired_before
from seglog_broker.storage.segment.segment import RECORDS_IN_LINE_BYTES
from seglog_protocol.errors import (
    DiskFullError,
    InvalidRequestError,
    InvalidTimestampError,
    InvalidTopicError,
    PartitionReadOnlyError,
    SeglogError,
    StorageError,
    UnknownServerError,
    UnknownTopicError,
    without_frames,
)
from seglog_protocol.internal_topics import is_internal
from seglog_protocol.messages import (
    Ack,
    AppendPartition,
    AppendReply,
    AppendRequest,
    AppendResult,
)
from seglog_protocol.record_batch import LOG_OVERHEAD, NO_PRODUCER_ID, NO_TIMESTAMP, BatchHeader, parse_header

log = structlog.get_logger()

NEXT_COST: Final = 7.5
"""Microseconds for a small batch behind another one for the same partition: a quarter of what the first one takes."""

COSTED_BYTES: Final = 64 * 1024
"""Bytes of a batch whose checksum and write cost as much as the rest of the work for a small one."""

RECOMPRESSION_COST: Final = 500
"""To recompress a small batch."""

SUGGESTION_COST: Final = 500
"""To look for the topic that an unknown name was perhaps meant to be."""


class RecordWork(NamedTuple):
    """A batch whose records take too long for the loop: they are to be checked, recompressed, or both."""

    batch: memoryview
    rules: RecordRules | None
    wanted: Recompression | None


Outcome = SeglogError | bytearray | None
"""What became of a ``RecordWork``: its error, the recompressed batch, or None where the batch stays as it is."""


class FilesWanted(NamedTuple):
    """The next partition needs a file to be opened, and others have to be closed first."""


FILES: Final = FilesWanted()

Wanted = RecordWork | FilesWanted | None

Writing = Generator[Wanted, Outcome, None]
"""The steps of an append. They yield None to let other tasks run, FILES, or work on records, whose outcome is then sent
in."""

_PRODUCER_OF_ANOTHER: Final = "the records were meant for the former topic; to send to this one make a new producer"


class _Gathered:
    """Checked batches of one partition that are written together, and where their results go.

    ``now`` (ms) is the time of their checks, by which ``rules`` are those of the partition's configuration. ``wanted``
    is the recompression that it asks for. ``looks_at_records`` is whether there is either.
    """

    __slots__ = (
        "batches",
        "config",
        "headers",
        "is_stamped",
        "looks_at_records",
        "now",
        "partition",
        "places",
        "rules",
        "wanted",
    )

    config: TopicConfig

    def __init__(self, now: int) -> None:
        self.now = now
        self.partition: Partition | None = None
        self.rules: RecordRules | None = None
        self.wanted: Recompression | None = None
        self.looks_at_records = False
        self.is_stamped = False
        self.batches: list[memoryview] = []
        self.headers: list[BatchHeader] = []
        self.places: list[tuple[list[AppendResult], int]] = []

    def begin(self, partition: Partition) -> None:
        """Gather for ``partition`` from now on."""
        config = partition.log.config
        self.partition, self.config = partition, config
        self.rules = record_rules(config, self.now)
        self.wanted = recompression(config)
        self.looks_at_records = self.rules is not None or self.wanted is not None
        self.is_stamped = config.message_timestamp_type == "LogAppendTime"

    def leave(self, now: int) -> None:
        """Gather for no partition, at the time ``now``."""
        self.partition, self.now = None, now

    def add(self, batch: memoryview, header: BatchHeader, results: list[AppendResult]) -> None:
        """Add a batch, whose result is to be the next of ``results``."""
        self.batches.append(batch)
        self.headers.append(header)
        self.places.append((results, len(results)))
        results.append(_UNKNOWN)

    def clear(self) -> None:
        """Forget the batches: they are written."""
        self.batches.clear()
        self.headers.clear()
        self.places.clear()


_UNKNOWN: Final = AppendResult("", 0)
"""Stands where a result will be."""


def _records_cost(header: BatchHeader) -> float:
    """The cost of looking at every record of a batch; a compressed one may open to as much as is looked at at once."""
    if header.codec_id:
        return budget.TURN
    return budget.BATCH + min(budget.TURN, header.size * budget.TURN / RECORDS_IN_LINE_BYTES)


def _failed(item: AppendPartition, error: SeglogError) -> AppendResult:
    return AppendResult(item.topic, item.partition, error=without_frames(error))


class AppendContext(NamedTuple):
    """The parts of the broker that appends use."""

    table: PartitionTable
    directory: LogDirectory
    clock: Clock
    scheduler: Scheduler
    offload: Offload
    flush_wanted: FlushSignal
    idle_writers: IdleWriters
    metrics: Metrics


class Acknowledged:
    """Appends that are written, and may still wait for their ack."""

    __slots__ = ()

    @property
    def replies(self) -> list[AppendReply | SeglogError] | None:
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
        "_context",
        "_counts",
        "_ends",
        "_gathered",
        "_may_wait_for_files",
        "_payloads",
        "_refused",
        "_replies",
        "_results",
        "_round",
        "_stopped_for",
        "_waits",
        "_writing",
        "ack",
        "is_written",
        "spent",
    )

    def __init__(
        self,
        context: AppendContext,
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        refused: Mapping[str, SeglogError],
        *,
        for_broker: bool,
        at_once: bool,
    ) -> None:
        """The arguments are those of ``AppendService.append``."""
        self.ack: Ack = requests[0].ack
        self.is_written = False
        self.spent = 0.0  # on writing, in microseconds (``budget``)
        self._context = context
        self._may_wait_for_files = not at_once  # until that was in vain
        self._payloads = list(payloads)
        self._gathered = _Gathered(context.clock.now_ms())
        self._round: Round | None = None  # of group commit, which syncs all of these partitions
        self._results: list[list[AppendResult]] = []  # of each request
        self._counts: dict[int, dict[str, int]] = {}  # by request: numbers of partitions, if the client has another one
        self._refused: dict[int, SeglogError] = {}  # requests that were refused as a whole
        self._ends: dict[Partition, int] = {}  # the offset up to which each must be durable
        self._waits: list[tuple[Partition, int, list[AppendResult], int]] = []  # partition, offset; place of its result
        self._replies: list[AppendReply | SeglogError] | None = None  # once they are known
        self._writing: Writing = self._write(requests, refused, for_broker=for_broker, at_once=at_once)
        self._stopped_for: Wanted = None
        self._go_on(None)

    # --- Writing ------------------------------------------------------------------------------------------------------

    def keep_payloads(self) -> int:
        """Copy what is not written yet, because the buffer that holds it gets other bytes; the bytes copied."""
        copied = 0
        for number in range(max(0, len(self._results) - 1), len(self._payloads)):
            self._payloads[number] = memoryview(bytearray(self._payloads[number]))
            copied += len(self._payloads[number])
        if isinstance(self._stopped_for, RecordWork):
            self._stopped_for = self._stopped_for._replace(batch=memoryview(bytes(self._stopped_for.batch)))
        return copied

    async def write_rest(self) -> None:
        """Write the rest, and let other tasks run in between. If cancelled, batches that are written stay."""
        while not self.is_written:
            outcome: Outcome = None
            work = self._stopped_for
            if work is None:
                await self._context.scheduler.turn()
            elif isinstance(work, FilesWanted):
                self._may_wait_for_files = await self._context.idle_writers.wait_for_room()
            else:
                try:
                    outcome = await self._done(work)
                except SeglogError as error:
                    outcome = error
            self._go_on(outcome)

    async def _done(self, work: RecordWork) -> bytearray | None:
        if work.wanted is not None:
            return await self._context.offload.recompress(work.batch, work.wanted, work.rules)
        if work.rules is not None:
            await self._context.offload.check_records(work.batch, work.rules)
        return None

    def _go_on(self, outcome: Outcome) -> None:
        try:
            self._stopped_for = self._writing.send(outcome)
        except StopIteration:
            self.is_written = True
            self._payloads.clear()  # their buffers may be large, and an ack takes its time

    def _write(
        self,
        requests: Sequence[AppendRequest],
        refused: Mapping[str, SeglogError],
        *,
        for_broker: bool,
        at_once: bool,
    ) -> Writing:
        gathered, payloads = self._gathered, self._payloads
        table, directory, clock = self._context.table, self._context.directory, self._context.clock
        spent_before = 0.0  # in earlier turns
        table.suggestions.renew()  # once: a Produce request of Kafka's is a request for each of its partitions
        for number, request in enumerate(requests):
            counts = request.partition_counts
            results: list[AppendResult] = []
            self._results.append(results)
            if counts is not None and (differing := table.counts_differing(counts)) is not None:
                self._counts[number] = differing
            items = request.partitions
            asked = items[0].size if len(items) == 1 else sum([item.size for item in items])
            if asked != len(payloads[number]):
                self._refused[number] = InvalidRequestError(
                    f"the batches have {asked} bytes by the request, the payload has {len(payloads[number])}",
                    field="partitions",
                )
                continue
            position = 0
            for item in items:
                if self.spent - spent_before >= budget.TURN and not at_once:
                    spent_before = self.spent
                    self._append_gathered()
                    yield None
                    gathered.leave(clock.now_ms())
                end = position + item.size
                try:
                    if request.topic_ids is not None and table.is_recreated(request.topic_ids, item.topic):
                        raise table.another_topic(item.topic, item.partition, _PRODUCER_OF_ANOTHER)
                    partition = gathered.partition
                    if partition is None or partition.number != item.partition or partition.topic != item.topic:
                        if gathered.headers:
                            self._append_gathered()
                        gathered.partition = None
                        if is_internal(item.topic) and not for_broker:
                            raise InvalidTopicError(
                                f"topic {item.topic} is the broker's own: it alone writes to it", topic=item.topic
                            )
                        partition = table.partition(item.topic, item.partition)
                        if (
                            directory.handles.is_scarce
                            and self._may_wait_for_files
                            and not partition.log.active.log.holds_writer
                        ):
                            yield FILES
                            gathered.leave(clock.now_ms())
                            partition = table.partition(item.topic, item.partition)  # it may have been deleted
                        gathered.begin(partition)
                        self.spent += budget.BATCH
                    else:
                        self.spent += NEXT_COST
                    self.spent += item.size // COSTED_BYTES * budget.BATCH
                    batch = payloads[number][position:end]
                    try:
                        header = check_batch(batch, gathered.config, gathered.now)
                    except InvalidTimestampError as error:
                        if error.records or at_once:
                            raise
                        raise (yield from self._with_records(error, batch)) from None
                    if gathered.looks_at_records:
                        header, batch = yield from self._look_at_records(header, number, position, end)
                    if gathered.is_stamped:
                        header = stamp(batch, gathered.now)
                    directory.space.check(header.batch_length + LOG_OVERHEAD)
                except UnknownTopicError as error:
                    self.spent += SUGGESTION_COST
                    results.append(_failed(item, refused.get(item.topic, error)))
                except SeglogError as error:
                    self.spent += budget.BATCH
                    if getattr(error, "records", ()):
                        self.spent += budget.TURN  # its records were looked at
                    partition = gathered.partition
                    results.append(_failed(item, error if partition is None else partition.with_partition(error)))
                else:
                    gathered.add(batch, header, results)
                position = end
        self._append_gathered()

    def _with_records(self, error: InvalidTimestampError, batch: memoryview) -> Generator[Wanted, Outcome, SeglogError]:
        """The error of a batch with a time in the future, naming the records that have one."""
        gathered = self._gathered
        partition = gathered.partition
        assert partition is not None
        was_looked_at = len(batch) <= RECORDS_IN_LINE_BYTES and not parse_header(batch).codec_id
        if was_looked_at or not may_be_early(batch, 0, gathered.config, gathered.now):
            return error
        self._append_gathered()
        outcome = yield RecordWork(batch, early_rules(gathered.config, gathered.now), None)
        gathered.leave(self._context.clock.now_ms())
        if isinstance(outcome, InvalidTimestampError) and outcome.records:
            named = {"record": outcome.record, "records": outcome.records}
            error = InvalidTimestampError(error.message, **{**error.facts, **named})
        return partition.with_partition(error)

    def _look_at_records(
        self, header: BatchHeader, number: int, position: int, end: int
    ) -> Generator[Wanted, Outcome, tuple[BatchHeader, memoryview]]:
        """Check the records of a checked batch and recompress it, as the topic wants it; what it is then.

        Where that takes long, the rules in force afterwards decide. Raises the error of the batch.
        """
        gathered, payloads = self._gathered, self._payloads
        partition = gathered.partition
        assert partition is not None
        while True:
            batch = payloads[number][position:end]
            rules, wanted = gathered.rules, gathered.wanted
            if wanted is not None and (header.codec_id == wanted.codec or self._is_repeated(partition, header)):
                wanted = None
            if rules is not None:
                self.spent += _records_cost(header)
                if check_small_records(header, batch, rules):
                    rules = None
            if rules is None:
                if wanted is None:
                    return header, batch
                self.spent += RECOMPRESSION_COST
                small = recompress_small(header, batch, wanted)
                if small is not None:
                    return parse_header(small), memoryview(small)
            self._append_gathered()
            config = gathered.config
            outcome = yield RecordWork(batch, rules, wanted)
            gathered.leave(self._context.clock.now_ms())
            if isinstance(outcome, SeglogError):
                raise partition.with_partition(outcome)
            if partition.is_deleted:
                raise UnknownTopicError(f"topic {partition.topic} was deleted", topic=partition.topic)
            gathered.begin(partition)
            if gathered.config is config:
                if outcome is not None:
                    return parse_header(outcome), memoryview(outcome)
                return header, payloads[number][position:end]  # where it lies now
            header = check_batch(payloads[number][position:end], gathered.config, gathered.now)

    def _is_repeated(self, partition: Partition, header: BatchHeader) -> bool:
        """Whether the log has the batch of an idempotent producer, so that it is not written again.

        Raises the error of one that is out of order. Kafka looks at producers only when it has recompressed the batch.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return False
        self._append_gathered()  # the batch may repeat or follow those
        return partition.log.producers.check((header,)) is not None

    def _append_gathered(self) -> None:
        """Write what is gathered, and put the results where they belong."""
        gathered, metrics = self._gathered, self._context.metrics
        partition = gathered.partition
        if partition is None or not gathered.headers:
            return
        headers = gathered.headers
        config, ack, now = gathered.config, self.ack, gathered.now
        append_time = now if gathered.is_stamped else NO_TIMESTAMP
        expired = expired_before(config, now)
        written = written_bytes = waiting = 0
        try:
            outcomes = partition.log.append(gathered.batches, headers)
        except Exception as error:
            log.exception("request_crashed", api=AppendRequest.api, exc_info=error)
            outcomes = [UnknownServerError("internal error while handling append; see the broker log")] * len(headers)
        for outcome, header, (results, number) in zip(outcomes, headers, gathered.places, strict=True):
            if isinstance(outcome, SeglogError):
                results[number] = self._not_written(partition, outcome)
                continue
            repeated = outcome.duplicate_of
            if repeated is None:
                written += 1
                written_bytes += header.batch_length + LOG_OVERHEAD
                partition.append_failure = None
                if outcome.rolled is not None:
                    partition.note_rolled(str(outcome.rolled), outcome.base_offset)
            else:
                metrics.duplicates += 1
            results[number] = AppendResult(
                partition.topic,
                partition.number,
                outcome.base_offset,
                append_time if repeated is None or not gathered.is_stamped else repeated,
                ack,
                repeated is not None,
                expired,
            )
            if ack == "disk":  # a repeated one waits too, because the first append may still be waiting
                self.wait_for(partition, outcome.last_offset + 1, results, number)
                waiting += 1
        if written:
            metrics.appends[ack] += written
            metrics.append_bytes += written_bytes
            if partition.log.log_end_offset - partition.log.durable_end_offset >= config.flush_messages:
                self._context.flush_wanted.set()
            if partition.waiters:
                partition.note_append(written_bytes)
        gathered.clear()
        if waiting:
            self._round = partition.want_durable()  # now, so that it is part of the next round

    def _not_written(self, partition: Partition, error: SeglogError) -> AppendResult:
        """The result of a batch that the log did not take."""
        if isinstance(error, StorageError) and not isinstance(error, PartitionReadOnlyError):
            if isinstance(error, DiskFullError):
                error = self._context.directory.space.refusal_now(error.message)
            if partition.append_failure is None:  # once, not for each retry of a producer
                log.error("append_failed", topic=partition.topic, partition=partition.number, reason=error.message)
            partition.append_failure = error.message
            partition.note_read_only()
        return AppendResult(partition.topic, partition.number, error=without_frames(partition.with_partition(error)))

    def wait_for(self, partition: Partition, end_offset: int, results: list[AppendResult], number: int) -> None:
        """Send result ``number`` of ``results`` when every record of ``partition`` below ``end_offset`` is durable."""
        self._waits.append((partition, end_offset, results, number))
        if end_offset > self._ends.get(partition, 0):
            self._ends[partition] = end_offset

    # --- Answering ----------------------------------------------------------------------------------------------------

    @property
    def replies(self) -> list[AppendReply | SeglogError] | None:
        """See ``Acknowledged.replies``."""
        if self._replies is None:
            for partition, offset in self._ends.items():
                if partition.log.durable_end_offset < offset:
                    return None
            self._replies = self._all_replies()
        return self._replies

    def listen(self, listener: Callable[[], None]) -> bool:
        """See ``Acknowledged.listen``."""
        return self._round is not None and self._round.listen(listener)

    async def wait(self) -> list[AppendReply | SeglogError]:
        """See ``Acknowledged.wait``."""
        while self._ends:
            partition, offset = next(iter(self._ends.items()))
            try:
                await wait_durable(partition, offset)
            except SeglogError as error:
                failed = AppendResult(partition.topic, partition.number, error=without_frames(error))
                durable = partition.log.durable_end_offset
                for waiting, end_offset, results, number in self._waits:
                    if waiting is partition and end_offset > durable:
                        results[number] = failed
            self._ends.pop(partition, None)
        self._replies = self._all_replies()
        return self._replies

    def _all_replies(self) -> list[AppendReply | SeglogError]:
        counts, refused = self._counts, self._refused
        if not counts and not refused:
            return [AppendReply(results) for results in self._results]
        return [
            refused[number] if number in refused else AppendReply(results, counts.get(number))
            for number, results in enumerate(self._results)
        ]
