"""``write_arrow``: the rows of a table, appended to a topic."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from seglog.arrow.columns import check_columns, check_timestamps, new_records
from seglog.arrow.encoding import BATCH_BYTES, ArrowEncoder
from seglog.arrow.reading import ArrowReader
from seglog.client import Client, connect
from seglog.core.accumulator import ProducerBatch
from seglog.core.errors import count_of
from seglog.core.producer_options import ProducerOptions
from seglog.producer import Producer
from seglog_protocol.errors import ClientClosedError, DeliveryFailed, SeglogError
from seglog_protocol.messages import Ack

BUFFER_BYTES: Final = 16 * 1024 * 1024
"""Limit for unacknowledged record batches, in bytes."""

_MERGED_ROWS: Final = 64 * 1024
_MERGED_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """The rows written to one partition: the offsets of the first and the last, and their number.

    Other producers' records may be between them. Offsets are -1 at ack "none", and where a ``Receipt`` has -1.
    """

    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """The result of ``write_arrow``, by partition; ``batch_bytes`` is the size of the record batches as sent.

    ``expired_on_arrival`` counts rows whose timestamps are past the topic's retention, which are deleted soon.
    """

    topic: str
    batches: int
    batch_bytes: int
    partitions: Mapping[int, WrittenRange]
    expired_on_arrival: int = 0

    @property
    def records(self) -> int:
        """Number of rows."""
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
    idempotent: bool = True,
    create: bool = True,
) -> WrittenTable:
    """Append every row of ``table`` to ``topic``; returns when all are acknowledged.

    With ``create`` a missing topic is created if the broker allows that; otherwise raises UnknownTopicError, with the
    nearest name.

    ``client`` is a Client or HOST:PORT. ``table`` is a ``pyarrow.Table``, a RecordBatch, a stream of them, for example
    from ``read_arrow``, or any object with Arrow's stream interface: a DataFrame of pandas or Polars, a relation of
    DuckDB. Its columns are ``value`` and ``key`` (bytes or text), ``timestamp`` (a timestamp with a zone, or whole
    milliseconds; null is none; default: the time of the call), ``partition`` (null: chosen by the key; -1 is refused)
    and ``headers``; ``topic``, ``offset`` and ``timestampType`` are ignored. Drop ``partition`` from a table read from
    a topic with another number of partitions.

    Keys go to the same partitions as with ``Client.producer``, whose parameters the others are. Rows of a partition
    keep their order. A stream is written while it is read, so memory stays bounded. With ``idempotent`` rows that are
    retried after a lost connection are in the log once.

    Raises DeliveryFailed when rows were not acknowledged: the message says how many were written, and nothing is sent
    after a failure. Raises ValueError and TypeError for invalid columns, and UnknownPartitionError; a note says how
    many rows of a stream were written before. Warns (TimestampWarning) of rows whose timestamps are past the topic's
    retention, or look like seconds.
    """
    options = ProducerOptions(
        ack=ack,
        compression=compression,
        compression_level=compression_level,
        batch_bytes=batch_bytes,
        buffer_bytes=BUFFER_BYTES,
        delivery_timeout=delivery_timeout,
        idempotent=idempotent,
        stop_at_failure=True,
        may_create=create,
    )
    schema, rows = _stream_of(table)
    check_columns(schema)
    used = client if isinstance(client, Client) else connect(client)
    try:
        producer = used.make_producer(topic, options)
        try:
            return _Writer(producer).write(rows)
        finally:
            producer.abort(timeout=0)
    finally:
        if used is not client:
            used.close()


def _stream_of(table: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """The schema and the record batches of ``table``. Raises TypeError for unsupported types."""
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


def gathered(batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: int) -> Iterator[pa.Table]:
    """The same rows in tables of so many rows or bytes, and at most a batch more; none without rows."""
    few: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            few.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield pa.Table.from_batches(few)
            few, rows, size = [], 0, 0
    if few:
        yield pa.Table.from_batches(few)


class _Writer:
    """One call of ``write_arrow``; batches are encoded while earlier ones are in flight."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._topic = producer.topic
        options = producer.options
        self._encoder = ArrowEncoder(
            producer.topic,
            producer.partitions,
            batch_bytes=min(options.batch_bytes, producer.batch_bytes_max),
            codec=options.codec,
            level=options.compression_level,
        )
        self._sent: deque[ProducerBatch] = deque()
        self._batches = 0
        self._batch_bytes = 0
        self._expired = 0
        self._written: dict[int, WrittenRange] = {}
        self._failures: list[tuple[str, int, int, SeglogError]] = []

    def write(self, rows: Iterable[pa.RecordBatch]) -> WrittenTable:
        """Write all rows."""
        taken = 0
        try:
            tables = gathered(rows, _MERGED_ROWS, _MERGED_BYTES)
            for batch in chain.from_iterable(table.combine_chunks().to_batches() for table in tables):
                records = new_records(batch, time.time_ns() // 1_000_000, first_row=taken)
                taken += len(records)
                self._expired += check_timestamps(records, self._producer.timestamps)
                for encoded in self._encoder.encode(records):
                    self._batch_bytes += len(encoded.data)
                    self._sent.append(self._producer.send_batch(encoded.partition, encoded.data, encoded.record_count))
                    self._settle()
            self._producer.flush()
            self._settle()
        except BaseException as error:
            self._producer.abort()  # sends nothing more
            self._settle()
            if self._failures and isinstance(error, SeglogError):
                raise self._failure() from self._failures[-1][3]
            if self._written:
                error.add_note(f"seglog: {count_of(self._count(), 'record')} or more were written before")
            raise
        written = dict(sorted(self._written.items()))
        return WrittenTable(self._topic, self._batches, self._batch_bytes, written, self._expired)

    def _settle(self) -> None:
        """Collect the results of the oldest batches."""
        while self._sent and self._sent[0].is_resolved:
            for piece in self._sent.popleft().pieces():
                if piece.error is None:
                    self._note(piece)
                elif not isinstance(piece.error, ClientClosedError):
                    self._failures.append((self._topic, piece.partition, piece.record_count, piece.error))

    def _failure(self) -> DeliveryFailed:
        count = sum(failure[2] for failure in self._failures)
        return DeliveryFailed(
            f"not acknowledged: {count_of(count, 'record')} to {self._topic}; {self._count():,} were written, and "
            f"what follows was not sent; the last cause: {self._failures[-1][3]}",
            failures=self._failures,
        )

    def _count(self) -> int:
        """Number of records written so far."""
        return sum(written.records for written in self._written.values())

    def _note(self, piece: ProducerBatch) -> None:
        self._batches += 1
        first, count = piece.base_offset, piece.record_count
        last = -1 if first < 0 else first + count - 1
        before = self._written.get(piece.partition, WrittenRange(first, last, 0))
        self._written[piece.partition] = WrittenRange(before.first_offset, last, before.records + count)
