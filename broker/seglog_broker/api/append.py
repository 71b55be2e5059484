"""Appends: batches are checked, written in the order of the request, and acknowledged at the requested level."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from seglog_broker.api.pending_appends import FILES, Outcome, PendingAppends, RecordWork, Wanted, Writing
from seglog_broker.api.topics import TopicService
from seglog_broker.api.turns import BYTES_AN_EFFORT, EFFORT_A_TURN
from seglog_broker.config import TopicConfig
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.group_commit import FlushSignal
from seglog_broker.partitions.idle_writers import IdleWriters
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filenames import TOPIC_NAME_MAX
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
    TopicExistsError,
    UnknownServerError,
    UnknownTopicError,
    without_frames,
)
from seglog_protocol.internal_topics import is_internal
from seglog_protocol.messages import (
    AppendPartition,
    AppendRequest,
    AppendResult,
    CreateTopicRequest,
    FlushReply,
    FlushRequest,
    FlushResult,
)
from seglog_protocol.record_batch import LOG_OVERHEAD, NO_PRODUCER_ID, NO_TIMESTAMP, BatchHeader, parse_header

FILES_AT_ONCE: Final = 256
"""Files that must be free for an append to be written together with others, of as many partitions."""

PLAIN_BATCHES_MAX: Final = 8
"""The most batches of a request that is written together with others."""

EFFORT_OF_NEXT: Final = 0.25
"""The work for a small batch behind another one for the same partition: a quarter of what the first one takes."""

EFFORT_OF_RECOMPRESSION: Final = EFFORT_A_TURN / 4
"""The work of recompressing a small batch, which takes less than half a millisecond."""

log = structlog.get_logger()

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


def _effort_of_records(header: BatchHeader) -> int:
    """The work of looking at every record of a batch; a compressed one may open to as much as is looked at at once."""
    if header.codec_id:
        return EFFORT_A_TURN
    return 1 + min(EFFORT_A_TURN, header.size * EFFORT_A_TURN // RECORDS_IN_LINE_BYTES)


def _failed(item: AppendPartition, error: SeglogError) -> AppendResult:
    return AppendResult(item.topic, item.partition, error=without_frames(error))


@dataclass(eq=False)
class AppendService:
    """Appends batches to partitions, and flushes partitions."""

    _table: PartitionTable
    _topics: TopicService
    _directory: LogDirectory
    _config: LiveConfig
    _clock: Clock
    _reads: ColdReads
    _offload: Offload
    _flush_wanted: FlushSignal
    _idle_writers: IdleWriters
    _metrics: Metrics

    def missing_topics(self, request: AppendRequest) -> list[str]:
        """Topics of an append that do not exist and that it may create; none if creation is disabled."""
        known = self._directory.registry.topics
        if not request.create or not self._config.current.auto_create_topics_enable:
            return []
        return [item.topic for item in request.partitions if item.topic not in known]

    async def create_missing(self, request: AppendRequest) -> dict[str, SeglogError]:
        """Create topics with the broker's defaults. Returns topic -> error for those that failed, for ``append``."""
        refused: dict[str, SeglogError] = {}
        missing = list(dict.fromkeys(self.missing_topics(request)))
        outcomes = await self._topics.create_all([CreateTopicRequest(name) for name in missing])
        for name, outcome in zip(missing, outcomes, strict=True):
            # A topic that exists by now was made for another connection.
            if isinstance(outcome, SeglogError) and not isinstance(outcome, TopicExistsError):
                log.warning("topic_not_created", topic=name[:TOPIC_NAME_MAX], reason=outcome.message)
                refused[name] = outcome
        return refused

    def is_plain(self, request: AppendRequest, payload: memoryview) -> bool:
        """Whether ``append`` writes it at once, also together with others.

        It is short, its topics exist and look at no records, none of its batches is refused for a time in the future,
        whose records would be looked at, its files need not wait for others to be closed, and its ack is sent.
        """
        if request.ack == "none" or len(request.partitions) > PLAIN_BATCHES_MAX:
            return False
        has_files = self._directory.handles.has_room_for(FILES_AT_ONCE)
        now = self._clock.now_ms()
        position = 0
        for item in request.partitions:
            partition = self._table.find(item.topic, item.partition)
            if partition is None or partition.looks_at_records:
                return False
            if not has_files and not partition.log.active.log.holds_writer:
                return False
            if may_be_early(payload, position, partition.log.config, now):
                return False
            position += item.size
        return True

    def append(
        self,
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        refused: Mapping[str, SeglogError] | None = None,
        *,
        for_broker: bool = False,
        at_once: bool = False,
    ) -> PendingAppends:
        """Write the batches of requests with one ack, in their order, each with its own result; some at once.

        Batches for one partition that follow each other are written together. ``refused``: topic -> error, for topics
        that could not be created. ``payloads`` are changed in place. ``for_broker``: they are the broker's own, which
        writes internal topics. ``at_once``: they are plain, and none waits for files to be closed.
        """
        kept = list(payloads)
        pending = PendingAppends(self._reads, self._offload, self._idle_writers, requests[0].ack, kept)
        pending.may_wait_for_files = not at_once
        pending.write(self._write(pending, requests, kept, refused or {}, for_broker=for_broker, at_once=at_once))
        assert pending.is_written or not at_once, "a plain append waits for nothing"
        return pending

    def _write(
        self,
        pending: PendingAppends,
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        refused: Mapping[str, SeglogError],
        *,
        for_broker: bool,
        at_once: bool,
    ) -> Writing:
        gathered = _Gathered(self._clock.now_ms())
        effort_before = 0.0  # of this turn
        self._table.suggestions.renew()  # once: a Produce request of Kafka's is a request for each of its partitions
        for number, request in enumerate(requests):
            counts = request.partition_counts
            results = pending.begin_request(None if counts is None else self._table.counts_differing(counts))
            items = request.partitions
            asked = items[0].size if len(items) == 1 else sum([item.size for item in items])
            if asked != len(payloads[number]):
                pending.refuse_request(
                    InvalidRequestError(
                        f"the batches have {asked} bytes by the request, the payload has {len(payloads[number])}",
                        field="partitions",
                    )
                )
                continue
            position = 0
            for item in items:
                if pending.effort - effort_before >= EFFORT_A_TURN and not at_once:
                    effort_before = pending.effort
                    self._append_gathered(pending, gathered)
                    yield None
                    gathered.leave(self._clock.now_ms())
                end = position + item.size
                try:
                    if request.topic_ids is not None and self._table.is_recreated(request.topic_ids, item.topic):
                        raise self._table.another_topic(item.topic, item.partition, _PRODUCER_OF_ANOTHER)
                    partition = gathered.partition
                    if partition is None or partition.number != item.partition or partition.topic != item.topic:
                        if gathered.headers:
                            self._append_gathered(pending, gathered)
                        gathered.partition = None
                        if is_internal(item.topic) and not for_broker:
                            raise InvalidTopicError(
                                f"topic {item.topic} is the broker's own: it alone writes to it", topic=item.topic
                            )
                        partition = self._table.partition(item.topic, item.partition)
                        if (
                            self._directory.handles.is_scarce
                            and pending.may_wait_for_files
                            and not partition.log.active.log.holds_writer
                        ):
                            yield FILES
                            gathered.leave(self._clock.now_ms())
                            partition = self._table.partition(item.topic, item.partition)  # it may have been deleted
                        gathered.begin(partition)
                        pending.effort += 1
                    else:
                        pending.effort += EFFORT_OF_NEXT
                    pending.effort += item.size // BYTES_AN_EFFORT
                    batch = payloads[number][position:end]
                    try:
                        header = check_batch(batch, gathered.config, gathered.now)
                    except InvalidTimestampError as error:
                        if error.records or at_once:
                            raise
                        raise (yield from self._with_records(pending, error, batch, gathered)) from None
                    if gathered.looks_at_records:
                        header, batch = yield from self._look_at_records(
                            pending, header, payloads, number, position, end, gathered
                        )
                    if gathered.is_stamped:
                        header = stamp(batch, gathered.now)
                    self._directory.space.check(header.batch_length + LOG_OVERHEAD)
                except UnknownTopicError as error:
                    pending.effort += EFFORT_A_TURN // 4  # for suggestions of names
                    results.append(_failed(item, refused.get(item.topic, error)))
                except SeglogError as error:
                    pending.effort += 1
                    if getattr(error, "records", ()):
                        pending.effort += EFFORT_A_TURN  # its records were looked at
                    partition = gathered.partition
                    results.append(_failed(item, error if partition is None else partition.with_partition(error)))
                else:
                    gathered.add(batch, header, results)
                position = end
        self._append_gathered(pending, gathered)

    def _with_records(
        self, pending: PendingAppends, error: InvalidTimestampError, batch: memoryview, gathered: "_Gathered"
    ) -> Generator[Wanted, Outcome, SeglogError]:
        """The error of a batch with a time in the future, naming the records that have one."""
        partition = gathered.partition
        assert partition is not None
        was_looked_at = len(batch) <= RECORDS_IN_LINE_BYTES and not parse_header(batch).codec_id
        if was_looked_at or not may_be_early(batch, 0, gathered.config, gathered.now):
            return error
        self._append_gathered(pending, gathered)
        outcome = yield RecordWork(batch, early_rules(gathered.config, gathered.now), None)
        gathered.leave(self._clock.now_ms())
        if isinstance(outcome, InvalidTimestampError) and outcome.records:
            named = {"record": outcome.record, "records": outcome.records}
            error = InvalidTimestampError(error.message, **{**error.facts, **named})
        return partition.with_partition(error)

    def _look_at_records(
        self,
        pending: PendingAppends,
        header: BatchHeader,
        payloads: Sequence[memoryview],
        number: int,
        position: int,
        end: int,
        gathered: "_Gathered",
    ) -> Generator[Wanted, Outcome, tuple[BatchHeader, memoryview]]:
        """Check the records of a checked batch and recompress it, as the topic wants it; what it is then.

        Where that takes long, the rules in force afterwards decide. Raises the error of the batch.
        """
        partition = gathered.partition
        assert partition is not None
        while True:
            batch = payloads[number][position:end]
            rules, wanted = gathered.rules, gathered.wanted
            if wanted is not None and (
                header.codec_id == wanted.codec or self._is_repeated(partition, header, pending, gathered)
            ):
                wanted = None
            if rules is not None:
                pending.effort += _effort_of_records(header)
                if check_small_records(header, batch, rules):
                    rules = None
            if rules is None:
                if wanted is None:
                    return header, batch
                pending.effort += EFFORT_OF_RECOMPRESSION
                small = recompress_small(header, batch, wanted)
                if small is not None:
                    return parse_header(small), memoryview(small)
            self._append_gathered(pending, gathered)
            config = gathered.config
            outcome = yield RecordWork(batch, rules, wanted)
            gathered.leave(self._clock.now_ms())
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

    def _is_repeated(
        self, partition: Partition, header: BatchHeader, pending: PendingAppends, gathered: "_Gathered"
    ) -> bool:
        """Whether the log has the batch of an idempotent producer, so that it is not written again.

        Raises the error of one that is out of order. Kafka looks at producers only when it has recompressed the batch.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return False
        self._append_gathered(pending, gathered)  # the batch may repeat or follow those
        return partition.log.producers.check((header,)) is not None

    def _append_gathered(self, pending: PendingAppends, gathered: "_Gathered") -> None:
        """Write what is gathered, and put the results where they belong."""
        partition = gathered.partition
        if partition is None or not gathered.headers:
            return
        headers = gathered.headers
        config, ack, now = gathered.config, pending.ack, gathered.now
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
                self._metrics.duplicates += 1
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
                pending.wait_for(partition, outcome.last_offset + 1, results, number)
                waiting += 1
        if written:
            self._metrics.appends[ack] += written
            self._metrics.append_bytes += written_bytes
            if partition.log.log_end_offset - partition.log.durable_end_offset >= config.flush_messages:
                self._flush_wanted.set()
            if partition.waiters:
                partition.note_append(written_bytes)
        gathered.clear()
        if waiting:
            pending.join_round(partition)  # now, so that it is part of the next round

    def _not_written(self, partition: Partition, error: SeglogError) -> AppendResult:
        """The result of a batch that the log did not take."""
        if isinstance(error, StorageError) and not isinstance(error, PartitionReadOnlyError):
            if isinstance(error, DiskFullError):
                error = self._directory.space.refusal_now(error.message)
            if partition.append_failure is None:  # once, not for each retry of a producer
                log.error("append_failed", topic=partition.topic, partition=partition.number, reason=error.message)
            partition.append_failure = error.message
            partition.note_read_only()
        return AppendResult(partition.topic, partition.number, error=without_frames(partition.with_partition(error)))

    async def flush(self, request: FlushRequest) -> FlushReply:
        """Sync everything in these partitions, as an append at ack ``disk`` syncs earlier records."""
        results: list[FlushResult] = []
        waits: list[tuple[int, Partition, int]] = []
        for number, item in enumerate(request.partitions):
            if number % EFFORT_A_TURN == EFFORT_A_TURN - 1:
                await self._reads.turn()
            try:
                partition = self._table.partition(item.topic, item.partition)
            except SeglogError as error:
                results.append(FlushResult(item.topic, item.partition, error=without_frames(error)))
                continue
            partition.want_durable()  # all before the first wait, so that they share a round
            waits.append((len(results), partition, partition.log.log_end_offset))
            results.append(FlushResult(item.topic, item.partition))
        for done, (number, partition, end_offset) in enumerate(waits, start=1):
            if done % EFFORT_A_TURN == 0:
                await self._reads.turn()
            try:
                await partition.wait_durable(end_offset)
            except SeglogError as error:
                results[number] = FlushResult(partition.topic, partition.number, error=without_frames(error))
            else:
                durable = partition.log.durable_end_offset
                results[number] = FlushResult(partition.topic, partition.number, durable=durable)
        return FlushReply(results)
