"""Appends the records of a coordinator to its topic, through the ordinary log, durably.

What is to be appended while a round of fsyncs runs waits, and is one batch then. So any number of state machines may
decide at once, and each batch is written when the one before it is durable.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from seglog_broker.api.pending_appends import PendingAppends
from seglog_broker.coordinators.records import encode_record
from seglog_broker.coordinators.state_machine import Record
from seglog_broker.logger import get_logger
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime import budget
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.directory.topic_registry import TopicRegistry
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.errors import CoordinatorNotAvailableError, MessageTooLargeError, SeglogError, TopicExistsError
from seglog_protocol.messages import AppendPartition, AppendRequest, CreateTopicRequest
from seglog_protocol.record_batch import HEADER_SIZE

BATCH_BYTES: Final = 256 * 1024
"""Bytes after which a batch takes no more writes, unless its topic takes less; one write is never divided."""

RECORDS_A_TURN: Final = budget.items_of(cost=4)
"""Records that are put into batches before other tasks run."""

ENCODED_A_TURN: Final = budget.items_of(cost=0.031)
"""Bytes of records that are encoded before other tasks run."""

RECORD_OVERHEAD: Final = 24
"""At most so many bytes of a record are neither key nor value."""

Encoded = tuple[bytes, bytes | None]
"""Key and value of a record."""

Then = Callable[[SeglogError | None], None]
"""Called when a write is durable, with None, or with why it is not."""

log = get_logger()


class TopicSettings(NamedTuple):
    """A topic of a coordinator as it is to be created."""

    name: str
    noun: str
    """The noun for its keys in errors: a group."""
    partitions: int
    config: Mapping[str, str]


_INTERNAL: Final = "of an internal error; see the broker's log"


class _Write(NamedTuple):
    """Records of one coordinator key, to be written together."""

    partition: int
    records: Sequence[Encoded | Record]
    then: Then
    error: SeglogError | None = None
    """Why it is refused; it keeps its turn, without records."""


class StateTopic:
    """The topic of a coordinator, created when something is first written."""

    def __init__(
        self,
        settings: Callable[[], TopicSettings],
        append: Callable[..., PendingAppends],
        create_topic: Callable[..., Awaitable[Any]],
        table: PartitionTable,
        registry: TopicRegistry,
        config: LiveConfig,
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        """``append`` and ``create_topic`` are those of AppendService and TopicService."""
        self.name: Final = settings().name
        self._settings = settings
        self._append_batches = append
        self._create_topic = create_topic
        self._table = table
        self._registry = registry
        self._config = config
        self._clock = clock
        self._scheduler = scheduler
        self._queue: deque[_Write] = deque()
        self._wanted = trio.Event()
        self._encoded_bytes = 0
        """Encoded since other tasks ran."""

    @property
    def partitions(self) -> int:
        """The number of its partitions, or of those that it will be created with."""
        topic = self._registry.topics.get(self.name)
        return self._settings().partitions if topic is None else topic.partitions

    @property
    def exists(self) -> bool:
        """True once something was written."""
        return self.name in self._registry.topics

    def partition_of(self, key: str) -> int:
        """The partition that has the records of a coordinator key."""
        return partition_of(key, self.partitions)

    def append(self, key: str, records: Sequence[Encoded | Record], then: Then) -> None:
        """Append the records of a coordinator key as one piece, and call ``then``.

        Callbacks come in the order of these calls. Without records ``then`` is called when all before it is durable.
        """
        number = self.partition_of(key)
        write = _Write(number, records, then)
        least_size = sum(record.least_size for record in records if isinstance(record, Record))
        if least_size > (limit := self._batch_bytes_max(number)):
            write = self._too_large(write, least_size, limit)  # before it is encoded
        self._queue.append(write)
        self._wanted.set()

    async def run(self) -> None:
        """Write what is queued, until cancelled; then call back for the rest with an error."""
        writes: deque[_Write] = deque()
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                while self._queue:
                    try:
                        await self._write_some(writes)
                    except Exception:
                        log.exception("coordinator_write_failed", topic=self.name)
                        error = self._not_written(_INTERNAL)
                        self._call_back(writes, dict.fromkeys(range(self.partitions), error))
        finally:
            stopped = self._not_written("the broker is stopping")
            writes += self._queue
            self._call_back(writes, dict.fromkeys(range(self.partitions), stopped))
            self._queue.clear()

    async def _write_some(self, writes: deque[_Write]) -> None:
        """Move what fits into one batch for each partition from the queue to ``writes``, append it, and call back."""
        try:
            await self._create()
        except SeglogError as error:
            writes.extend(self._queue)
            self._queue.clear()
            self._call_back(writes, dict.fromkeys(range(self.partitions), self._not_written(error.message)))
            return
        builders = await self._gather(writes)
        failed = await self._append(builders) if builders else {}
        self._call_back(writes, failed)

    def _call_back(self, writes: deque[_Write], failed: Mapping[int, SeglogError]) -> None:
        """Take all of ``writes`` out, each before it is called, so that none is called twice."""
        while writes:
            write = writes.popleft()
            try:
                write.then(write.error or failed.get(write.partition))
            except Exception:
                log.exception("coordinator_callback_failed", topic=self.name)

    async def _create(self) -> None:
        if self.exists:
            return
        wanted = self._settings()
        request = CreateTopicRequest(wanted.name, partitions=wanted.partitions, config=dict(wanted.config))
        try:
            await self._create_topic(request, for_broker=True)
        except TopicExistsError:
            return

    async def _gather(self, writes: deque[_Write]) -> dict[int, BatchBuilder]:
        """One batch for each partition, of the first writes that are queued."""
        now_ms = self._clock.now_ms()
        builders: dict[int, BatchBuilder] = {}
        count = 0
        while self._queue:
            write = self._queue[0]
            try:
                records = await self._encode(write.records)
            except Exception:  # a bug: it is refused alone, or it would be tried again for ever
                log.exception("coordinator_write_failed", topic=self.name)
                records = []
                write = write._replace(error=self._not_written(_INTERNAL))
            self._queue[0] = write = write._replace(records=records)
            builder = builders.get(write.partition)
            size = sum(len(key) + len(value or b"") + RECORD_OVERHEAD for key, value in records)
            limit = self._batch_bytes_max(write.partition)
            if builder is not None and records and builder.size + size > min(BATCH_BYTES, limit):
                break
            self._queue.popleft()
            if HEADER_SIZE + size > limit and records:
                write = self._too_large(write, size, limit)
            writes.append(write)
            if not write.records:
                continue
            if builder is None:
                builder = builders[write.partition] = BatchBuilder(base_sequence=0)
            for key, value in records:
                builder.append(now_ms, key, value)
                count += 1
                if count % RECORDS_A_TURN == 0:
                    await self._scheduler.turn()
        return builders

    async def _encode(self, records: Iterable[Encoded | Record]) -> list[Encoded]:
        """Records as bytes, in turns with other tasks: a large group has several megabytes of them."""
        encoded: list[Encoded] = []
        for record in records:
            if not isinstance(record, Record):
                encoded.append(record)
                continue
            key, value = await self._scheduler.in_turns(encode_record(record))
            encoded.append((key, value))
            self._encoded_bytes += len(key) + len(value or b"")
            if self._encoded_bytes >= ENCODED_A_TURN:
                self._encoded_bytes = 0
                await self._scheduler.turn()
        return encoded

    def _batch_bytes_max(self, number: int) -> int:
        partition = self._table.find(self.name, number)
        config = self._config.current.topic_defaults if partition is None else partition.log.config
        return config.max_message_bytes

    async def _append(self, builders: Mapping[int, BatchBuilder]) -> dict[int, SeglogError]:
        """Append a batch to each partition and wait until they are durable; the errors by partition."""
        batches = {number: builder.build() for number, builder in builders.items()}
        request = AppendRequest(
            [AppendPartition(self.name, number, len(batch)) for number, batch in batches.items()],
            ack="disk",
            create=False,
        )
        payload = memoryview(bytearray(b"".join(batches.values())))
        pending = self._append_batches([request], [payload], for_broker=True)
        if not pending.is_written:
            await pending.write_rest()
        reply = (await pending.wait())[0]
        if isinstance(reply, SeglogError):
            return dict.fromkeys(batches, self._not_written(reply.message))
        return {
            number: self._not_written(result.error.message)
            for number, result in zip(batches, reply.partitions, strict=True)
            if result.error is not None
        }

    def _not_written(self, why: str) -> CoordinatorNotAvailableError:
        return CoordinatorNotAvailableError(f"nothing could be written to {self.name}, because {why}; try again")

    def _too_large(self, write: _Write, size: int, limit: int) -> _Write:
        """A write refused for the size of its records, and without these."""
        error = MessageTooLargeError(
            f"what is to be written about the {self._settings().noun} has {size:,} bytes; max.message.bytes of"
            f" {self.name} is {limit:,}: raise it",
            size=size,
            limit=limit,
        )
        log.warning("coordinator_records_too_large", topic=self.name, partition=write.partition, reason=error.message)
        return write._replace(records=(), error=error)


def partition_of(key: str, partitions: int) -> int:
    """The partition for a coordinator key, by Java's hash of it, as in Kafka."""
    utf16 = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(utf16), 2):
        value = (31 * value + (utf16[position] << 8 | utf16[position + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
