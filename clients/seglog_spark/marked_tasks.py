"""A sink's task at ``effectively-once``: marks in the target say which of its rows are there. See ``marks``."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from seglog.arrow.encoding import ArrowEncoder, EncodedBatch
from seglog.client import Client
from seglog_protocol.compression import Codec
from seglog_spark.fingerprints import Fingerprints, fingerprints
from seglog_spark.marks import MARK_BYTES_MAX, Mark, OtherRowsError, Rows, Writing, marked, part_of, without
from seglog_spark.marks_topic import Found, MarksTopic, NextOffsets
from seglog_spark.options import WriteOptions
from seglog_spark.tasks import Pending, Task, Written


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
        self._is_finished = finished is not None and finished.epoch >= writing.epoch
        self._since: NextOffsets = self._marks.begin(writing) if finished is None else finished.ends
        self._done = Found() if self._is_finished else self._marks.written(writing, self._since)
        self._partitions = self._done.partitions or found.partitions
        self._counts: dict[int, int] = {}
        self._is_job = options.job_id is not None
        self._contents: dict[int, int] = {}  # of a job's rows so far, by partition
        self._noted = {p: sorted(noted.items(), reverse=True) for p, noted in self._done.contents.items()}

    def take(self, batch: pa.RecordBatch) -> None:
        """Send some rows, or leave them out where their micro-batch is noted as finished."""
        if self._is_finished:
            self.leave_out(batch)
        else:
            super().take(batch)

    def encoder(self, topic: str) -> ArrowEncoder:
        """An encoder that places rows without a key deterministically; batches are compressed with their mark."""
        choose = random.Random(self._writing.task).randrange  # noqa: S311 - it is to be foreseen
        room = max(1, self._batch_bytes - MARK_BYTES_MAX)
        return ArrowEncoder(topic, self._partitions, batch_bytes=room, codec=Codec.NONE, choose=choose)

    def prepared(self, topic: str, encoded: EncodedBatch) -> Iterator[Pending]:
        """The parts of an encoded batch that are not in the target, each with a mark."""
        first = self._counts.get(encoded.partition, 0)
        end = self._counts[encoded.partition] = first + encoded.record_count
        contents = self._contents_of(encoded, (first, end)) if self._is_job else None
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
        if self._is_job:
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
