"""The broker: the one object that every listener talks to.

It owns all mutable state and lives on one loop, so there are no locks but one: topics are created and deleted one at a
time, because their files are made off the loop. Listeners bring requests and borrow answers; storage is synchronous
underneath. The life of an append and of a fetch is told in ARCHITECTURE.md; this file is where both pass through.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from seglog_broker.answers import FetchAnswer, RecentAnswer
from seglog_broker.batch_checks import check_batch, stamp
from seglog_broker.config import BrokerConfig, TopicConfig
from seglog_broker.config.topic_config import TOPIC_NAMES
from seglog_broker.explain import explain_seek, explain_segments
from seglog_broker.gaps import gaps_to_tell
from seglog_broker.group_commit import GroupCommit, Round
from seglog_broker.index_density import why_index_fills_first
from seglog_broker.metrics import Metrics
from seglog_broker.offload import Offload
from seglog_broker.partition import Partition
from seglog_broker.recoveries import Recoveries
from seglog_broker.request_memory import RequestMemory
from seglog_broker.storage.clock import Clock
from seglog_broker.storage.failures import storage_error
from seglog_broker.storage.filenames import TOPIC_NAME_MAX
from seglog_broker.storage.filesystem import FileSystem
from seglog_broker.storage.handles import ColdReadError
from seglog_broker.storage.log_directory import LogDirectory
from seglog_broker.storage.log_slice import LogSlice
from seglog_broker.storage.partition_log import PartitionLog
from seglog_broker.storage.recovery_job import RecoveryOutcome
from seglog_broker.storage.topic_creation import TopicCreation
from seglog_broker.storage.topics import Topic
from seglog_broker.tasks.checkpoint import write_checkpoints
from seglog_broker.tasks.deletion import Deletion, Deletions
from seglog_broker.tasks.recovery import tell_recovered
from seglog_broker.tasks.retention import RetentionSchedule
from seglog_broker.transfers import Transfers
from seglog_broker.version import VERSION
from seglog_broker.waiting import Waiter, WaitingRoom
from seglog_protocol.errors import (
    CorruptRecordError,
    DiskFullError,
    InconsistentTopicIdError,
    InvalidConfigError,
    InvalidRequestError,
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

log = structlog.get_logger()

_PARTITIONS_PER_FETCH_MAX: Final = 10_000

COLD_READS_MAX: Final = 1_000
"""Reads from the disk that one request may wait for, one after the other, before it is served on the loop anyway."""

IN_LINE_BYTES: Final = 4 * 1024 * 1024
"""Read before the broker serves, after a stop that was not clean: a few hundredths of a second, and where every batch
holds one small record about as long as a process takes to start."""

AnswerT = TypeVar("AnswerT")


class PendingAppend:
    """An append that is written. ``reply`` is there when nothing is left to wait for, else ``wait`` gives it."""

    __slots__ = ("_results", "_round", "_waits", "ack")

    def __init__(
        self, ack: Ack, results: list[AppendResult], waits: list[tuple[int, Partition, int]], round_: Round | None
    ) -> None:
        self.ack = ack
        self._round = round_  # of the group commit, that syncs all of them
        self._results = results
        self._waits = waits  # (number of the result, its partition, offset that must be durable)

    @property
    def reply(self) -> AppendReply | None:
        """The answer, if every partition has reached what was asked for, or failed."""
        for _, partition, offset in self._waits:
            if partition.log.durable_end_offset < offset:
                return None
        return AppendReply(self._results)

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
        return AppendReply(self._results)


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
        self.dry_run_turn = trio.Lock()  # one dry run of compaction at a time
        self._producer_ids_lock = trio.Lock()
        self.recoveries = Recoveries(directory.recovering)
        self.deletions = Deletions()
        self.transfers = Transfers()
        self.request_memory = RequestMemory(config.seglog_request_memory_max)
        self.retention_schedule = RetentionSchedule(
            interval_ms=config.log_retention_check_interval_ms, first_ms=config.log_initial_task_delay_ms
        )
        self.flush_wanted = trio.Event()  # some partition has flush.messages records to be synced
        self.checkpoint_lock = trio.Lock()  # the files are written off the loop, one writer at a time
        self.metrics.partitions_recovered = sum(o.recovery is not None for o in directory.report.opened.values())
        self.serve_logs(directory.logs)

    @classmethod
    def open(cls, config: BrokerConfig, fs: FileSystem, clock: Clock, offload: Offload) -> "Broker":
        """Lock the log directory and load what is in it.

        Raises LogDirectoryError when it cannot be used. A partition that cannot be opened is offline, and named.
        """
        directory = LogDirectory(fs, clock, config, config.log_dir)
        report = directory.open(in_line_bytes=IN_LINE_BYTES)
        if report.adopted:
            log.warning("kafka_directory_adopted", topics=report.adopted)
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

    def close(self) -> None:
        """Flush, checkpoints, clean marker, unlock; after every listener and ``run`` have ended.

        Where something else is in the directory's place nothing is written.
        """
        if not self.directory.is_in_place:
            self.directory.abandon()
            return
        for problem in self.directory.close():
            log.error("stop_not_clean", problem=problem)

    # --- hello --------------------------------------------------------------------------------------------------------

    def hello(self) -> HelloReply:
        """Who answers, what it speaks, and what is wrong with it."""
        offline = self.directory.report.offline
        problems = [f"{topic}-{partition} is offline: {why}" for (topic, partition), why in offline.items()]
        full = self.directory.space.problem()
        problems += [] if full is None else [full]
        problems += [problem for partition in self.partitions.values() for problem in partition.what_is_wrong()]
        return HelloReply(
            protocol=PROTOCOL_NAME,
            broker=f"seglogd/{VERSION}",
            apis=API_VERSIONS,
            limits={
                "frame_bytes_max": min(self.config.socket_request_max_bytes, self.request_memory.limit),
                "header_bytes_max": HEADER_BYTES_MAX,
                "fetch_bytes_max": self.config.fetch_max_bytes,
                "fetch_wait_ms_max": self.config.seglog_fetch_max_wait_ms_max,
            },
            cluster_id=self.directory.cluster_id,
            uptime_ms=max(0, self.clock.now_ms() - self._started_ms),
            partitions=len(self.partitions) + len(offline) + len(self.recoveries),
            auto_create_topics=self.config.auto_create_topics_enable,
            problems=problems,
            recovery=self.recoveries.told(),
        )

    async def answer(self, request: Request) -> tuple[Message, bytes]:
        """The reply, and its payload, to any request but hello, append and fetch."""
        match request:
            case OffsetsRequest():
                return await self.warmed(lambda: self.offsets(request)), b""
            case TopicsRequest():
                return self.topics(request)
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
        """Write the batches in ``payload``, in the order asked, each judged by itself.

        ``refused`` are topics that could not be created, and why. ``payload`` is changed in place. Raises
        InvalidRequestError when the request as a whole makes no sense.
        """
        asked = sum(item.size for item in request.partitions)
        if asked != len(payload):
            raise InvalidRequestError(
                f"the batches are announced with {asked} bytes, the payload has {len(payload)}", field="partitions"
            )
        results: list[AppendResult] = []
        waits: list[tuple[int, Partition, int]] = []
        round_: Round | None = None
        position = 0
        for item in request.partitions:
            batch = payload[position : position + item.size]
            position += item.size
            try:
                partition = self._partition(item.topic, item.partition)
            except UnknownTopicError as error:
                why = refused.get(item.topic, error) if refused else error
                results.append(AppendResult(item.topic, item.partition, error=why))
                continue
            except SeglogError as error:
                results.append(AppendResult(item.topic, item.partition, error=error))
                continue
            try:
                result, end_offset = self._append_one(partition, batch, request.ack)
            except SeglogError as error:
                results.append(AppendResult(item.topic, item.partition, error=partition.placed(error)))
                continue
            if request.ack == "disk":
                waits.append((len(results), partition, end_offset))
                round_ = partition.want_durable()  # now: whoever leads the next round takes it along
            results.append(result)
        return PendingAppend(request.ack, results, waits, round_)

    def _append_one(self, partition: Partition, batch: memoryview, ack: Ack) -> tuple[AppendResult, int]:
        config = partition.log.config
        now = self.clock.now_ms()
        header, append_time = stamp(batch, check_batch(batch, config, now), config, now)
        self.directory.space.check(header.size)
        try:
            appended = partition.log.append(batch, header)
        except StorageError as error:
            if isinstance(error, PartitionReadOnlyError):
                raise
            if isinstance(error, DiskFullError):
                with suppress(OSError):
                    self.directory.space.look()
                error = self.directory.space.refusal(error.message)
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
        )
        return result, appended.last_offset + 1

    async def flush(self, request: FlushRequest) -> FlushReply:
        """Bring what is in these partitions to the disk, as an append at ack ``disk`` does with what came before it."""
        results: list[FlushResult] = []
        waits: list[tuple[int, Partition, int]] = []
        for item in request.partitions:
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
                        raise storage_error(
                            f"no producer id could be made sure of: {error}; ask again", error
                        ) from error
                ids.add(block)
                producer_id = ids.take()
        return InitProducerReply(producer_id, 0)

    # --- fetch --------------------------------------------------------------------------------------------------------

    def fetch_now(self, request: FetchRequest, waiter: Waiter | None = None) -> FetchAnswer | None:
        """The answer if it need not wait, for records or for the disk; else None. ``waiter`` has waited already."""
        is_over = request.max_wait_ms == 0 or (waiter is not None and trio.current_time() >= waiter.deadline)
        if not is_over and self._is_at_the_end(request):
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
                answer = self._collect_warm(request)
                if answer is None:
                    answer = await self.warmed(lambda: self._collect(request))
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
        partitions = (self.partitions.get((item.topic, item.partition)) for item in request.partitions)
        return [partition.waiters for partition in partitions if partition is not None]

    def _collect_warm(self, request: FetchRequest) -> FetchAnswer | None:
        """What ``_collect`` returns, or None when that would wait for the disk."""
        try:
            with self.directory.handles.only_warm:
                return self._collect(request)
        except ColdReadError:
            return None

    async def warmed(self, ask: Callable[[], AnswerT]) -> AnswerT:
        """What ``ask`` returns; where it would wait for the disk, that happens in a thread first and it is asked again.

        ``ask`` must have changed nothing when it raises ColdReadError.
        """
        last = None
        for _ in range(COLD_READS_MAX):
            try:
                with self.directory.handles.only_warm:
                    return ask()
            except ColdReadError as cold:
                if (cold.path, cold.position) == last:
                    break  # this system cannot tell what is in memory, or has none to spare
                last = (cold.path, cold.position)
                self.metrics.cold_reads += 1
                await self._read_in(cold)
        return ask()

    async def _read_in(self, cold: ColdReadError) -> None:
        try:
            with self.directory.handles.lease(cold.path) as file:
                await self.offload.cold_read(file.pread, cold.size, cold.position)
        except OSError:
            return  # whoever asks again meets it too, and says so

    def _is_at_the_end(self, request: FetchRequest) -> bool:
        """Whether it waits for records without a doubt, told by offsets alone: so it is with nearly all that wait."""
        if not request.min_bytes or not request.max_bytes or len(request.partitions) > _PARTITIONS_PER_FETCH_MAX:
            return False
        for item in request.partitions:
            partition = self.partitions.get((item.topic, item.partition))
            if partition is None or item.offset != partition.log.log_end_offset or item.timestamp is not None:
                return False
        return not self._made_again(request)

    def _made_again(self, request: FetchRequest) -> set[str]:
        """Names of topics that are not the ones the request means, but were made after these were deleted."""
        if request.topic_ids is None:
            return set()
        known = self.directory.registry.topics
        return {name for name, id_ in request.topic_ids.items() if name in known and known[name].id != id_}

    @staticmethod
    def _is_complete(request: FetchRequest, answer: FetchAnswer) -> bool:
        return answer.size >= min(request.min_bytes, request.max_bytes) or any(
            result.error is not None or (result.gaps is not None and not result.size)
            for result in answer.reply.partitions
        )

    def _collect(self, request: FetchRequest) -> FetchAnswer:
        """What is there now, at most ``max_bytes`` of it, but at least one batch where there is any."""
        if len(request.partitions) > _PARTITIONS_PER_FETCH_MAX:
            raise InvalidRequestError(
                f"at most {_PARTITIONS_PER_FETCH_MAX} partitions in one fetch", field="partitions"
            )
        made_again = self._made_again(request)
        alone = None
        if len(request.partitions) == 1 and not made_again:
            item = request.partitions[0]
            alone = self.partitions.get((item.topic, item.partition))
            again = None if alone is None or alone.recent_answer is None else alone.recent_answer.again(request)
            if again is not None:
                return again
        left = min(request.max_bytes, self.config.fetch_max_bytes)
        results: list[FetchResult] = []
        slices: list[LogSlice] = []
        try:
            for item in request.partitions:
                try:
                    if item.topic in made_again:
                        raise self._another_topic(item)
                    result, found = self._read_one(item, min(left, item.max_bytes), min_one=not slices)
                except SeglogError as error:
                    partition = self.partitions.get((item.topic, item.partition))
                    placed = partition.placed(error) if partition is not None else error
                    if isinstance(error, CorruptRecordError):
                        log.warning("damage_read", **{k: v for k, v in placed.facts.items() if k != "retriable"})
                    results.append(FetchResult(item.topic, item.partition, error=placed))
                    continue
                results.append(result)
                if found is not None:
                    slices.append(found)
                    left = max(0, left - found.size)
        except BaseException:
            for slice_ in slices:
                slice_.release()
            raise
        answer = FetchAnswer(FetchReply(results), slices)
        if alone is not None:
            alone.recent_answer = RecentAnswer.of(alone.log, request, answer)
        return answer

    def _another_topic(self, item: FetchPartition) -> InconsistentTopicIdError:
        return InconsistentTopicIdError(
            f"topic {item.topic} was deleted and made again, and positions in the former topic mean nothing in this "
            "one; start the consumer again: at the earliest, at the latest, or at a moment",
            topic=item.topic,
            partition=item.partition,
            topic_id=self._topic(item.topic).id,
        )

    def _read_one(self, item: FetchPartition, bytes_max: int, *, min_one: bool) -> tuple[FetchResult, LogSlice | None]:
        partition = self._partition(item.topic, item.partition)
        partition_log = partition.log
        if (item.offset is None) == (item.timestamp is None):
            raise InvalidRequestError("a fetch starts either at an offset or at a timestamp", field="offset")
        if item.timestamp is not None:
            moment = partition_log.find_timestamp(item.timestamp)
            offset = partition_log.log_end_offset if moment is None else moment.offset
        else:
            assert item.offset is not None
            offset = item.offset
        found = partition_log.read(offset, bytes_max, min_one=min_one)
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

    def offsets(self, request: OffsetsRequest) -> OffsetsReply:
        """The ends of partitions, and where a moment lies in them."""
        results: list[OffsetsResult] = []
        topic_ids: dict[str, str] = {}
        for item in request.partitions:
            try:
                topic = self._topic(item.topic)
            except SeglogError as error:
                results.append(OffsetsResult(item.topic, item.partition, error=error))
                continue
            topic_ids[topic.name] = topic.id
            wanted: Iterable[int] = range(topic.partitions) if item.partition is None else (item.partition,)
            results.extend(self._offsets_of(item, number) for number in wanted)
        return OffsetsReply(results, topic_ids)

    def _offsets_of(self, item: OffsetsPartition, number: int) -> OffsetsResult:
        try:
            partition_log = self._partition(item.topic, number).log
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

    def topics(self, request: TopicsRequest) -> tuple[TopicsReply, bytes]:
        """A page of topics, and its descriptions as the payload, a msgpack list."""
        known = self.directory.registry.topics
        unknown: list[SeglogError] = []
        if request.names is not None:
            unknown = [self._unknown_topic(name) for name in request.names if name not in known]
            names = sorted({name for name in request.names if name in known and name > request.after})
        else:
            names = sorted(name for name in known if name > request.after)
        page = names[: request.limit]
        described = [self._describe(known[name], whole=request.config).to_wire() for name in page]
        return TopicsReply(more=len(names) > len(page), unknown=unknown), encode_value(described)

    def _describe(self, topic: Topic, *, whole: bool) -> TopicDescription:
        config = self._config_of(topic)
        logs = [p.log for number in range(topic.partitions) if (p := self.partitions.get((topic.name, number)))]
        entries = None
        if whole:
            entries = {
                entry.key: ConfigEntry(entry.value, str(entry.origin.kind), entry.origin.where)
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
            return finish(error)
        finally:
            self.remove_later(self.directory.half_made)
            self.directory.half_made.clear()

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

    def _serve_partitions(self, creation: TopicCreation) -> None:
        made = ((creation.topic.name, n) for n in range(creation.first_partition, creation.topic.partitions))
        self.serve_logs({key: self.directory.logs[key] for key in made})

    def _topic_key(self, name: str) -> str:
        """The key that a name means, under which it is kept. InvalidConfigError with the nearest when there is none."""
        key = TOPIC_NAMES.get(name)
        if key is None:
            self.config.validate_topic_config({name: ""})  # says what is wrong
        return name if key is None else key.name

    async def truncate(self, request: TruncateRequest) -> TruncateReply:
        """Delete records before an offset; returns when the new log starts survive a power cut."""
        results: list[TruncateResult] = []
        for item in request.partitions:
            try:
                results.append(self._truncate_one(item))
            except SeglogError as error:
                partition = self.partitions.get((item.topic, item.partition))
                placed = partition.placed(error) if partition is not None else error
                results.append(TruncateResult(item.topic, item.partition, error=placed))
        if any(result.error is None for result in results):
            failure = await write_checkpoints(self)
            if failure is not None:
                raise storage_error(f"the new log starts could not be written: {failure}; ask again", failure)
        return TruncateReply(results)

    def _truncate_one(self, item: TruncatePartition) -> TruncateResult:
        partition_log = self._partition(item.topic, item.partition).log
        if partition_log.config.cleanup_policy == ("compact",):
            raise PolicyViolationError(
                f"topic {item.topic} is compacted: delete records by their keys, with a null value, "
                "or add delete to its cleanup.policy"
            )
        offset = partition_log.log_end_offset if item.offset is None else item.offset
        try:
            earliest = self.directory.space.with_ballast(partial(partition_log.truncate_before, offset))
        except OSError as error:
            raise storage_error(f"the new log start could not be written: {error}; ask again", error) from error
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
                    doomed = self.directory.delete_topic(topic)
                except BaseException:  # whoever asked may have hung up: then the topic lives on
                    for partition in partitions:
                        partition.may_be_cleaned = True
                    self.recoveries.let_go(keys)
                    raise
                self.recoveries.forget(keys)
                for partition in partitions:
                    del self.partitions[partition.topic, partition.number]
                    partition.note_deleted()
                    self.deletions.forget(partition)
            log.info("topic_deleted", topic=topic.name)
            self.remove_later(doomed)
            # Before a topic of that name can come back, which a crash would otherwise give the old one's log starts.
            await write_checkpoints(self)
        return DeleteTopicReply(topic.name)

    def remove_later(self, directories: Iterable[str]) -> None:
        """Have the directories of topics that are gone removed after the broker's ``file.delete.delay.ms``."""
        for path in directories:
            removal = Deletion(path, partial(self.fs.remove_tree, path), None)
            self.deletions.add(removal, self.config.topic_defaults.file_delete_delay_ms / 1000)

    # --- explain and metrics ------------------------------------------------------------------------------------------

    def explain(self, request: ExplainRequest) -> ExplainReply:
        """Seek as a fetch does, and tell how it went."""
        return explain_seek(self._partition(request.topic, request.partition), request, self.directory.path)

    async def explain_segments(self, request: ExplainSegmentsRequest) -> tuple[ExplainSegmentsReply, bytes]:
        """Tell of a page of segments, the payload, a msgpack list, why they are still there and when they go."""
        return await explain_segments(self, self._partition(request.topic, request.partition), request)

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
                ballast_bytes=self.directory.space.ballast,
                answers_waiting=len(self.transfers),
                request_memory_bytes=self.request_memory.used,
                memory_waiting=self.request_memory.waiting,
                memory_waits_total=self.request_memory.waits,
                fetches_waiting=len({waiter for p in self.partitions.values() for waiter in p.waiters}),
            )
        )

    # --- Looking up ---------------------------------------------------------------------------------------------------

    def serve_logs(self, logs: Mapping[tuple[str, int], PartitionLog]) -> None:
        """Take partitions into service."""
        for (topic, number), partition_log in logs.items():
            self.partitions[topic, number] = Partition(
                topic, number, partition_log, self.offload, self.metrics, self.commits
            )

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
        known = self.directory.registry.topics
        nearest = next(iter(difflib.get_close_matches(name[:249], known, n=1)), "")
        shown = name if len(name) <= 60 else f"{name[:57]}..."
        hint = f"; did you mean {nearest}?" if nearest else "; create it with: seglog topic create NAME"
        return UnknownTopicError(f"there is no topic {shown}{hint}", topic=shown, nearest=nearest)
