"""Appends: batches are checked, written in the order of the request, and acknowledged at the requested level."""

from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple

import structlog

from seglog_broker.api.result_errors import as_result
from seglog_broker.api.topics import TopicService
from seglog_broker.api.turns import BYTES_AN_EFFORT, EFFORT_A_TURN
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.group_commit import FlushSignal, Round
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filenames import TOPIC_NAME_MAX
from seglog_broker.storage.log.batch_checks import RecordRules, check_batch, check_small_records, record_rules, stamp
from seglog_broker.storage.log.retention import expired_before
from seglog_protocol.errors import (
    DiskFullError,
    InvalidRequestError,
    PartitionReadOnlyError,
    SeglogError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from seglog_protocol.messages import (
    Ack,
    AppendReply,
    AppendRequest,
    AppendResult,
    CreateTopicRequest,
    FlushReply,
    FlushRequest,
    FlushResult,
)
from seglog_protocol.record_batch import BatchHeader

log = structlog.get_logger()

_PRODUCER_OF_ANOTHER: Final = "the records were meant for the former topic; to send to this one make a new producer"


class RecordCheck(NamedTuple):
    """Records that take too long to check on the loop."""

    batch: memoryview
    rules: RecordRules


Writing = Generator[RecordCheck | None, SeglogError | None, None]
"""The steps of an append. They yield None to let other tasks run, or records to be checked; the error of the check, or
None, is then sent in."""


class PendingAppend:
    """An append in progress. Unless it ``is_written``, call ``write_rest``.

    Then ``reply`` has the reply if no ack is outstanding; otherwise ``wait`` returns it.
    """

    __slots__ = (
        "_counts",
        "_offload",
        "_reads",
        "_results",
        "_round",
        "_stopped_for",
        "_waits",
        "_writing",
        "ack",
        "effort",
        "is_written",
    )

    def __init__(self, reads: ColdReads, offload: Offload, ack: Ack, counts: dict[str, int] | None) -> None:
        self.ack = ack
        self._counts = counts  # numbers of partitions, if the client has another number
        self.effort = 0
        self.is_written = False
        self._reads = reads
        self._offload = offload
        self._round: Round | None = None  # of group commit, which syncs all of these partitions
        self._results: list[AppendResult] = []
        self._waits: list[tuple[int, Partition, int]] = []  # result's number, partition, offset that must be durable
        self._writing: Writing | None = None
        self._stopped_for: RecordCheck | None = None

    def add(self, result: AppendResult) -> None:
        """Add the result of the next batch, which waits for nothing."""
        self._results.append(result)

    def add_waiting(self, result: AppendResult, partition: Partition, end_offset: int) -> None:
        """Add the result of the next batch, to be sent when every record below ``end_offset`` is durable."""
        self._waits.append((len(self._results), partition, end_offset))
        self._round = partition.want_durable()  # now, so that it is part of the next round
        self._results.append(result)

    def write(self, writing: Writing) -> None:
        """Write as much as is possible without letting other tasks run."""
        self._writing = writing
        self._go_on(None)

    async def write_rest(self) -> None:
        """Write the rest, and let other tasks run in between. If cancelled, batches that are written stay."""
        while not self.is_written:
            refusal: SeglogError | None = None
            check = self._stopped_for
            if check is None:
                await self._reads.turn()
            else:
                try:
                    await self._offload.check_records(check.batch, check.rules)
                except SeglogError as error:
                    refusal = error
            self._go_on(refusal)

    def _go_on(self, refusal: SeglogError | None) -> None:
        assert self._writing is not None
        try:
            self._stopped_for = self._writing.send(refusal)
        except StopIteration:
            self.is_written = True

    @property
    def reply(self) -> AppendReply | None:
        """The reply, if every partition has reached the requested ack, or failed; else None."""
        for _, partition, offset in self._waits:
            if partition.log.durable_end_offset < offset:
                return None
        return AppendReply(self._results, self._counts)

    def listen(self, listener: Callable[[], None]) -> bool:
        """Call ``listener`` when the reply should be complete. False if no round will do that: then call ``wait``."""
        return self._round is not None and self._round.listen(listener)

    async def wait(self) -> AppendReply:
        """Return when every partition has reached the requested ack, or failed. If cancelled, the batches stay."""
        while self._waits:
            number, partition, offset = self._waits[-1]
            try:
                await partition.wait_durable(offset)
            except SeglogError as error:
                self._results[number] = AppendResult(partition.topic, partition.number, error=as_result(error))
            self._waits.pop()
        return AppendReply(self._results, self._counts)


class AppendService:
    """Appends batches to partitions, and flushes partitions."""

    def __init__(
        self,
        table: PartitionTable,
        topics: TopicService,
        directory: LogDirectory,
        config: LiveConfig,
        clock: Clock,
        reads: ColdReads,
        offload: Offload,
        flush_wanted: FlushSignal,
        metrics: Metrics,
    ) -> None:
        self._table = table
        self._topics = topics
        self._directory = directory
        self._config = config
        self._clock = clock
        self._reads = reads
        self._offload = offload
        self._flush_wanted = flush_wanted
        self._metrics = metrics

    def missing_topics(self, request: AppendRequest) -> list[str]:
        """Topics of an append that do not exist and that it may create; none if creation is disabled."""
        known = self._directory.registry.topics
        if not request.create or not self._config.current.auto_create_topics_enable:
            return []
        return [item.topic for item in request.partitions if item.topic not in known]

    async def create_missing(self, request: AppendRequest) -> dict[str, SeglogError]:
        """Create topics with the broker's defaults. Returns topic -> error for those that failed, for ``append``."""
        refused: dict[str, SeglogError] = {}
        for name in dict.fromkeys(self.missing_topics(request)):
            try:
                await self._topics.create(CreateTopicRequest(name))
            except TopicExistsError:
                continue  # another connection was first
            except SeglogError as error:
                log.warning("topic_not_created", topic=name[:TOPIC_NAME_MAX], reason=error.message)
                refused[name] = error
        return refused

    def append(
        self, request: AppendRequest, payload: memoryview, refused: Mapping[str, SeglogError] | None = None
    ) -> PendingAppend:
        """Write the batches in ``payload`` in the order of the request, each with its own result; some at once.

        ``refused``: topic -> error, for topics that could not be created. ``payload`` is changed in place. Raises
        InvalidRequestError if the request as a whole is invalid.
        """
        asked = sum(item.size for item in request.partitions)
        if asked != len(payload):
            raise InvalidRequestError(
                f"the batches have {asked} bytes by the request, the payload has {len(payload)}", field="partitions"
            )
        self._table.suggestions.renew()
        pending = PendingAppend(
            self._reads, self._offload, request.ack, self._table.counts_differing(request.partition_counts)
        )
        pending.write(self._write(pending, request, payload, refused or {}))
        return pending

    def _write(
        self, pending: PendingAppend, request: AppendRequest, payload: memoryview, refused: Mapping[str, SeglogError]
    ) -> Writing:
        position = 0
        effort_before = 0
        for item in request.partitions:
            batch = payload[position : position + item.size]
            position += item.size
            if pending.effort - effort_before >= EFFORT_A_TURN:
                effort_before = pending.effort
                yield None
            pending.effort += 1 + item.size // BYTES_AN_EFFORT
            partition: Partition | None = None
            try:
                if request.topic_ids is not None and self._table.is_recreated(request.topic_ids, item.topic):
                    raise self._table.another_topic(item.topic, item.partition, _PRODUCER_OF_ANOTHER)
                partition = self._table.partition(item.topic, item.partition)
                header, now = yield from self._check(partition, batch, pending)
                result, end_offset = self._append_one(partition, batch, header, now, request.ack)
            except UnknownTopicError as error:
                pending.effort += EFFORT_A_TURN // 4  # for suggestions of names
                pending.add(AppendResult(item.topic, item.partition, error=as_result(refused.get(item.topic, error))))
            except SeglogError as error:
                placed = error if partition is None else partition.with_partition(error)
                pending.add(AppendResult(item.topic, item.partition, error=as_result(placed)))
            else:
                if request.ack == "disk":
                    pending.add_waiting(result, partition, end_offset)
                else:
                    pending.add(result)

    def _check(
        self, partition: Partition, batch: memoryview, pending: PendingAppend
    ) -> Generator[RecordCheck | None, SeglogError | None, tuple[BatchHeader, int]]:
        """The header of a valid batch, and the time (ms) of the check."""
        while True:
            config = partition.log.config
            now = self._clock.now_ms()
            header = check_batch(batch, config, now)
            rules = record_rules(config, now)
            if rules is None:
                return header, now
            pending.effort += EFFORT_A_TURN
            if check_small_records(header, batch, rules):
                return header, now
            refusal = yield RecordCheck(batch, rules)
            if refusal is not None:
                raise refusal
            if partition.is_deleted:
                raise UnknownTopicError(f"topic {partition.topic} was deleted", topic=partition.topic)
            if partition.log.config is config:
                return header, self._clock.now_ms()

    def _append_one(
        self, partition: Partition, batch: memoryview, checked: BatchHeader, now: int, ack: Ack
    ) -> tuple[AppendResult, int]:
        config = partition.log.config
        header, append_time = stamp(batch, checked, config, now)
        self._directory.space.check(header.size)
        try:
            appended = partition.log.append(batch, header)
        except StorageError as error:
            if isinstance(error, PartitionReadOnlyError):
                raise
            if isinstance(error, DiskFullError):
                error = self._directory.space.refusal_now(error.message)
            if partition.append_failure is None:  # once, not for each retry of a producer
                log.error(  # noqa: TRY400 - the disk failed, not the program: a traceback says nothing
                    "append_failed", topic=partition.topic, partition=partition.number, reason=error.message
                )
            partition.append_failure = error.message
            partition.note_read_only()
            raise error from error.__cause__
        if appended.duplicate_of is not None:
            # The same reply as the first time. At ack disk it waits too, because the first append may still be waiting.
            self._metrics.duplicates += 1
            is_stamped = config.message_timestamp_type == "LogAppendTime"
            result = AppendResult(
                partition.topic,
                partition.number,
                base_offset=appended.base_offset,
                timestamp=appended.duplicate_of if is_stamped else append_time,
                ack=ack,
                duplicate=True,
                expired_before=expired_before(config, now),
            )
            return result, appended.last_offset + 1
        partition.append_failure = None
        self._metrics.appends[ack] += 1
        self._metrics.append_bytes += header.size
        if appended.rolled is not None:
            partition.note_rolled(str(appended.rolled))
        if partition.log.log_end_offset - partition.log.durable_end_offset >= config.flush_messages:
            self._flush_wanted.set()
        if partition.waiters:
            partition.note_append(header.size)
        result = AppendResult(
            partition.topic,
            partition.number,
            base_offset=appended.base_offset,
            timestamp=append_time,
            ack=ack,
            duplicate=False,
            expired_before=expired_before(config, now),
        )
        return result, appended.last_offset + 1

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
                results.append(FlushResult(item.topic, item.partition, error=as_result(error)))
                continue
            partition.want_durable()  # all before the first wait, so that they share a round
            waits.append((len(results), partition, partition.log.log_end_offset))
            results.append(FlushResult(item.topic, item.partition))
        for number, partition, end_offset in waits:
            try:
                await partition.wait_durable(end_offset)
            except SeglogError as error:
                results[number] = FlushResult(partition.topic, partition.number, error=as_result(error))
            else:
                durable = partition.log.durable_end_offset
                results[number] = FlushResult(partition.topic, partition.number, durable=durable)
        return FlushReply(results)
