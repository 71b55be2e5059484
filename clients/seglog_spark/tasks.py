"""A sink's task, which writes its rows at least once.

Rows are encoded many at a time and sent in requests of some megabytes, each answered before the next is sent. When the
connection breaks, the result of a request is unknown, and it is sent again.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seglog import raw
from seglog.arrow.columns import NewRecords, check_columns, check_timestamps, new_records
from seglog.arrow.encoding import ArrowEncoder, EncodedBatch
from seglog.client import Client
from seglog.core.retries import Retries
from seglog.core.topics import describe_for_producing
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import TopicDescription
from seglog_spark.catalog import PATIENCE_SECONDS
from seglog_spark.fingerprints import MODULUS, fingerprints, total
from seglog_spark.marks import Rows
from seglog_spark.options import OptionError, WriteOptions

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of batches collected before they are sent."""


@dataclass(slots=True)
class Written:
    """The result of a task: rows, rows written before, and first and last offset by (topic, partition).

    ``content`` is the sum of the fingerprints of all rows of a batch job. ``expired_on_arrival`` counts, by topic, rows
    whose timestamps are past the topic's retention.
    """

    rows: int = 0
    skipped: int = 0
    content: int = 0
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    expired_on_arrival: Counter[str] = field(default_factory=Counter)

    def add(self, topic: str, partition: int, first: int, count: int) -> None:
        """Add ``count`` records at offset ``first`` and following; -1 if unknown."""
        self.rows += count
        if first >= 0:
            known = self.offsets.get((topic, partition), (first, first))
            self.offsets[topic, partition] = (min(known[0], first), max(known[1], first + count - 1))

    def add_content(self, content: int) -> None:
        """Add the sum of some rows' fingerprints."""
        self.content = (self.content + content) % MODULUS


@dataclass(slots=True)
class Pending:
    """A batch to send; ``rows`` are its rows among those of the task for this partition."""

    topic: str
    partition: int
    rows: Rows
    data: bytes


class Task:
    """Writes at least once."""

    def __init__(self, client: Client, options: WriteOptions, pace: Callable[[int], None] | None) -> None:
        self.client = client
        self.options = options
        self._pace = pace
        self.written = Written()
        self._encoders: dict[str, ArrowEncoder] = {}
        self._pending: list[Pending] = []
        self._pending_bytes = 0
        self._taken = 0
        self._is_checked = False

    def take(self, batch: pa.RecordBatch) -> None:
        """Encode some rows, and send when there is enough to send."""
        for topic, some in self._by_topic(batch, self.records(batch)):
            encoder = self._encoder(topic)
            expired = check_timestamps(some, self.client.timestamps(topic))
            if expired:
                self.written.expired_on_arrival[topic] += expired
            for encoded in encoder.encode(some):
                for pending in self.prepared(topic, encoded):
                    self._pending.append(pending)
                    self._pending_bytes += len(pending.data)
                    if self._pace is not None or self._pending_bytes >= REQUEST_BYTES:
                        self._send_pending()

    def leave_out(self, batch: pa.RecordBatch) -> None:
        """Count some rows that were written before."""
        self.written.rows += batch.num_rows
        self.written.skipped += batch.num_rows
        if self.options.job_id is not None:
            self.written.add_content(total(fingerprints(self.records(batch))))

    def records(self, batch: pa.RecordBatch) -> NewRecords:
        """The next rows as records."""
        if not self._is_checked:
            check_columns(batch.schema)
            self._is_checked = True
        records = new_records(batch, time.time_ns() // 1_000_000, first_row=self._taken, whole="this task")
        self._taken += len(records)
        return records

    def finish(self) -> Written:
        """Send the rest; returns when all rows are written."""
        self._send_pending()
        return self.written

    def given_up(self, error: BaseException) -> BaseException:
        """Give up because of ``error``; returns the error to raise. What was written stays."""
        return error

    def prepared(self, topic: str, encoded: EncodedBatch) -> Iterator[Pending]:
        """The batches to send for an encoded batch."""
        yield Pending(topic, encoded.partition, (0, encoded.record_count), encoded.data)

    def encoder(self, topic: str) -> ArrowEncoder:
        """A new encoder for a topic."""
        found = self.describe(topic)
        return ArrowEncoder(topic, found.partitions, batch_bytes=self.batch_bytes(found), codec=self.options.codec)

    def describe(self, topic: str) -> TopicDescription:
        """A topic to write to, made if it is missing and may be."""
        may_create = self.options.create_topic and self.client.broker.auto_create_topics
        found = self.client.converse(describe_for_producing(topic, may_create=may_create))
        self.client.timestamps(topic).learn_config(found.config)
        return found

    def batch_bytes(self, topic: TopicDescription) -> int:
        """The size of batches for a topic."""
        return min(self.options.batch_bytes, topic.max_message_bytes, topic.segment_bytes)

    def unsure(self, pending: list[Pending]) -> list[Pending]:
        """The batches to send again after a lost connection."""
        return pending

    def _encoder(self, topic: str) -> ArrowEncoder:
        if topic not in self._encoders:
            self._encoders[topic] = self.encoder(topic)
        return self._encoders[topic]

    def _by_topic(self, batch: pa.RecordBatch, records: NewRecords) -> Iterator[tuple[str, NewRecords]]:
        if self.options.topic is not None:
            yield self.options.topic, records
            return
        if "topic" not in batch.schema.names:
            raise OptionError("where do the rows go? give .option('topic', ...), or a column topic")
        column = batch.column("topic")
        for topic in pc.unique(column).to_pylist():
            if topic is None:
                raise OptionError("a row has null in its column topic, and there is no .option('topic', ...)")
            yield topic, records.take(np.flatnonzero(pc.equal(column, topic)))

    def _send_pending(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if self._pace is not None and pending:
            self._pace(sum(p.rows[1] - p.rows[0] for p in pending))
        self.send(pending)

    def send(self, pending: list[Pending]) -> None:
        """Send batches; returns when they are acknowledged."""
        retries = Retries(PATIENCE_SECONDS)
        while pending:
            failure: SeglogError | None = None
            left: list[Pending] = []
            try:
                batches = [raw.RawBatch(p.topic, p.partition, p.data) for p in pending]
                results = raw.append(self.client, batches, ack=self.options.ack)
            except SeglogError as error:
                pause, _ = retries.failed(error, time.monotonic())
                time.sleep(pause)
                pending = self.unsure(pending)
                continue
            for sent, result in zip(pending, results, strict=True):
                if isinstance(result, SeglogError):
                    left.append(sent)
                    failure = failure if failure is not None and not failure.retriable else result
                else:
                    self.written.add(sent.topic, sent.partition, result.offset, sent.rows[1] - sent.rows[0])
            if failure is not None:
                pause, _ = retries.failed(failure, time.monotonic())
                time.sleep(pause)
            pending = left
