"""The broker: the one object that every listener talks to.

It owns all mutable state and lives on one loop, so there are no locks but one: topics are created and deleted one at a
time, because their files are made off the loop. Listeners bring requests and borrow answers; storage is synchronous
underneath. The life of an append and of a fetch is told in ARCHITECTURE.md; this file is where both pass through.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import structlog
import trio

from seglog_broker.api.explain import explain_seek, explain_segments
from seglog_broker.api.index_density import why_index_fills_first
from seglog_broker.api.lag import tell_lag
from seglog_broker.api.suggestions import Suggestions
from seglog_broker.config import BrokerConfig, TopicConfig
from seglog_broker.config.topic_config import TOPIC_NAMES
from seglog_broker.partitions.fetch_purgatory import Waiter, WaitingRoom
from seglog_broker.partitions.fetch_response import FetchAnswer, RecentAnswer
from seglog_broker.partitions.gaps import gaps_to_tell
from seglog_broker.partitions.group_commit import GroupCommit, Round
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.read_only_views import Views
from seglog_broker.partitions.recoveries import Recoveries
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.reloading import ConfigChanges
from seglog_broker.runtime.descriptors import handles_excess_max, handles_max
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.request_memory import RequestMemory
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.storage.directory.load_report import Loading
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.topic_creation import TopicCreation
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filenames import TOPIC_NAME_MAX
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import ColdReadError, RecordsWantedError, TurnWantedError
from seglog_broker.storage.io.os_errors import is_no_room, storage_error, why
from seglog_broker.storage.io.throttle import Pace
from seglog_broker.storage.log.batch_checks import RecordRules, check_batch, check_small_records, record_rules, stamp
from seglog_broker.storage.log.partition_files import empty_directory
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.read_only_view import ReadOnlyView
from seglog_broker.storage.log.recovery_job import RecoveryOutcome
from seglog_broker.storage.log.retention import expired_before
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.log.segment_list import sizes_of
from seglog_broker.storage.segment.log_slice import LogSlice
from seglog_broker.tasks.checkpoint import Unwritten, write_checkpoints, write_log_starts
from seglog_broker.tasks.deletion import Deletion, Deletions
from seglog_broker.tasks.recovery import tell_recovered
from seglog_broker.tasks.retention import RetentionSchedule, shorten
from seglog_broker.version import VERSION
from seglog_protocol.errors import (
    CorruptRecordError,
    DiskFullError,
    InconsistentTopicIdError,
    InvalidConfigError,
    InvalidRequestError,
    OutOfResourcesError,
    PartitionOfflineError,
    PartitionReadOnlyError,
    PartitionRecoveringError,
    PolicyViolationError,
    RequestCancelledError,
    SeglogError,
    StorageError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from seglog_protocol.frames import HEADER_BYTES_MAX, encode_value
from seglog_protocol.messages import (
    API_VERSIONS,
    PROTOCOL_NAME,
    Ack,
    AlterTopicReply,
    AlterTopicRequest,
    AppendReply,
    AppendRequest,
    AppendResult,
    ConfigEntry,
    ConfigValue,
    CreateTopicReply,
    CreateTopicRequest,
    DeleteTopicReply,
    DeleteTopicRequest,
    ExplainReply,
    ExplainRequest,
    ExplainSegmentsReply,
    ExplainSegmentsRequest,
    FetchPartition,
    FetchReply,
    FetchRequest,
    FetchResult,
    FlushReply,
    FlushRequest,
    FlushResult,
    HelloReply,
    InitProducerReply,
    InitProducerRequest,
    LagRequest,
    Message,
    MetricsReply,
    MetricsRequest,
    OffsetsPartition,
    OffsetsReply,
    OffsetsRequest,
    OffsetsResult,
    Request,
    TopicDescription,
    TopicsReply,
    TopicsRequest,
    TruncatePartition,
    TruncateReply,
    TruncateRequest,
    TruncateResult,
)
from seglog_protocol.record_batch import BatchHeader

log = structlog.get_logger()

_PARTITIONS_PER_FETCH_MAX: Final = 10_000

RESULTS_MAX: Final = 10_000
"""Partitions that the reply to one request is about, whatever the request."""

PROBLEMS_MAX: Final = 200
"""Problems that a greeting tells, which every connection begins with; the log has all."""

PROBLEM_CHARACTERS_MAX: Final = 1_000
"""Of one of them, so that a greeting stays far below the largest header."""

DESCRIBED_MAX: Final = 500
"""Topics that one reply describes with every value of their configuration; there is more for who asks on."""

_CONSUMER_OF_ANOTHER: Final = (
    "positions in the former topic mean nothing in this one; start the consumer again: at the earliest, at the latest, "
    "or at a moment"
)
_PRODUCER_OF_ANOTHER: Final = "the records were meant for the former topic; to send to this one make a new producer"

COLD_READS_MAX: Final = 1_000
"""Reads from the disk that one request may wait for, one after the other, before it is served on the loop anyway."""

IN_LINE_BYTES: Final = 4 * 1024 * 1024
"""Read before the broker serves, after a stop that was not clean: a few hundredths of a second, and where every batch
holds one small record about as long as a process takes to start."""

EFFORT_A_TURN: Final = 64
"""What one request does on the loop before others get their turn, in partitions looked at, or in what costs as much."""

SEARCHES_MAX: Final = 500
"""Large batches that one request has searched for timestamps, which their headers promised and they have not."""

FOUND_MAX: Final = 10_000
"""Look-ups by timestamp in large batches whose answers are kept, for who asks again."""

LOGS_A_TURN: Final = 16
"""Logs of new partitions that are opened before others get their turn."""

TRUNCATIONS_A_TURN: Final = 8
"""Partitions whose log start is moved before others get their turn: files are looked at for each."""

SEGMENTS_AN_EFFORT: Final = 200
"""Segments passed over by a look-up by timestamp, which cost as much as everything else about a partition."""

BYTES_AN_EFFORT: Final = 64 * 1024
"""Bytes of a batch whose checksum and writing cost as much as everything else about a partition."""

REMOVAL_SECONDS_MAX: Final = 5.0
"""How long a request that makes room on a full disk waits until the files are gone."""

SIZES_AT_A_TIME: Final = 500
"""Files that are asked for their sizes in one go, off the loop."""

AnswerT = TypeVar("AnswerT")


class RecordCheck(NamedTuple):
    """Records that take longer to look at than the loop has."""

    batch: memoryview
    rules: RecordRules


Steps = Generator[ColdReadError | RecordsWantedError | None, None, AnswerT]
"""An answer in the making. It stops for others to have their turn (None), or for what its error asks for."""

Writing = Generator[RecordCheck | None, SeglogError | None, None]
"""An append being written. It stops for others to have their turn (None), or for records to be looked at: what is sent
in then says what is wrong with them."""


class PendingAppend:
    """An append, written as far as that goes at once: ``write_rest`` unless it ``is_written``.

    Then ``reply`` is there when nothing is left to wait for, else ``wait`` gives it.
    """

    __slots__ = (
        "_broker",
        "_counts",
        "_results",
        "_round",
        "_stopped_for",
        "_waits",
        "_writing",
        "ack",
        "effort",
        "is_written",
    )

    def __init__(self, broker: "Broker", ack: Ack, counts: dict[str, int] | None) -> None:
        self.ack = ack
        self._counts = counts  # of partitions, where the sender counts another number
        self.effort = 0
        self.is_written = False
        self._broker = broker
        self._round: Round | None = None  # of the group commit, that syncs all of them
        self._results: list[AppendResult] = []
        self._waits: list[tuple[int, Partition, int]] = []  # result's number, partition, offset that must be durable
        self._writing: Writing | None = None
        self._stopped_for: RecordCheck | None = None

    def add(self, result: AppendResult) -> None:
        """What became of the next batch; nothing has to be waited for."""
        self._results.append(result)

    def add_waiting(self, result: AppendResult, partition: Partition, end_offset: int) -> None:
        """What became of the next batch, when every record below ``end_offset`` is durable."""
        self._waits.append((len(self._results), partition, end_offset))
        self._round = partition.want_durable()  # now: the leader of the next round takes it along
        self._results.append(result)

    def write(self, writing: Writing) -> None:
        """Write as much as goes at once."""
        self._writing = writing
        self._go_on(None)

    async def write_rest(self) -> None:
        """Write the others, in turns with everybody else. Cancelled, it leaves what is written."""
        while not self.is_written:
            refusal: SeglogError | None = None
            check = self._stopped_for
            if check is None:
                await self._broker.turn()
            else:
                try:
                    await self._broker.offload.check_records(check.batch, check.rules)
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
        """The answer, if every partition has reached what was asked for, or failed."""
        for _, partition, offset in self._waits:
            if partition.log.durable_end_offset < offset:
                return None
        return AppendReply(self._results, self._counts)

    def listen(self, listener: Callable[[], None]) -> bool:
        """Have ``listener`` called when the reply should be there; False: nobody has it come, ``wait`` instead."""
        return self._round is not None and self._round.listen(listener)

    async def wait(self) -> AppendReply:
        """Return when every partition has reached what was asked for, or failed. The batches stay if cancelled."""
        while self._waits:
            number, partition, offset = self._waits[-1]
            try:
                await partition.wait_durable(offset)
            except SeglogError as error:
                self._results[number] = AppendResult(partition.topic, partition.number, error=error)
            self._waits.pop()
        return AppendReply(self._results, self._counts)


class Broker:
    """Topics, their partitions, and what can be asked of them."""

    def __init__(
        self, config: BrokerConfig, directory: LogDirectory, fs: FileSystem, clock: Clock, offload: Offload
    ) -> None:
        self.config = config
        self.clock = clock
        self.offload = offload
        self.fs = fs
        self.directory = directory
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.metrics = Metrics()
        self.commits = GroupCommit(fs, offload, self.metrics, lambda: directory.is_in_place)
        self._started_ms = clock.now_ms()
        self.waiting_room = WaitingRoom()
        self._topics_lock = trio.Lock()
        self.cleaning_pace = Pace()
        self.dry_run_turn = trio.Lock()  # one dry run of compaction at a time
        self._turns = trio.Lock()
        self._waiters: set[Waiter] = set()  # of all partitions
        self._suggestions = Suggestions()
        self._producer_ids_lock = trio.Lock()
        self.recoveries = Recoveries(directory.recovering)
        self.views = Views()
        self.deletions = Deletions()
        self.transfers = Transfers()
        self.request_memory = RequestMemory(config.seglog_request_memory_max, config.socket_request_max_bytes)
        self.retention_schedule = RetentionSchedule(
            interval_ms=config.log_retention_check_interval_ms, first_ms=config.log_initial_task_delay_ms
        )
        self.config_changes = ConfigChanges()
        self.flush_wanted = trio.Event()  # some partition has flush.messages records to be synced
        self.unwritten = Unwritten()
        self.checkpoint_lock = trio.Lock()  # the files are written off the loop, one writer at a time
        self.metrics.partitions_recovered = sum(o.recovery is not None for o in directory.report.opened.values())
        self.serve_logs(directory.logs)

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        fs: FileSystem,
        clock: Clock,
        offload: Offload,
        loading: Loading = lambda _done, _total: None,
    ) -> "Broker":
        """Lock the log directory and load what is in it, telling ``loading`` of each partition.

        Raises LogDirectoryError when it cannot be used. A partition that cannot be opened is offline, and named.
        """
        directory = LogDirectory(fs, clock, config, config.log_dir)
        directory.handles.limit_to(handles_max(config), handles_excess_max(config))
        report = directory.open(in_line_bytes=IN_LINE_BYTES, loading=loading)
        if report.adopted:
            log.warning("kafka_directory_adopted", topics=report.adopted)
        if report.remade:
            log.warning("topic_registry_remade", topics=report.remade)
        if report.kafka_signs:
            log.warning("kafka_had_the_directory", signs=report.kafka_signs)
        for change in report.kafka_changes:
            log.warning("changed_by_kafka", change=change)
        for problem in report.problems:
            log.warning("log_directory_problem", problem=problem)
        for (topic, partition), reason in report.offline.items():
            log.error("partition_offline", topic=topic, partition=partition, reason=reason)
        for key, opened in report.opened.items():
            if opened.recovery is not None:
                tell_recovered(key, RecoveryOutcome.of(directory.logs[key].log_end_offset, opened))
            elif opened.rebuilt_indexes:
                log.info("indexes_rebuilt", topic=key[0], partition=key[1], segments=opened.rebuilt_indexes)
        return cls(config, directory, fs, clock, offload)

    def close(self) -> list[str]:
        """Flush, checkpoints, clean marker, unlock; after every listener and ``run`` have ended.

        Returns what keeps the next start from believing the directory blindly; it is logged. Where something else is in
        the directory's place nothing is written.
        """
        self.views.close()
        if self.directory.is_in_place:
            problems = self.directory.close()
        else:
            self.directory.abandon()
            problems = [f"{self.directory.path} was removed or replaced"]
        for problem in problems:
            log.error("stop_not_clean", problem=problem)
        return problems

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take another configuration: in force for all when this returns. What needs a restart must not differ."""
        self.config = config
        self.directory.reconfigure(config)
        self.retention_schedule.reconfigure(config.log_retention_check_interval_ms)
        self.config_changes.announce()

    async def turn(self) -> None:
        """Return when a request that has done much may do some more: one of all such requests in a turn of the loop."""
        async with self._turns:
            await trio.lowlevel.checkpoint()

    # --- hello --------------------------------------------------------------------------------------------------------

    def hello(self) -> HelloReply:
        """Who answers, what it speaks, and what is wrong with it."""
        offline = self.directory.report.offline
        problems = [f"{topic}-{partition} is offline: {reason}" for (topic, partition), reason in offline.items()]
        problems += self.directory.report.problems
        full = self.directory.space.problem()
        problems += [] if full is None else [full]
        problems += [
            f"{recovery.topic}-{recovery.partition} is read-only until there is room on the disk, which its recovery "
            f"needs ({recovery.lacked_room})"
            for recovery in self.recoveries.without_room
        ]
        problems += [problem for partition in self.partitions.values() for problem in partition.what_is_wrong()]
        return HelloReply(
            protocol=PROTOCOL_NAME,
            broker=f"seglogd/{VERSION}",
            apis=API_VERSIONS,
            limits={
                "frame_bytes_max": self.request_memory.request_bytes_max,
                "header_bytes_max": HEADER_BYTES_MAX,
                "fetch_bytes_max": self.config.fetch_max_bytes,
                "fetch_wait_ms_max": self.config.seglog_fetch_max_wait_ms_max,
            },
            cluster_id=self.directory.cluster_id,
            uptime_ms=max(0, self.clock.now_ms() - self._started_ms),
            partitions=len(self.partitions) + len(offline) + len(self.recoveries),
            auto_create_topics=self.config.auto_create_topics_enable,
            problems=_told(problems),
            recovery=self.recoveries.told(self.views),
            log_dir=str(Path(self.directory.path).absolute()),
            offline=len(offline),
            read_only_until_room=len(self.views) or None,
        )

    async def answer(self, request: Request) -> tuple[Message, bytes]:
        """The reply, and its payload, to any request but hello, append and fetch."""
        self._suggestions.renew()
        match request:
            case OffsetsRequest():
                return await self.offsets(request), b""
            case TopicsRequest():
                return await self.topics(request)
            case CreateTopicRequest():
                return await self.create_topic(request), b""
            case AlterTopicRequest():
                return await self.alter_topic(request), b""
            case DeleteTopicRequest():
                return await self.delete_topic(request), b""
            case TruncateRequest():
                return await self.truncate(request), b""
            case ExplainRequest():
                return await self.warmed(lambda: self.explain(request)), b""
            case ExplainSegmentsRequest():
                return await self.explain_segments(request)
            case LagRequest():
                return await tell_lag(self, request), b""
            case MetricsRequest():
                return self.read_metrics(), b""
            case InitProducerRequest():
                return await self.init_producer(), b""
            case FlushRequest():
                return await self.flush(request), b""
        raise NotImplementedError(request.api)

    # --- append -------------------------------------------------------------------------------------------------------

    def missing_topics(self, request: AppendRequest) -> list[str]:
        """Topics that an append names, that do not exist, and that it may create; none if that is switched off."""
        known = self.directory.registry.topics
        if not request.create or not self.config.auto_create_topics_enable:
            return []
        return [item.topic for item in request.partitions if item.topic not in known]

    async def create_missing(self, request: AppendRequest) -> dict[str, SeglogError]:
        """Create them with the broker's defaults; those that could not be, and why, for ``append`` to answer."""
        refused: dict[str, SeglogError] = {}
        for name in dict.fromkeys(self.missing_topics(request)):
            try:
                await self.create_topic(CreateTopicRequest(name))
            except TopicExistsError:
                continue  # another connection was first
            except SeglogError as error:
                log.warning("topic_not_created", topic=name[:TOPIC_NAME_MAX], reason=error.message)
                refused[name] = error
        return refused

    def append(
        self, request: AppendRequest, payload: memoryview, refused: Mapping[str, SeglogError] | None = None
    ) -> PendingAppend:
        """Write the batches in ``payload``, in the order asked, each judged by itself; the first ones at once.

        ``refused`` are topics that could not be created, and why. ``payload`` is changed in place. Raises
        InvalidRequestError when the request as a whole makes no sense.
        """
        asked = sum(item.size for item in request.partitions)
        if asked != len(payload):
            raise InvalidRequestError(
                f"the batches are announced with {asked} bytes, the payload has {len(payload)}", field="partitions"
            )
        self._suggestions.renew()
        pending = PendingAppend(self, request.ack, self._counted_otherwise(request.partition_counts))
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
                if self._made_again(request.topic_ids, item.topic):
                    raise self._another_topic(item.topic, item.partition, _PRODUCER_OF_ANOTHER)
                partition = self._partition(item.topic, item.partition)
                header, now = yield from self._check(partition, batch, pending)
                result, end_offset = self._append_one(partition, batch, header, now, request.ack)
            except UnknownTopicError as error:
                pending.effort += EFFORT_A_TURN // 4  # for what is suggested
                pending.add(AppendResult(item.topic, item.partition, error=refused.get(item.topic, error)))
            except SeglogError as error:
                placed = error if partition is None else partition.placed(error)
                pending.add(AppendResult(item.topic, item.partition, error=placed))
            else:
                if request.ack == "disk":
                    pending.add_waiting(result, partition, end_offset)
                else:
                    pending.add(result)

    def _check(
        self, partition: Partition, batch: memoryview, pending: PendingAppend
    ) -> Generator[RecordCheck | None, SeglogError | None, tuple[BatchHeader, int]]:
        """The header of a batch that may be appended, and the time (ms) at which that was found."""
        while True:
            config = partition.log.config
            now = self.clock.now_ms()
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
                return header, self.clock.now_ms()

    def _append_one(
        self, partition: Partition, batch: memoryview, checked: BatchHeader, now: int, ack: Ack
    ) -> tuple[AppendResult, int]:
        config = partition.log.config
        header, append_time = stamp(batch, checked, config, now)
        self.directory.space.check(header.size)
        try:
            appended = partition.log.append(batch, header)
        except StorageError as error:
            if isinstance(error, PartitionReadOnlyError):
                raise
            if isinstance(error, DiskFullError):
                error = self._no_room(error.message)
            if partition.append_failure is None:  # once, not for each of the producers that try again
                log.error(  # noqa: TRY400 - the disk failed, not the program: a traceback tells nothing
                    "append_failed", topic=partition.topic, partition=partition.number, reason=error.message
                )
            partition.append_failure = error.message
            partition.note_read_only()
            raise error from error.__cause__
        if appended.duplicate_of is not None:
            # The same answer once more. At ack disk it waits as the first one did: that one may still be waiting.
            self.metrics.duplicates += 1
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
        self.metrics.appends[ack] += 1
        self.metrics.append_bytes += header.size
        if appended.rolled is not None:
            partition.note_rolled(str(appended.rolled))
        if partition.log.log_end_offset - partition.log.durable_end_offset >= config.flush_messages:
            self.flush_wanted.set()
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
        """Bring what is in these partitions to the disk, as an append at ack ``disk`` does with what came before it."""
        results: list[FlushResult] = []
        waits: list[tuple[int, Partition, int]] = []
        for number, item in enumerate(request.partitions):
            if number % EFFORT_A_TURN == EFFORT_A_TURN - 1:
                await self.turn()
            try:
                partition = self._partition(item.topic, item.partition)
            except SeglogError as error:
                results.append(FlushResult(item.topic, item.partition, error=error))
                continue
            partition.want_durable()  # all of them, before any is waited for: one round is enough
            waits.append((len(results), partition, partition.log.log_end_offset))
            results.append(FlushResult(item.topic, item.partition))
        for number, partition, end_offset in waits:
            try:
                await partition.wait_durable(end_offset)
            except SeglogError as error:
                results[number] = FlushResult(partition.topic, partition.number, error=error)
            else:
                durable = partition.log.durable_end_offset
                results[number] = FlushResult(partition.topic, partition.number, durable=durable)
        return FlushReply(results)

    async def init_producer(self) -> InitProducerReply:
        """An id for a new idempotent producer.

        StorageError, to be tried again, when none could be made sure of; PartitionRecoveringError for as long as nobody
        knows which were given.
        """
        ids = self.directory.producer_ids
        if self.recoveries and not ids.is_recorded:
            raise PartitionRecoveringError(
                "which producer ids have been given is not known before every log has been read: try again"
            )
        async with self._producer_ids_lock:
            producer_id = ids.take()
            while producer_id is None:
                block = ids.next_block()
                with trio.CancelScope(shield=True):  # two of them must not meet in one temporary file
                    try:
                        await self.offload.maintenance(block.run)
                    except OSError as error:
                        if is_no_room(error):
                            raise self._no_room("no producer id could be given") from error
                        raise storage_error(f"no producer id could be given: {why(error)}; ask again", error) from error
                ids.add(block)
                producer_id = ids.take()
        return InitProducerReply(producer_id, 0)

    def _no_room(self, what: str) -> DiskFullError:
        """The error that says how full the disk is now; ``what`` begins its sentence."""
        with suppress(OSError):
            self.directory.space.look()
        return self.directory.space.refusal(what)

    # --- fetch --------------------------------------------------------------------------------------------------------

    def fetch_now(self, request: FetchRequest, waiter: Waiter | None = None) -> FetchAnswer | None:
        """The answer if it need not wait, for records or for the disk; else None. ``waiter`` has waited already."""
        is_over = request.max_wait_ms == 0 or (waiter is not None and trio.current_time() >= waiter.deadline)
        if len(request.partitions) > EFFORT_A_TURN or (not is_over and self._is_at_the_end(request)):
            return None
        answer = self._collect_warm(request)
        if answer is None or is_over or self._is_complete(request, answer):
            return answer
        answer.close()
        return None

    def wait_for(self, request: FetchRequest, waiter: Waiter) -> bool:
        """Have ``waiter`` look again when there may be an answer, at the latest when ``max_wait_ms`` are over.

        False, and nothing done, where that takes a task: see ``fetch``.
        """
        if not (self.waiting_room.is_open and self._is_at_the_end(request)):
            return False
        self.metrics.fetches_waited += 1
        waiter.deadline = self._deadline(request)
        waiter.bytes_wanted = request.min_bytes
        waiter.arrive(self._waiting_places(request))
        self.waiting_room.seat(waiter)
        return True

    async def fetch(self, request: FetchRequest, waiter: Waiter | None = None) -> FetchAnswer:
        """The answer, as soon as ``min_bytes``, an error or just a gap are there, or when ``max_wait_ms`` are over.

        With ``waiter`` the asker can end the waiting: then RequestCancelledError is raised. If it has waited already,
        that counts.
        """
        waiter = waiter or Waiter()
        waiter.deadline = min(waiter.deadline, self._deadline(request))
        while True:
            found = 0
            if not self._is_at_the_end(request) or trio.current_time() >= waiter.deadline:
                answer = await self._in_turns(self._collect(request))
                found = answer.size
                if self._is_complete(request, answer) or trio.current_time() >= waiter.deadline:
                    return answer
                answer.close()
            self.metrics.fetches_waited += 1
            waiter.bytes_wanted = request.min_bytes - found
            waiter.arrive(self._waiting_places(request))
            try:
                with trio.CancelScope(deadline=waiter.deadline):
                    await waiter.wait()
            finally:
                waiter.leave()
            if waiter.is_ended:
                raise RequestCancelledError("nobody waits for the fetch any more")

    def _deadline(self, request: FetchRequest) -> float:
        return trio.current_time() + min(request.max_wait_ms, self.config.seglog_fetch_max_wait_ms_max) / 1000

    def _waiting_places(self, request: FetchRequest) -> list[set[Waiter]]:
        partitions = (self._served(item.topic, item.partition) for item in request.partitions)
        return [self._waiters, *(partition.waiters for partition in partitions if partition is not None)]

    def _collect_warm(self, request: FetchRequest) -> FetchAnswer | None:
        """What is there now of a small request, or None when that would wait for the disk."""
        collecting = self._collect(request)
        try:
            with self.directory.handles.only_warm:
                next(collecting)
        except StopIteration as done:
            answer: FetchAnswer = done.value
            return answer
        collecting.close()
        return None

    async def _in_turns(self, steps: Steps[AnswerT]) -> AnswerT:
        """What ``steps`` return: each in a turn, and what would wait for the disk is read in a thread first."""
        only_warm = self.directory.handles.only_warm
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
                    self.metrics.cold_reads += 1
                    await self._read_in(cold)
        except StopIteration as done:
            answer: AnswerT = done.value
            return answer
        finally:
            steps.close()

    async def warmed(self, ask: Callable[[], AnswerT]) -> AnswerT:
        """What ``ask`` returns; where it would wait for the disk, that happens in a thread first and it is asked again.

        So it is, after others had their turn, where it has walked far. ``ask`` must have changed nothing when it raises
        ColdReadError.
        """
        only_warm = self.directory.handles.only_warm
        last: tuple[str, int] | None = None
        reads = searches = 0
        may_wait = False
        while True:
            try:
                with only_warm.waiting() if may_wait else only_warm:
                    return ask()
            except TurnWantedError:
                await self.turn()
            except ColdReadError as cold:
                if (cold.path, cold.position) == last or reads == COLD_READS_MAX:
                    may_wait = True  # this system cannot tell what is in memory, or has none to spare
                    continue
                last = (cold.path, cold.position)
                reads += 1
                self.metrics.cold_reads += 1
                await self._read_in(cold)
            except RecordsWantedError as wanted:
                searches += 1
                await self._find_record(wanted, searches)

    async def _find_record(self, wanted: RecordsWantedError, searches: int) -> None:
        """Have a process go through the records of a batch that a look-up by timestamp led to.

        Raises OutOfResourcesError, also where it is one of too many for one request.
        """
        if searches > SEARCHES_MAX:
            raise OutOfResourcesError(
                f"{SEARCHES_MAX} batches have no record at the timestamp that their headers promise; ask for a later"
            )
        found = self.directory.handles.only_warm.found
        try:
            with self.directory.handles.lease(wanted.path) as file:
                batch = await self.offload.cold_read(file.pread, wanted.size, wanted.position)
        except OSError:
            return  # the next request meets the error too, and reports it
        *_, timestamp, offset_min = wanted.question
        answer = await self.offload.find_record(batch, timestamp, offset_min)
        if len(found) >= FOUND_MAX:
            found.clear()
        found[wanted.question] = answer

    async def _read_in(self, cold: ColdReadError) -> None:
        try:
            with self.directory.handles.lease(cold.path) as file:
                await self.offload.cold_read(file.pread, cold.size, cold.position)
        except OSError:
            return  # the next request meets the error too, and reports it

    def _is_at_the_end(self, request: FetchRequest) -> bool:
        """Whether it waits for records without a doubt, told by offsets alone: so it is with nearly all that wait."""
        if not request.min_bytes or not request.max_bytes or len(request.partitions) > _PARTITIONS_PER_FETCH_MAX:
            return False
        for item in request.partitions:
            partition = self._served(item.topic, item.partition)
            if partition is None or item.offset != partition.log.log_end_offset or item.timestamp is not None:
                return False
        if any(self._made_again(request.topic_ids, name) for name in request.topic_ids or ()):
            return False
        return self._counted_otherwise(request.partition_counts) is None

    def _made_again(self, topic_ids: Mapping[str, str] | None, name: str) -> bool:
        """Whether the topic of that name is not the one a request means, but was made after that was deleted."""
        topic = None if topic_ids is None else self.directory.registry.topics.get(name)
        return topic is not None and topic_ids is not None and topic_ids.get(name, topic.id) != topic.id

    def _counted_otherwise(self, partition_counts: Mapping[str, int] | None) -> dict[str, int] | None:
        """By name, the number of partitions of the topics of which a request counts another; None when there are none.

        None, too, for a topic that is not there.
        """
        if partition_counts is None:
            return None
        known = self.directory.registry.topics
        counts = {
            name: known[name].partitions
            for name, count in partition_counts.items()
            if name in known and known[name].partitions != count
        }
        return counts or None

    @staticmethod
    def _is_complete(request: FetchRequest, answer: FetchAnswer) -> bool:
        if answer.reply.partition_counts is not None:
            return True
        return answer.size >= min(request.min_bytes, request.max_bytes) or any(
            result.error is not None or (result.gaps is not None and not result.size)
            for result in answer.reply.partitions
        )

    def _collect(self, request: FetchRequest) -> Steps[FetchAnswer]:
        """What is there now, at most ``max_bytes`` of it, but at least one batch where there is any.

        Stops for others to have their turn (None), and at a read that would wait for the disk: that partition is tried
        again.
        """
        self._suggestions.renew()
        if len(request.partitions) > _PARTITIONS_PER_FETCH_MAX:
            raise InvalidRequestError(
                f"at most {_PARTITIONS_PER_FETCH_MAX} partitions in one fetch", field="partitions"
            )
        made_again = {name for name in request.topic_ids or () if self._made_again(request.topic_ids, name)}
        counts = self._counted_otherwise(request.partition_counts)
        alone = None
        if len(request.partitions) == 1 and not made_again and counts is None:
            item = request.partitions[0]
            alone = self.partitions.get((item.topic, item.partition))
            again = None if alone is None or alone.recent_answer is None else alone.recent_answer.again(request)
            if again is not None:
                return again
        left = min(request.max_bytes, self.config.fetch_max_bytes)
        results: list[FetchResult] = []
        slices: list[LogSlice] = []
        effort = 0
        try:
            for number, item in enumerate(request.partitions):
                effort += self._effort_of(item.topic, item.partition, item.timestamp)
                if effort >= EFFORT_A_TURN or (number and item.verify):
                    effort = 0
                    yield None
                if item.timestamp is not None:
                    yield from self._bring_in_times(item.topic, item.partition)
                result: FetchResult | None = None
                found: LogSlice | None = None
                while result is None:
                    try:
                        if item.topic in made_again:
                            raise self._another_topic(item.topic, item.partition, _CONSUMER_OF_ANOTHER)
                        result, found = self._read_one(item, min(left, item.max_bytes), min_one=not slices)
                    except (ColdReadError, RecordsWantedError) as wanted:
                        yield wanted
                    except TurnWantedError:
                        yield None
                    except SeglogError as error:
                        result = self._not_read(item, error)
                results.append(result)
                if found is not None:
                    slices.append(found)
                    left = max(0, left - found.size)
        except BaseException:
            for slice_ in slices:
                slice_.release()
            raise
        answer = FetchAnswer(FetchReply(results, counts), slices)
        if alone is not None:
            alone.recent_answer = RecentAnswer.of(alone.log, request, answer)
        return answer

    def _not_read(self, item: FetchPartition, error: SeglogError) -> FetchResult:
        partition = self.partitions.get((item.topic, item.partition))
        placed = partition.placed(error) if partition is not None else error
        if isinstance(error, CorruptRecordError):
            log.warning("damage_read", **{k: v for k, v in placed.facts.items() if k != "retriable"})
        return FetchResult(item.topic, item.partition, error=placed)

    def _another_topic(self, topic: str, partition: int, what_now: str) -> InconsistentTopicIdError:
        return InconsistentTopicIdError(
            f"topic {topic} was deleted and made again, and {what_now}",
            topic=topic,
            partition=partition,
            topic_id=self._topic(topic).id,
        )

    def _read_one(self, item: FetchPartition, bytes_max: int, *, min_one: bool) -> tuple[FetchResult, LogSlice | None]:
        partition = self._readable(item.topic, item.partition)
        partition_log = partition.log
        if (item.offset is None) == (item.timestamp is None):
            raise InvalidRequestError("a fetch starts either at an offset or at a timestamp", field="offset")
        if item.timestamp is not None:
            moment = partition_log.find_timestamp(item.timestamp)
            offset = partition_log.log_end_offset if moment is None else moment.offset
        else:
            assert item.offset is not None
            offset = item.offset
        found = partition_log.read(offset, bytes_max, min_one=min_one, verify=item.verify is True)
        gaps, compacted_before = gaps_to_tell(partition_log, offset, found, min_one=min_one)
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
        )
        return result, found

    # --- offsets ------------------------------------------------------------------------------------------------------

    async def offsets(self, request: OffsetsRequest) -> OffsetsReply:
        """The ends of partitions, and where a moment lies in them.

        Raises InvalidRequestError where that is more than fits a reply: whole topics may be named, again and again.
        """
        results: list[OffsetsResult] = []
        topic_ids: dict[str, str] = {}
        effort = 0
        for item in request.partitions:
            try:
                topic = self._topic(item.topic)
            except SeglogError as error:
                results.append(OffsetsResult(item.topic, item.partition, error=error))
                if len(results) % EFFORT_A_TURN == EFFORT_A_TURN - 1:
                    await self.turn()
                continue
            topic_ids[topic.name] = topic.id
            wanted = range(topic.partitions) if item.partition is None else (item.partition,)
            if len(results) + len(wanted) > RESULTS_MAX:
                raise InvalidRequestError(
                    f"the offsets of more than {RESULTS_MAX} partitions are asked for: ask in several requests",
                    field="partitions",
                )
            for number in wanted:
                effort += self._effort_of(topic.name, number, item.timestamp)
                if effort >= EFFORT_A_TURN:
                    effort = 0
                    await self.turn()
                if item.timestamp is not None:
                    await self._in_turns(self._bring_in_times(item.topic, number))
                results.append(await self.warmed(partial(self._offsets_of, item, number)))
        return OffsetsReply(results, topic_ids)

    def _effort_of(self, topic: str, number: int, timestamp: int | None) -> int:
        """Of a look at a partition; one by timestamp passes over segments one by one."""
        partition = None if timestamp is None else self._served(topic, number)
        return 1 if partition is None else 1 + len(partition.log.segments) // SEGMENTS_AN_EFFORT

    def _bring_in_times(self, topic: str, number: int) -> Steps[None]:
        """Have the largest timestamps of all segments in memory, some of them a turn: a look-up asks for each."""
        partition = self._served(topic, number)
        if partition is None:
            return
        segments = partition.log.segments
        for done, base in enumerate(segments.bases_of_unknown_time, start=1):
            if done % EFFORT_A_TURN == 0:
                yield None
            segment = segments.at(base)
            while segment is not None and not segment.is_time_known:  # else it is gone meanwhile, or known
                try:
                    segment.find_max_timestamp()
                except ColdReadError as cold:
                    yield cold
                except TurnWantedError:
                    yield None
                except (OSError, SeglogError):
                    return  # the look-up meets it, too, and says so; or the segment is gone

    def _offsets_of(self, item: OffsetsPartition, number: int) -> OffsetsResult:
        try:
            partition_log = self._readable(item.topic, number).log
            moment = None if item.timestamp is None else partition_log.find_timestamp(item.timestamp)
        except SeglogError as error:
            return OffsetsResult(item.topic, number, error=error)
        return OffsetsResult(
            item.topic,
            number,
            earliest=partition_log.log_start_offset,
            latest=partition_log.log_end_offset,
            durable=partition_log.durable_end_offset,
            leader_epoch=partition_log.leader_epoch,
            offset=None if moment is None else moment.offset,
            timestamp=None if moment is None else moment.timestamp,
        )

    # --- topics -------------------------------------------------------------------------------------------------------

    async def topics(self, request: TopicsRequest) -> tuple[TopicsReply, bytes]:
        """A page of topics, and its descriptions as the payload, a msgpack list."""
        known = self.directory.registry.topics
        unknown: list[SeglogError] = []
        if request.names is not None:
            for name in request.names:
                if name not in known:
                    unknown.append(self._unknown_topic(name))
                    if len(unknown) % EFFORT_A_TURN == 0:
                        await self.turn()
            names = sorted({name for name in request.names if name in known and name > request.after})
        else:
            names = sorted(name for name in known if name > request.after)
        page = names[: min(request.limit, DESCRIBED_MAX) if request.config else request.limit]
        described = []
        effort = 0
        for name in page:
            topic = known.get(name)
            if topic is None:
                continue  # deleted meanwhile
            effort += EFFORT_A_TURN // 4 if request.config else 1
            effort += topic.partitions  # of which some have thousands of segments
            if effort >= EFFORT_A_TURN:
                effort = 0
                await self.turn()
            await self.learn_sizes([partition.log for partition in self._partitions_of(topic)])
            if known.get(name) is topic:
                described.append(self._describe(topic, whole=request.config).to_wire())
        return TopicsReply(more=len(names) > len(page), unknown=unknown), encode_value(described)

    async def learn_sizes(self, logs: Iterable[PartitionLog]) -> None:
        """Find out, off the loop, what ``PartitionLog.size`` will ask: a log may have thousands of files."""
        for partition_log in logs:
            while paths := partition_log.segments.paths_of_unknown_size(SIZES_AT_A_TIME):
                try:
                    sizes = await self.offload.maintenance(sizes_of, self.fs, paths)
                except OSError:
                    return  # a request for the size meets the error too, and reports it
                partition_log.segments.note_sizes(sizes)
                if len(sizes) < len(paths):
                    return  # likewise

    def _partitions_of(self, topic: Topic) -> list[Partition]:
        """Those in service, be it for reading only."""
        found = (self._served(topic.name, number) for number in range(topic.partitions))
        return [partition for partition in found if partition is not None]

    def _describe(self, topic: Topic, *, whole: bool) -> TopicDescription:
        config = self._config_of(topic)
        logs = [partition.log for partition in self._partitions_of(topic)]
        entries = None
        if whole:
            entries = {
                entry.key: ConfigEntry(entry.value, str(entry.origin.kind), entry.origin.where, entry.shortfall)
                for entry in config.describe()
            }
        return TopicDescription(
            topic.name,
            topic.id,
            topic.partitions,
            config.max_message_bytes,
            config.segment_bytes,
            segments=sum(len(partition_log.segments) for partition_log in logs),
            size=sum(partition_log.size for partition_log in logs),
            config=entries,
            notes=topic.notes,
        )

    def _config_of(self, topic: Topic) -> TopicConfig:
        for number in range(topic.partitions):
            partition = self.partitions.get((topic.name, number))
            if partition is not None:
                return partition.log.config
        return self.directory.config_of(topic)

    async def create_topic(self, request: CreateTopicRequest) -> CreateTopicReply:
        """Create a topic; returns when it survives a power cut."""
        config, warnings = self.config.validate_topic_config(request.config)
        async with self._topics_lock:
            count = self.config.num_partitions if request.partitions is None else request.partitions
            creation = self.directory.plan_topic(request.topic, count, config)
            self.directory.space.check(0)
            if self.directory.has_stale_checkpoints:
                failure = await write_checkpoints(self)
                if failure is not None:
                    raise storage_error(f"topic {request.topic} could not be created: {why(failure)}", failure)
                self.directory.note_checkpoints_written()
            topic = await self._make(creation, partial(self.directory.finish_topic, creation))
            self._serve_partitions(creation)
        log.info("topic_created", topic=topic.name, partitions=topic.partitions, config=topic.config)
        dense = why_index_fills_first(self._config_of(topic))
        return CreateTopicReply(topic.name, topic.id, topic.partitions, [*warnings, *([dense] if dense else [])])

    async def alter_topic(self, request: AlterTopicRequest) -> AlterTopicReply:
        """Change a topic's configuration and add partitions: in force, and safe from a power cut, when it returns.

        The registry is written before anything is in force: after a crash a start finds the new state or the old one.
        """
        async with self._topics_lock:
            topic = self._topic(request.topic)
            wanted: dict[str, ConfigValue] = {**topic.config, **request.config}
            for name in request.reset:
                key = self._topic_key(name)
                if key in request.config or name in request.config:
                    raise InvalidConfigError(f"{name} cannot be both set and reset", key=name)
                wanted.pop(key, None)
            config, warnings = self.config.validate_topic_config(wanted)
            count = topic.partitions if request.partitions is None else request.partitions
            alteration = self.directory.plan_alteration(topic, count, config)
            if alteration.makes_partitions:
                self.directory.space.check(0)
            altered = await self._make(alteration, partial(self.directory.finish_alteration, topic, alteration))
            self._serve_partitions(alteration)
            if alteration.makes_partitions:
                self._tell_of_partitions(altered)
        log.info("topic_altered", topic=altered.name, partitions=altered.partitions, config=altered.config)
        changed = [warning for warning in warnings if any(key in warning for key in request.config)]
        dense = why_index_fills_first(self._config_of(altered))
        if dense is not None and any(key in dense for key in request.config):
            changed.append(dense)
        return AlterTopicReply(altered.name, altered.partitions, dict(altered.config), changed)

    async def _make(self, creation: TopicCreation, finish: Callable[[OSError | None], Topic]) -> Topic:
        """What ``finish`` returns, or raises, when the work of a creation is done; what is left over goes later."""
        error = await self._make_files(creation)
        try:
            if error is None:
                error = await self._open_logs(creation)
            return finish(error)
        except DiskFullError as full:
            raise self._no_room(full.message) from full.__cause__
        finally:
            self.remove_later(self.directory.take_half_made())

    async def _make_files(self, creation: TopicCreation) -> OSError | None:
        """Do the work of a creation off the loop; what went wrong, for whoever finishes it to clean up after.

        What only changes a configuration is done on a full disk, too: it may be the retention that is to make room.
        """
        run = creation.run if creation.makes_partitions else partial(self.directory.space.with_ballast, creation.run)
        with trio.CancelScope(shield=True):  # a topic is made whole, or not at all
            try:
                await self.offload.maintenance(run)
            except OSError as error:
                return error
        return None

    async def _open_logs(self, creation: TopicCreation) -> OSError | None:
        """Open the logs of what was made, some a turn; what went wrong, as ``_make_files``."""
        opened = 0
        with trio.CancelScope(shield=True):
            try:
                for _ in self.directory.opening(creation):
                    opened += 1
                    if opened % LOGS_A_TURN == 0:
                        await self.turn()
            except OSError as error:
                return error
        return None

    def _serve_partitions(self, creation: TopicCreation) -> None:
        made = ((creation.topic.name, n) for n in range(creation.first_partition, creation.topic.partitions))
        self.serve_logs({key: self.directory.logs[key] for key in made})

    def _tell_of_partitions(self, topic: Topic) -> None:
        """Have those who wait for records of a topic look again: they may want to know that it has more partitions."""
        for number in range(topic.partitions):
            partition = self.partitions.get((topic.name, number))
            if partition is not None:
                partition.wake_all()

    def _topic_key(self, name: str) -> str:
        """The key that a name means, under which it is kept. InvalidConfigError with the nearest when there is none."""
        key = TOPIC_NAMES.get(name)
        if key is None:
            self.config.validate_topic_config({name: ""})  # says what is wrong
        return name if key is None else key.name

    async def truncate(self, request: TruncateRequest) -> TruncateReply:
        """Delete records before an offset; returns when the new log starts survive a power cut."""
        results: list[TruncateResult] = []
        for number, item in enumerate(request.partitions):
            if number % TRUNCATIONS_A_TURN == TRUNCATIONS_A_TURN - 1:
                await self.turn()
            try:
                results.append(self._truncate_one(item))
            except SeglogError as error:
                partition = self.partitions.get((item.topic, item.partition))
                placed = partition.placed(error) if partition is not None else error
                results.append(TruncateResult(item.topic, item.partition, error=placed))
        moved = [
            partition
            for result in results
            if result.error is None and (partition := self.partitions.get((result.topic, result.partition))) is not None
        ]
        if moved:
            await self._write_moved(moved)
        return TruncateReply(results)

    async def _write_moved(self, moved: Sequence[Partition]) -> None:
        """Return when these new log starts survive a crash. On a full disk what they leave behind makes the room."""
        failure = await write_log_starts(self, [p for p in moved if not p.log.start_is_proven])
        if failure is None or is_no_room(failure):
            await self._remove_now(moved)
        if is_no_room(failure):
            failure = await write_log_starts(self, [p for p in moved if not p.log.start_is_proven])
        if failure is not None:
            raise storage_error(
                f"the new log starts are in force, but could not be written: {why(failure)}; a restart brings the old "
                "ones back unless they can be before, so make room and ask again"
                if is_no_room(failure)
                else f"the new log starts could not be written: {why(failure)}; ask again",
                failure,
            )

    async def _remove_now(self, partitions: Sequence[Partition] = ()) -> None:
        """Where the disk is full, have files that are not needed any more removed now, not when their time comes."""
        space = self.directory.space
        with suppress(OSError):
            space.look()
        if not space.is_short:
            return
        for partition in partitions:
            with suppress(StorageError):  # without room for another the active segment stays
                if space.with_ballast(partition.log.close_unreadable):
                    partition.note_rolled(str(RollReason.RETENTION))
        await shorten(self, partitions, TaskBoundary("retention"), by_age=False)
        self.deletions.hasten()
        with trio.move_on_after(REMOVAL_SECONDS_MAX):
            await self.deletions.wait_removed()
        with suppress(OSError):
            space.look()

    def _truncate_one(self, item: TruncatePartition) -> TruncateResult:
        partition = self._partition(item.topic, item.partition)
        partition_log = partition.log
        if partition_log.config.cleanup_policy == ("compact",):
            raise PolicyViolationError(
                f"topic {item.topic} is compacted: delete records by their keys, with a null value, "
                "or add delete to its cleanup.policy"
            )
        offset = partition_log.log_end_offset if item.offset is None else item.offset
        try:
            earliest = self.directory.space.with_ballast(partial(partition_log.truncate_before, offset))
        except OSError as error:
            self.unwritten.starts.add(partition)
            if not is_no_room(error):
                raise storage_error(
                    f"the new log start could not be written: {why(error)}; ask again", error
                ) from error
            earliest = partition_log.log_start_offset  # room is about to be made, and it is tried again
        log.info("log_start_moved", topic=item.topic, partition=item.partition, offset=earliest, reason="truncated")
        return TruncateResult(item.topic, item.partition, earliest=earliest)

    async def delete_topic(self, request: DeleteTopicRequest) -> DeleteTopicReply:
        """Delete a topic: from now on it is unknown; its files go in the background, readers of them finish."""
        if not self.config.delete_topic_enable:
            raise PolicyViolationError("topics cannot be deleted here: delete.topic.enable is false")
        async with self._topics_lock:
            topic = self._topic(request.topic)
            keys = [(topic.name, number) for number in range(topic.partitions)]
            partitions: list[Partition] = []
            async with AsyncExitStack() as held:
                try:
                    await self.recoveries.hold(keys)
                    partitions += [p for key in keys if (p := self.partitions.get(key)) is not None]
                    for partition in partitions:  # nothing may be at work on names below a directory that gets another
                        await partition.stop_cleaning()
                        await held.enter_async_context(partition.maintenance)
                    self.directory.forget_topic(topic)
                except BaseException:  # whoever asked may have hung up: then the topic lives on
                    for partition in partitions:
                        partition.may_be_cleaned = True
                    self.recoveries.let_go(keys)
                    raise
                self.recoveries.forget(keys)
                self.views.end(keys, is_deleted=True)
                for partition in partitions:
                    del self.partitions[partition.topic, partition.number]
                    partition.note_deleted()
                self.deletions.forget(partitions)
                with trio.CancelScope(shield=True):  # there may be thousands of directories
                    doomed = await self.offload.maintenance(self.directory.mark_doomed, topic)
            log.info("topic_deleted", topic=topic.name)
            self.remove_later(doomed)
            if self.directory.unrecorded:
                await self._remove_now()
                await self._record_deletions()
            # Before a topic of that name can come back, which a crash would otherwise give the old one's log starts.
            await write_checkpoints(self)
        await self._remove_now()
        return DeleteTopicReply(topic.name)

    async def record_deletions(self) -> None:
        """Write down deletions that the disk had no room for; where it still has none that is for another time."""
        async with self._topics_lock:
            await self._record_deletions()

    async def _record_deletions(self) -> None:
        if not self.directory.unrecorded:
            return
        write = self.directory.registry_writing()
        with trio.CancelScope(shield=True):
            try:
                await self.offload.maintenance(self.directory.space.with_ballast, write)
            except OSError as error:
                log.warning("deletions_not_recorded", reason=why(error), consequence="empty directories stay meanwhile")
                return
        for path in self.directory.note_recorded():
            self.deletions.add(Deletion(path, partial(self.fs.remove_tree, path), None, is_told=False), 0)

    def remove_later(self, directories: Iterable[str]) -> None:
        """Have the directories of topics that are gone removed after the broker's ``file.delete.delay.ms``.

        Of those that have to tell of a deletion only what is in them, for now.
        """
        for path in directories:
            is_needed = path in self.directory.unrecorded
            remove = partial(empty_directory, self.fs, path) if is_needed else partial(self.fs.remove_tree, path)
            removal = Deletion(path, remove, None)
            self.deletions.add(removal, self.config.topic_defaults.file_delete_delay_ms / 1000)

    # --- explain and metrics ------------------------------------------------------------------------------------------

    def explain(self, request: ExplainRequest) -> ExplainReply:
        """Seek as a fetch does, and tell how it went."""
        return explain_seek(self._readable(request.topic, request.partition), request, self.directory.path)

    async def explain_segments(self, request: ExplainSegmentsRequest) -> tuple[ExplainSegmentsReply, bytes]:
        """Tell of a page of segments, the payload, a msgpack list, why they are still there and when they go."""
        return await explain_segments(self, self._readable(request.topic, request.partition), request)

    def read_metrics(self) -> MetricsReply:
        """The counters, and what can be counted right now."""
        return MetricsReply(
            self.metrics.snapshot(
                uptime_seconds=max(0, self.clock.now_ms() - self._started_ms) / 1000,
                topics=len(self.directory.registry.topics),
                partitions=len(self.partitions),
                partitions_recovering=len(self.recoveries),
                recovery_ratio=self.recoveries.ratio,
                open_files=self.directory.handles.open_count,
                disk_free_bytes=self.directory.space.free,
                disk_full=int(self.directory.space.is_full),
                disk_free_inodes=-1 if self.directory.space.inodes is None else self.directory.space.inodes.free,
                partitions_read_only_until_room=len(self.views),
                ballast_bytes=self.directory.space.ballast,
                answers_waiting=len(self.transfers),
                request_memory_bytes=self.request_memory.used,
                memory_waiting=self.request_memory.waiting,
                memory_waits_total=self.request_memory.waits,
                fetches_waiting=len(self._waiters),
                retention_next_loss_seconds=self._seconds_to_next_expiry(),
            )
        )

    def _seconds_to_next_expiry(self) -> float:
        """Until retention.ms takes the next segment of any partition; -1 when none is known."""
        moments = [p.next_expiry_ms for p in self.partitions.values() if p.next_expiry_ms is not None]
        return max(0, min(moments) - self.clock.now_ms()) / 1000 if moments else -1

    # --- Looking up ---------------------------------------------------------------------------------------------------

    def serve_logs(self, logs: Mapping[tuple[str, int], PartitionLog]) -> None:
        """Take partitions into service."""
        for (topic, number), partition_log in logs.items():
            self.partitions[topic, number] = Partition(
                topic, number, partition_log, self.offload, self.metrics, self.commits
            )

    def serve_view(self, key: tuple[str, int], view: ReadOnlyView) -> None:
        """Have a partition read while its recovery waits for room."""
        self.views.serve(Partition(*key, view.log, self.offload, self.metrics, self.commits), view)

    def _served(self, topic: str, number: int) -> Partition | None:
        """A partition that can be read."""
        return self.partitions.get((topic, number)) or self.views.get((topic, number))

    def _readable(self, topic: str, number: int) -> Partition:
        """As ``_partition``, where reading will do."""
        return self.views.get((topic, number)) or self._partition(topic, number)

    def find_partition(self, topic: str, number: int) -> Partition:
        """A partition that is served; a typed error says why it is not."""
        return self._partition(topic, number)

    def _partition(self, topic: str, number: int) -> Partition:
        partition = self.partitions.get((topic, number))
        if partition is not None:
            return partition
        known = self._topic(topic)
        if number >= known.partitions:
            raise UnknownPartitionError(
                f"topic {topic} has {known.partitions} partitions, numbered from 0: there is no {number}",
                topic=topic,
                partition=number,
                partitions=known.partitions,
            )
        refusal = self.recoveries.refusal(topic, number)
        if refusal is not None:
            raise refusal
        reason = self.directory.report.offline.get((topic, number), "it could not be opened")
        raise PartitionOfflineError(
            f"partition {number} of topic {topic} is offline: {reason}", topic=topic, partition=number, reason=reason
        )

    def _topic(self, name: str) -> Topic:
        topic = self.directory.registry.topics.get(name)
        if topic is None:
            raise self._unknown_topic(name)
        return topic

    def _unknown_topic(self, name: str) -> UnknownTopicError:
        nearest = self._suggestions.nearest(name, self.directory.registry.topics)
        shown = name if len(name) <= 60 else f"{name[:57]}..."
        hint = f"; did you mean {nearest}?" if nearest else "; create it with: seglog topic create NAME"
        return UnknownTopicError(f"there is no topic {shown}{hint}", topic=shown, nearest=nearest)


def _told(problems: Sequence[str]) -> list[str]:
    """As many of them, and of each as much, as a greeting has room for."""
    told = [problem[:PROBLEM_CHARACTERS_MAX] for problem in problems[:PROBLEMS_MAX]]
    if len(problems) > PROBLEMS_MAX:
        told.append(f"and {len(problems) - PROBLEMS_MAX:,} more problems, which the broker's log names")
    return told
