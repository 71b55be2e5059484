"""Appends the records of a coordinator to its topic, through the ordinary log, durably.

What is to be appended while a round of fsyncs runs waits, and is one batch then, with one more for each transaction
that records belong to. So any number of state machines may decide at once, and what comes next is written when all
these are durable.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import trio
from mypy_extensions import mypyc_attr

from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch, Record, encode_record
from seglog_broker.engine.pending_appends import PendingAppends
from seglog_broker.logger import get_logger
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.runtime import budget
from seglog_broker.runtime.begun import Begun
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.io.clock import Clock
from seglog_protocol import errors
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.messages import AppendPartition, AppendReply, AppendRequest
from seglog_protocol.record_batch import HEADER_SIZE, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from seglog_protocol.steps import Steps, finished

BATCH_BYTES: Final = 256 * 1024
"""Bytes after which a batch takes no more writes, unless its topic takes less; one write is never divided."""

RECORDS_A_TURN: Final = budget.items_of(cost=4)
"""Records that are put into batches before other tasks run."""

ENCODED_A_TURN: Final = budget.items_of(cost=0.031)
"""Bytes of records that are encoded before other tasks run."""

AT_ONCE_BYTES: Final = 16 * 1024
"""Bytes of writes that are little."""

LEISURE_SECONDS: Final = 0.01
"""How long a write that nothing waits for may wait for others, with which it shares a batch and a sync."""

PARTITIONS_KEPT: Final = 10_000
"""Coordinator keys whose partitions are kept: to find one takes a step for each character."""

KEPT_CHARACTERS_MAX: Final = 249
"""Of such a key; the partition of a longer one is found each time."""

RECORD_OVERHEAD: Final = 24
"""At most so many bytes of a record are neither key nor value."""

Encoded = tuple[bytes, bytes | None]
"""Key and value of a record."""

Then = Callable[[errors.SeglogError | None], None]
"""Called when a write is durable, with None, or with why it is not."""

log = get_logger()


class TopicSettings(NamedTuple):
    """A topic of a coordinator as it is to be created."""

    name: str
    noun: str
    """The noun for its keys in errors: a group."""
    partitions: int
    config: Mapping[str, str]


_OF_PRODUCER: Final = errors.InvalidTransactionStateError, errors.InvalidProducerEpochError

_INTERNAL: Final = "of an internal error; see the broker's log"


class _Batch:
    """A batch for a partition, under construction; ``error`` is why it was not written."""

    __slots__ = ("builder", "error", "partition", "transaction")

    def __init__(self, partition: int, transaction: ProducerIdAndEpoch | None) -> None:
        self.partition = partition
        self.transaction = transaction
        self.error: errors.SeglogError | None = None
        producer_id, epoch = transaction or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self.builder = BatchBuilder(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=transaction is not None
        )


class _Write:
    """Records of one coordinator key, to be written together; ``then`` is called when they are durable.

    ``error`` is why it is refused; it keeps its turn, without records. ``batch`` has its records; where it has none, it
    is the last one of no transaction before it, for the partition.
    """

    __slots__ = ("batch", "error", "partition", "records", "then", "transaction")

    def __init__(
        self, partition: int, records: Sequence[Encoded | Record], then: Then, transaction: ProducerIdAndEpoch | None
    ) -> None:
        self.partition = partition
        self.records = records
        self.then = then
        self.transaction = transaction
        self.error: errors.SeglogError | None = None
        self.batch: _Batch | None = None

    def refuse(self, error: errors.SeglogError) -> None:
        """Write none of its records."""
        self.records, self.error = (), error


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(eq=False, repr=False)
class StateTopic:
    """The topic of a coordinator, created when something is first written: see ``TopicWriter``."""

    _config: LiveConfig
    _clock: Clock
    _table: PartitionTable
    settings: Callable[[], TopicSettings]
    _append_batches: Callable[..., PendingAppends]  # as AppendService does

    def __post_init__(self) -> None:
        self.name = self.settings().name
        self.queue: deque[_Write] = deque()
        self._writes: deque[_Write] = deque()  # taken from the queue, and not called back
        self.is_writing = False
        self.begun: tuple[list[_Batch], PendingAppends] | None = None
        """What the writer is to go on with."""
        self.wanted = trio.Event()
        self.rest = trio.CancelScope()
        """In which the writer waits: until something is wanted, or until writes that were not urgent waited long."""
        self._is_wanted = False  # by something that has begun
        self._encoded_bytes = 0
        """Encoded since other tasks ran."""

    @property
    def partitions(self) -> int:
        """The number of its partitions, or of those that it will be created with."""
        topic = self._table.find_topic(self.name)
        return self.settings().partitions if topic is None else topic.partitions

    @property
    def exists(self) -> bool:
        """True once something was written."""
        return self._table.find_topic(self.name) is not None

    def partition_of(self, key: str) -> int:
        """The partition that has the records of a coordinator key."""
        return partition_of(key, self.partitions)

    def append(
        self,
        key: str,
        records: Sequence[Encoded | Record],
        then: Then,
        transaction: ProducerIdAndEpoch | None = None,
        *,
        is_urgent: bool = True,
    ) -> None:
        """Append the records of a coordinator key as one piece, and call ``then``.

        Callbacks come in the order of these calls. Without records ``then`` is called when all before it is durable.
        What is not urgent is written with what comes next, or alone after LEISURE_SECONDS.

        Records of a ``transaction`` count when its marker says so. Where the transaction has no part in this partition
        ``then`` gets InvalidTransactionStateError, and InvalidProducerEpochError where the producer has a newer epoch.
        """
        number = self.partition_of(key)
        write = _Write(number, records, then, transaction)
        least_size = 0
        for record in records:
            if isinstance(record, Record):
                least_size += record.least_size
        if least_size > (limit := self._batch_bytes_max(number)):
            write.refuse(self._too_large(number, least_size, limit))  # before it is encoded
        self.queue.append(write)
        if is_urgent and Begun.running is not None:
            self._is_wanted = True
        elif is_urgent:
            self.wanted.set()
        else:
            self.rest.deadline = min(self.rest.deadline, trio.current_time() + LEISURE_SECONDS)

    def write_wanted(self, *, at_once: bool) -> None:
        """Have written what is wanted by something that has ``Begun``, and waits.

        ``at_once``, for the broker's only client at the moment: if it is little it is written, and synced, while the
        loop waits. That client gets its answer sooner than by any way past the loop.
        """
        if not self._is_wanted:
            return
        self._is_wanted = False
        if at_once and not self.is_writing and self.begun is None and self._is_little() and self.exists:
            self._write_at_once()
        if self.queue or self.begun is not None:
            self.wanted.set()

    def _is_little(self) -> bool:
        """True if all that is queued is little."""
        size = 0
        for write in self.queue:
            size += HEADER_SIZE
            for record in write.records:
                size += record.least_size if isinstance(record, Record) else len(record[0]) + len(record[1] or b"")
        return size <= AT_ONCE_BYTES

    def _write_at_once(self) -> None:
        self.is_writing = True
        try:
            batches = finished(self.gather())
            pending = self.begin_append(batches)
            if pending.is_written:
                self._table.commits.run_now()
            if (replies := pending.replies) is None:
                self.begun = batches, pending
                return
            self.note_replies(batches, replies)
            if self.rest.deadline != math.inf:  # to set it takes long
                self.rest.deadline = math.inf  # what had waited for others is written
            self.call_back()
        except Exception:
            log.exception("coordinator_write_failed", topic=self.name)
            self.give_up()
        finally:
            self.is_writing = False

    def give_up(self) -> None:
        """Call back for what could not be written for a bug."""
        self.begun = None
        self.call_back(self.not_written(_INTERNAL))

    def refuse_all(self, error: errors.SeglogError) -> None:
        """Call back with ``error`` for all that waits."""
        self._writes += self.queue
        self.queue.clear()
        self.call_back(error)

    def call_back(self, error: errors.SeglogError | None = None) -> None:
        """Take out all writes, each before it is called, so that none is called twice.

        ``error`` is why none of them is written, None if each has its own outcome.
        """
        while self._writes:
            write = self._writes.popleft()
            try:
                write.then(write.error or error or (None if write.batch is None else write.batch.error))
            except Exception:
                log.exception("coordinator_callback_failed", topic=self.name)

    def gather(self) -> Steps[list[_Batch]]:
        """The batches of the first writes that are queued, in their order; those of a partition fit into one."""
        now_ms = self._clock.now_ms()
        batches: list[_Batch] = []
        last: dict[int, _Batch] = {}  # by partition
        plain: dict[int, _Batch] = {}  # by partition: the last one of no transaction
        sizes: dict[int, int] = {}  # by partition: bytes of its batches
        count = 0
        while self.queue:
            write = self.queue[0]
            try:
                records = yield from self._encode(write.records)
                write.records = records
            except Exception:  # a bug: it is refused alone, or it would be tried again for ever
                log.exception("coordinator_write_failed", topic=self.name)
                records = []
                write.refuse(self.not_written(_INTERNAL))
            batch = last.get(write.partition)
            is_other = batch is None or batch.transaction != write.transaction
            size = 0
            for key, value in records:
                size += len(key) + len(value or b"") + RECORD_OVERHEAD
            size_after = sizes.get(write.partition, 0) + size + (HEADER_SIZE if is_other else 0)
            limit = self._batch_bytes_max(write.partition)
            if batch is not None and records and size_after > min(BATCH_BYTES, limit):
                break
            self.queue.popleft()
            self._writes.append(write)
            if HEADER_SIZE + size > limit and records:
                write.refuse(self._too_large(write.partition, size, limit))
            if not write.records:
                write.batch = plain.get(write.partition)
                continue
            if batch is None or is_other:
                batch = last[write.partition] = _Batch(write.partition, write.transaction)
                batches.append(batch)
                if write.transaction is None:
                    plain[write.partition] = batch
            write.batch = batch
            sizes[write.partition] = size_after
            for key, value in records:
                batch.builder.append(now_ms, key, value)
                count += 1
                if count % RECORDS_A_TURN == 0:
                    yield
        return batches

    def _encode(self, records: Iterable[Encoded | Record]) -> Steps[list[Encoded]]:
        """Records as bytes, in turns with other tasks: a large group has several megabytes of them."""
        encoded: list[Encoded] = []
        for record in records:
            if not isinstance(record, Record):
                encoded.append(record)
                continue
            key, value = yield from encode_record(record)
            encoded.append((key, value))
            self._encoded_bytes += len(key) + len(value or b"")
            if self._encoded_bytes >= ENCODED_A_TURN:
                self._encoded_bytes = 0
                yield
        return encoded

    def _batch_bytes_max(self, number: int) -> int:
        partition = self._table.find(self.name, number)
        config = self._config.current.topic_defaults if partition is None else partition.log.config
        return config.max_message_bytes

    def begin_append(self, batches: Sequence[_Batch]) -> PendingAppends:
        """Append batches, as far as that waits for nothing."""
        built = [batch.builder.build() for batch in batches]
        parts = [
            AppendPartition(self.name, batch.partition, len(data)) for batch, data in zip(batches, built, strict=True)
        ]
        request = AppendRequest(parts, ack="disk", create=False)
        payload = memoryview(bytearray(b"".join(built)))
        return self._append_batches([request], [payload], for_broker=True)

    def note_replies(self, batches: Sequence[_Batch], replies: Sequence[AppendReply | errors.SeglogError]) -> None:
        """Note the errors of batches that are not durable."""
        reply = replies[0]
        if isinstance(reply, errors.SeglogError):
            for batch in batches:
                batch.error = self.not_written(reply.message)
            return
        for batch, result in zip(batches, reply.partitions, strict=True):
            if isinstance(result.error, _OF_PRODUCER):
                batch.error = result.error
            elif result.error is not None:
                batch.error = self.not_written(result.error.message)

    def not_written(self, why: str) -> errors.CoordinatorNotAvailableError:
        """The error of writes of which nothing was written, and why."""
        return errors.CoordinatorNotAvailableError(f"nothing could be written to {self.name}, because {why}; try again")

    def _too_large(self, partition: int, size: int, limit: int) -> errors.MessageTooLargeError:
        """The error of a write that is refused for the size of its records."""
        error = errors.MessageTooLargeError(
            f"what is to be written about the {self.settings().noun} has {size:,} bytes; max.message.bytes of"
            f" {self.name} is {limit:,}: raise it",
            size=size,
            limit=limit,
        )
        log.warning("coordinator_records_too_large", topic=self.name, partition=partition, reason=error.message)
        return error


def partition_of(key: str, partitions: int) -> int:
    """The partition for a coordinator key, by Java's hash of it, as in Kafka."""
    return (_found if len(key) > KEPT_CHARACTERS_MAX else _kept)(key, partitions)


def _found(key: str, partitions: int) -> int:
    utf16 = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(utf16), 2):
        value = (31 * value + (utf16[position] << 8 | utf16[position + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


_kept = lru_cache(PARTITIONS_KEPT)(_found)
