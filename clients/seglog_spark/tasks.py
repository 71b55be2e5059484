"""A sink's task, which writes its rows at least once, or by marks in the target at ``effectively-once``.

Rows are encoded many at a time and sent in requests of some megabytes, each answered before the next is sent. When the
connection breaks, the result of a request is unknown, and it is sent again.
"""

import random
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
from seglog_protocol.compression import Codec
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import TopicDescription
from seglog_spark.catalog import PATIENCE_SECONDS
from seglog_spark.fingerprints import MODULUS, Fingerprints, fingerprints, total
from seglog_spark.marks import MARK_BYTES_MAX, Mark, OtherRowsError, Rows, Writing, marked, part_of, without
from seglog_spark.marks_topic import Found, MarksTopic, NextOffsets
from seglog_spark.options import OptionError, WriteOptions

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of batches collected before they are sent."""


@dataclass(slots=True)
class Written:
    """The result of a task: rows, and how many of them were written before.

    ``content`` is the sum of the fingerprints of all rows of a batch job. ``expired_on_arrival`` counts, by topic, rows
    whose timestamps are past the topic's retention.
    """

    rows: int = 0
    skipped: int = 0
    content: int = 0
    expired_on_arrival: Counter[str] = field(default_factory=Counter)

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

    is_done = False
    """Whether all rows are known to be written."""

    def __init__(self, client: Client, options: WriteOptions, pace: Callable[[int], None] | None) -> None:
        self.client = client
        self.options = options
        self.is_job = options.job_id is not None
        self._pace = pace
        self.written = Written()
        self._encoders: dict[str, ArrowEncoder] = {}
        self._pending: list[Pending] = []
        self._pending_bytes = 0
        self._taken = 0
        self._is_checked = False

    def take(self, batch: pa.RecordBatch) -> None:
        """Encode some rows, and send when there is enough to send; count those that were written before."""
        if self.is_done:
            self.written.rows += batch.num_rows
            self.written.skipped += batch.num_rows
            if self.is_job:
                self.written.add_content(total(fingerprints(self.records(batch))))
            return
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
                    self.written.rows += sent.rows[1] - sent.rows[0]
            if failure is not None:
                pause, _ = retries.failed(failure, time.monotonic())
                time.sleep(pause)
            pending = left


class MarkedTask(Task):
    """Writes each row once, by marks; see ``marks``."""

    def __init__(
        self, client: Client, options: WriteOptions, writing: Writing, pace: Callable[[int], None] | None
    ) -> None:
        super().__init__(client, options, pace)
        assert options.topic is not None
        self._writing = writing
        self._target = options.topic
        self._marks = MarksTopic(client, options)
        found = self.describe(options.topic)
        self._batch_bytes = self.batch_bytes(found)
        finished = self._marks.finished(writing.query)
        self.is_done = finished is not None and finished.epoch >= writing.epoch
        self._since: NextOffsets = self._marks.begin(writing) if finished is None else finished.ends
        self._done = Found() if self.is_done else self._marks.written(writing, self._since)
        self._partitions = self._done.partitions or found.partitions
        self._counts: dict[int, int] = {}
        self._contents: dict[int, int] = {}  # of a job's rows so far, by partition
        self._noted = {p: sorted(noted.items(), reverse=True) for p, noted in self._done.contents.items()}

    def encoder(self, topic: str) -> ArrowEncoder:
        """An encoder that places rows without a key deterministically; batches are compressed with their mark."""
        choose = random.Random(self._writing.task).randrange  # noqa: S311 - it is to be foreseen
        room = max(1, self._batch_bytes - MARK_BYTES_MAX)
        return ArrowEncoder(topic, self._partitions, batch_bytes=room, codec=Codec.NONE, choose=choose)

    def prepared(self, topic: str, encoded: EncodedBatch) -> Iterator[Pending]:
        """The parts of an encoded batch that are not in the target, each with a mark."""
        first = self._counts.get(encoded.partition, 0)
        end = self._counts[encoded.partition] = first + encoded.record_count
        contents = self._contents_of(encoded, (first, end)) if self.is_job else None
        left = without((first, end), self._done.rows.get(encoded.partition, ()))
        skipped = encoded.record_count - sum(stop - start for start, stop in left)
        self.written.rows += skipped
        self.written.skipped += skipped
        for start, stop in left:
            is_whole = (start, stop) == (first, end)
            data = encoded.data if is_whole else part_of(encoded.data, (start - first, stop - first))
            content = None if contents is None else int(contents[stop - first - 1])
            mark = Mark(self._writing, stop, self._partitions, content)
            packed = marked(data, mark, self.options.codec)
            if len(packed) > self._batch_bytes:
                packed = marked(data, mark, Codec.NONE)  # incompressible data grows a little
            yield Pending(topic, encoded.partition, (start, stop), packed)

    def _contents_of(self, encoded: EncodedBatch, rows: Rows) -> Fingerprints:
        """Running fingerprints of a job's rows for this partition, per row of a batch. Raises OtherRowsError."""
        partition = encoded.partition
        contents = np.uint64(self._contents.get(partition, 0)) + np.cumsum(fingerprints(encoded.records))
        noted = self._noted.get(partition, [])
        while noted and noted[-1][0] <= rows[1]:
            end, content = noted.pop()
            if int(contents[end - rows[0] - 1]) != content:
                raise self._other_rows(partition)
        self.written.add_content(int(contents[-1]) - self._contents.get(partition, 0))
        self._contents[partition] = int(contents[-1])
        return contents

    def _other_rows(self, partition: int) -> OtherRowsError:
        before = f"wrote other rows to {self._target}-{partition} when it was run before"
        if self.is_job:
            return OtherRowsError(
                f"the job {self._writing.query} {before}: under the same jobId it has to give the same rows in the "
                "same tasks and order, and other rows need a jobId of their own"
            )
        return OtherRowsError(
            f"this micro-batch {before}: effectively-once needs a query that gives the same rows in the same tasks "
            "each time"
        )

    def unsure(self, pending: list[Pending]) -> list[Pending]:
        """The batches whose marks are not in the target."""
        found = self._marks.written(self._writing, self._since).rows
        left = [p for p in pending if without(p.rows, found.get(p.partition, ()))]
        self.written.rows += sum(p.rows[1] - p.rows[0] for p in pending if p not in left)
        return left

    def finish(self) -> Written:
        """Send the rest. Raises OtherRowsError for fewer rows than were written before."""
        written = super().finish()
        for partition, done in self._done.rows.items():
            if max(end for _, end in done) > self._counts.get(partition, 0):
                raise self._other_rows(partition)
        return written
