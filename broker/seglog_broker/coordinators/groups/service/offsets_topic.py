"""Writes records of groups to ``__consumer_offsets``, through the ordinary log, durably.

What is to be written while a round of fsyncs runs waits, and is then written as one batch. So any number of groups may
commit at once, and each batch is written when the one before it is durable.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import structlog
import trio

from seglog_broker.api.append import AppendService
from seglog_broker.api.topics import TopicService
from seglog_broker.coordinators.groups.membership import Record
from seglog_broker.coordinators.groups.records import encode_record, partition_of
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.errors import (
    CoordinatorNotAvailableError,
    MessageTooLargeError,
    SeglogError,
    TopicExistsError,
)
from seglog_protocol.internal_topics import OFFSETS_TOPIC, offsets_topic_config
from seglog_protocol.messages import AppendPartition, AppendRequest, CreateTopicRequest
from seglog_protocol.record_batch import HEADER_SIZE

BATCH_BYTES: Final = 256 * 1024
"""Bytes after which a batch takes no more writes; one write is never divided."""

RECORDS_A_TURN: Final = 500
"""Records that are put into batches before other tasks run."""

ENCODED_A_TURN: Final = 64 * 1024
"""Bytes of records that are encoded before other tasks run."""

Encoded = tuple[bytes, bytes | None]
"""Key and value of a record."""

log = structlog.get_logger()


class _Write(NamedTuple):
    """Records to be written together, and the callback for when they are durable, or why they are not."""

    partition: int
    records: Sequence[Encoded | Record]
    then: Callable[[SeglogError | None], None]
    least_size: int = 0
    """Of its records, where they are too large to be encoded."""


class OffsetsTopic:
    """The topic of committed offsets, as it is written. Made when something is first written."""

    def __init__(
        self,
        appends: AppendService,
        topics: TopicService,
        table: PartitionTable,
        directory: LogDirectory,
        config: LiveConfig,
        clock: Clock,
        reads: ColdReads,
    ) -> None:
        self._appends = appends
        self._topics = topics
        self._table = table
        self._directory = directory
        self._config = config
        self._clock = clock
        self._reads = reads
        self._queue: deque[_Write] = deque()
        self._wanted = trio.Event()
        self._encoded_bytes = 0
        """Since other tasks ran."""

    @property
    def partitions(self) -> int:
        """How many it has, or will have."""
        topic = self._directory.registry.topics.get(OFFSETS_TOPIC)
        return self._config.current.offsets_topic_num_partitions if topic is None else topic.partitions

    @property
    def exists(self) -> bool:
        """Whether anything was ever written."""
        return OFFSETS_TOPIC in self._directory.registry.topics

    def write(
        self, group: str, records: Sequence[Encoded | Record], then: Callable[[SeglogError | None], None]
    ) -> None:
        """Write records of ``group`` together, and call ``then`` when they are durable, or with why they are not.

        Records that are not encoded yet are encoded in turns with other tasks. Callbacks come in the order of the
        writes. Without records ``then`` is called when all before it is durable.
        """
        self._queue.append(_Write(partition_of(group, self.partitions), records, then))
        self._wanted.set()

    def refuse_too_large(self, group: str, size: int, then: Callable[[SeglogError | None], None]) -> bool:
        """Whether records with ``size`` bytes and more are too many; then call ``then`` with that, in its turn."""
        number = partition_of(group, self.partitions)
        if size <= self._batch_bytes_max(number):
            return False
        self._queue.append(_Write(number, (), then, size))
        self._wanted.set()
        return True

    async def run(self) -> None:
        """Write what is queued, until cancelled; then call back for the rest with an error."""
        writes: list[_Write] = []
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                while self._queue:
                    try:
                        await self._write_some(writes)
                    except Exception:
                        log.exception("offsets_write_failed")
                        error = _not_written("of an internal error; see the broker's log")
                        self._tell(writes, dict.fromkeys(range(self.partitions), error))
                    writes.clear()
        finally:
            stopped = _not_written("the broker is stopping")
            for write in [*writes, *self._queue]:
                write.then(stopped)
            self._queue.clear()

    async def _write_some(self, writes: list[_Write]) -> None:
        """Move what fits into one batch for each partition from the queue to ``writes``, write it, tell about it."""
        failed: dict[int, SeglogError] = {}
        try:
            await self._make_topic()
        except SeglogError as error:
            writes.extend(self._queue)
            self._queue.clear()
            self._tell(writes, dict.fromkeys(range(self.partitions), _not_written(error.message)))
            return
        builders = await self._gather(writes)
        if builders:
            failed = await self._append(builders)
        self._tell(writes, failed)

    async def _make_topic(self) -> None:
        if self.exists:
            return
        config = self._config.current
        request = CreateTopicRequest(
            OFFSETS_TOPIC,
            partitions=config.offsets_topic_num_partitions,
            config=dict(offsets_topic_config(config.offsets_topic_segment_bytes)),
        )
        try:
            await self._topics.create(request, for_broker=True)
        except TopicExistsError:
            return

    async def _gather(self, writes: list[_Write]) -> dict[int, BatchBuilder]:
        """One batch for each partition, of the first writes that are queued."""
        now_ms = self._clock.now_ms()
        builders: dict[int, BatchBuilder] = {}
        count = 0
        while self._queue:
            write = self._queue[0]
            records = await self._encode(write.records)
            self._queue[0] = write = write._replace(records=records)
            builder = builders.get(write.partition)
            size = write.least_size or sum(len(key) + len(value or b"") + _RECORD_OVERHEAD for key, value in records)
            if builder is not None and builder.size + size > BATCH_BYTES and write.records:
                break
            self._queue.popleft()
            limit = self._batch_bytes_max(write.partition)
            if HEADER_SIZE + size > limit:
                error = _too_large(size, limit)
                log.warning("group_too_large", partition=write.partition, reason=error.message)
                write.then(error)
                continue
            writes.append(write)
            if not records:
                continue
            if builder is None:
                builder = builders[write.partition] = BatchBuilder(base_sequence=0)
            for key, value in records:
                builder.append(now_ms, key, value)
                count += 1
                if count % RECORDS_A_TURN == 0:
                    await self._reads.turn()
        return builders

    async def _encode(self, records: Iterable[Encoded | Record]) -> list[Encoded]:
        """Records as bytes. A large group has several megabytes of them."""
        encoded: list[Encoded] = []
        for record in records:
            if not isinstance(record, Record):
                encoded.append(record)
                continue
            key, value = await self._reads.in_turns(encode_record(record))
            encoded.append((key, value))
            self._encoded_bytes += len(key) + len(value or b"")
            if self._encoded_bytes >= ENCODED_A_TURN:
                self._encoded_bytes = 0
                await self._reads.turn()
        return encoded

    def _batch_bytes_max(self, number: int) -> int:
        partition = self._table.find(OFFSETS_TOPIC, number)
        config = self._config.current.topic_defaults if partition is None else partition.log.config
        return config.max_message_bytes

    async def _append(self, builders: dict[int, BatchBuilder]) -> dict[int, SeglogError]:
        """Append a batch to each partition and wait until they are durable; the errors by partition."""
        batches = {number: builder.build() for number, builder in builders.items()}
        request = AppendRequest(
            [AppendPartition(OFFSETS_TOPIC, number, len(batch)) for number, batch in batches.items()],
            ack="disk",
            create=False,
        )
        pending = self._appends.append([request], [memoryview(bytearray(b"".join(batches.values())))], for_broker=True)
        if not pending.is_written:
            await pending.write_rest()
        reply = (await pending.wait())[0]
        if isinstance(reply, SeglogError):
            return dict.fromkeys(batches, _not_written(reply.message))
        return {
            number: _not_written(result.error.message)
            for number, result in zip(batches, reply.partitions, strict=True)
            if result.error is not None
        }

    def _tell(self, writes: Sequence[_Write], failed: dict[int, SeglogError]) -> None:
        for write in writes:
            write.then(failed.get(write.partition))


_RECORD_OVERHEAD: Final = 24
"""At most so many bytes of a record are neither key nor value."""


def _not_written(why: str) -> CoordinatorNotAvailableError:
    return CoordinatorNotAvailableError(f"nothing could be written to {OFFSETS_TOPIC}, because {why}; try again")


def _too_large(size: int, limit: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"what is to be written about the group has {size:,} bytes; max.message.bytes of {OFFSETS_TOPIC} is {limit:,}: "
        "raise it",
        size=size,
        limit=limit,
    )
