"""``write_arrow``: the rows of a table, appended to a topic."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final

import pyarrow as pa

from seglog import raw
from seglog.arrow.columns import check_columns, new_records
from seglog.arrow.encoding import BATCH_BYTES, ArrowEncoder, EncodedBatch
from seglog.arrow.reading import ArrowReader
from seglog.client import Client, connect
from seglog.delivery import Receipt
from seglog.dialing import backoff_seconds
from seglog.sending import ProducerOptions
from seglog.topics import describe_for_producing
from seglog.words import count_of
from seglog_protocol.errors import ClientTimeoutError, DeliveryFailed, MessageTooLargeError, SeglogError
from seglog_protocol.messages import Ack, TopicDescription

REQUEST_BYTES: Final = 8 * 1024 * 1024

_MERGED_ROWS: Final = 64 * 1024
_MERGED_BYTES: Final = 8 * 1024 * 1024

_Result = Receipt | SeglogError


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """What became of the rows of one partition: the offsets of the first and the last, and how many they are.

    Other producers' records may lie between them. Offsets are -1 at ack "none".
    """

    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """What ``write_arrow`` has written, by partition; ``batch_bytes`` counts record batches as they were sent."""

    topic: str
    batches: int
    batch_bytes: int
    partitions: Mapping[int, WrittenRange]

    @property
    def records(self) -> int:
        """Rows in all."""
        return sum(written.records for written in self.partitions.values())


def write_arrow(
    client: Client | str,
    topic: str,
    table: Any,
    *,
    ack: Ack = "disk",
    compression: str = "none",
    compression_level: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    delivery_timeout: float = 120.0,
) -> WrittenTable:
    """Append every row of ``table`` to ``topic``, created if the broker does that; returns when all are acknowledged.

    ``client`` is a Client or HOST:PORT. ``table`` is a ``pyarrow.Table``, a RecordBatch, a stream of them such as
    ``read_arrow`` gives, or whatever else speaks Arrow's stream interface: a DataFrame of pandas or Polars, a relation
    of DuckDB. Its columns are ``value`` and ``key`` (bytes or text), ``timestamp`` (a timestamp with a zone, or whole
    milliseconds; null is none; without the column the time of the call), ``partition`` (null: where the key belongs)
    and ``headers``; ``topic``, ``offset`` and ``timestampType`` may be there and mean nothing. Leave out ``partition``
    of what was read from a topic with other partitions.

    Keys go to the partition that ``Client.producer`` gives them; the other parameters are its, too. Rows of a partition
    keep their order. A stream is read as it is written, so memory stays bounded. A batch that is sent again after a
    lost connection may be in the log twice: at least once.

    Raises DeliveryFailed when rows were not acknowledged: the message says how many were before them, and of what
    follows nothing was sent. ValueError and TypeError for columns that cannot be written, UnknownPartitionError; a note
    says how many rows of a stream were written before the one that cannot be.
    """
    options = ProducerOptions(
        ack=ack,
        compression=compression,
        compression_level=compression_level,
        batch_bytes=batch_bytes,
        delivery_timeout=delivery_timeout,
    )
    schema, rows = _stream_of(table)
    check_columns(schema)
    used = client if isinstance(client, Client) else connect(client)
    try:
        description = used.converse(describe_for_producing(topic, may_create=used.broker.auto_create_topics))
        return _Writer(used, description, options).write(rows)
    finally:
        if used is not client:
            used.close()


def _stream_of(table: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """The schema and the record batches of what may be written."""
    if isinstance(table, ArrowReader | pa.RecordBatchReader):
        return table.schema, table
    if isinstance(table, pa.RecordBatch):
        return table.schema, [table]
    if isinstance(table, pa.Table):
        return table.schema, table.to_batches()
    if hasattr(table, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(table)
        return reader.schema, reader
    raise TypeError(f"a table to write speaks Arrow's stream interface, which {type(table).__name__} does not")


def _merged(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in record batches that are worth encoding."""
    few: list[pa.RecordBatch] = []
    count = size = 0
    for batch in rows:
        if not batch.num_rows:
            continue
        few.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= _MERGED_ROWS or size >= _MERGED_BYTES:
            yield from _one(few)
            few, count, size = [], 0, 0
    yield from _one(few)


def _one(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
    elif batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


# --- Sending ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Request:
    """Batches that are sent together."""

    batches: list[EncodedBatch] = field(default_factory=list)
    size: int = 0


class _Writer:
    """One call of ``write_arrow``: while one request is on its way, the next is made."""

    def __init__(self, client: Client, topic: TopicDescription, options: ProducerOptions) -> None:
        self._client = client
        self._topic = topic.name
        self._options = options
        self._message_bytes_max = min(topic.max_message_bytes, topic.segment_bytes)
        self._encoder = ArrowEncoder(
            topic.name,
            topic.partitions,
            batch_bytes=min(options.batch_bytes, self._message_bytes_max),
            codec=options.codec,
            level=options.compression_level,
        )
        self._batches = 0
        self._batch_bytes = 0
        self._written: dict[int, WrittenRange] = {}
        self._is_ending = Event()  # nothing is sent again any more

    def write(self, rows: Iterable[pa.RecordBatch]) -> WrittenTable:
        """Write them all."""
        with ThreadPoolExecutor(1, "seglog-write-arrow") as sender:
            on_the_way: tuple[_Request, Future[list[_Result]]] | None = None
            try:
                for request in self._requests(rows):
                    if on_the_way is not None:
                        self._settle(*on_the_way)
                    on_the_way = request, sender.submit(self._send, request.batches)
                if on_the_way is not None:
                    self._settle(*on_the_way)
            except BaseException as error:
                self._is_ending.set()
                if self._written and not isinstance(error, DeliveryFailed):
                    error.add_note(f"seglog: {count_of(self._count(), 'record')} or more were written before")
                raise
        return WrittenTable(self._topic, self._batches, self._batch_bytes, dict(sorted(self._written.items())))

    def _requests(self, rows: Iterable[pa.RecordBatch]) -> Iterator[_Request]:
        request = _Request()
        for batch in _merged(rows):
            for encoded in self._encoder.encode(new_records(batch, time.time_ns() // 1_000_000)):
                if request.batches and request.size + len(encoded.data) > REQUEST_BYTES:
                    yield request
                    request = _Request()
                request.batches.append(encoded)
                request.size += len(encoded.data)
        if request.batches:
            yield request

    def _send(self, batches: Sequence[EncodedBatch]) -> list[_Result]:
        """What became of each batch; those that may fare better later are sent again for as long as that is allowed."""
        results: list[_Result] = [self._too_large(batch) for batch in batches]
        waiting = [number for number, batch in enumerate(batches) if len(batch.data) <= self._message_bytes_max]
        deadline = time.monotonic() + self._options.delivery_timeout
        attempts = 0
        while waiting:
            for number, result in zip(waiting, self._append([batches[number] for number in waiting]), strict=True):
                results[number] = result
            waiting = [number for number in waiting if _may_fare_better(results[number])]
            pause = backoff_seconds(attempts)
            if waiting and (time.monotonic() + pause >= deadline or self._is_ending.wait(pause)):
                break
            attempts += 1
        return results

    def _append(self, batches: Sequence[EncodedBatch]) -> Sequence[_Result]:
        ready = [raw.RawBatch(self._topic, batch.partition, batch.data) for batch in batches]
        try:
            return raw.append(self._client, ready, ack=self._options.ack)
        except SeglogError as error:
            return [error] * len(batches)

    def _too_large(self, batch: EncodedBatch) -> MessageTooLargeError:
        size, limit = len(batch.data), self._message_bytes_max
        return MessageTooLargeError(
            f"{size:,} bytes are more than a batch of {self._topic} may have ({limit:,}, the smaller of "
            "max.message.bytes and segment.bytes)",
            size=size,
            limit=limit,
        )

    def _settle(self, request: _Request, sent: Future[list[_Result]]) -> None:
        """Take note of what was written; DeliveryFailed for what was not."""
        failures: list[tuple[str, int, int, Exception]] = []
        for batch, result in zip(request.batches, sent.result(), strict=True):
            if isinstance(result, Receipt):
                self._note(batch, result.offset)
            else:
                failures.append((self._topic, batch.partition, batch.record_count, result))
        if failures:
            count = sum(failure[2] for failure in failures)
            cause = failures[-1][3]
            raise DeliveryFailed(
                f"not acknowledged: {count_of(count, 'record')} to {self._topic}; {self._count():,} were written, and "
                f"what follows was not sent; the last cause: {cause}",
                failures=failures,
            ) from cause

    def _count(self) -> int:
        """Records written so far."""
        return sum(written.records for written in self._written.values())

    def _note(self, batch: EncodedBatch, offset: int) -> None:
        self._batches += 1
        self._batch_bytes += len(batch.data)
        last = -1 if offset < 0 else offset + batch.record_count - 1
        before = self._written.get(batch.partition, WrittenRange(offset, last, 0))
        self._written[batch.partition] = WrittenRange(before.first_offset, last, before.records + batch.record_count)


def _may_fare_better(result: _Result) -> bool:
    return not isinstance(result, Receipt) and (result.retriable or isinstance(result, ClientTimeoutError))
