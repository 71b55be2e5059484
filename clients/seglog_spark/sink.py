"""Spark's sink interface: batch and streaming writers around ``writing``.

``write`` runs on workers, ``commit`` and ``abort`` on the driver, each with a copy of the writer; only the commit
message passes between them.

Where the source of the rows fails, or the executor dies, Spark closes the stream to the Python worker in the middle,
and pyarrow takes that for the end of a stream: a sink sees fewer rows, and no error. That does no harm to one whose
result Spark throws away; it does to one that commits. Behind all rows Spark writes a number that says that it has come
to the end, which PySpark's worker reads when the sink has returned. So ``whole`` looks at it, and leaves it where it
is.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from seglog.core.errors import count_of
from seglog_spark.catalog import connect, connect_first
from seglog_spark.fingerprints import MODULUS
from seglog_spark.marks import OtherRowsError, Writing
from seglog_spark.marks_topic import Content, MarksTopic
from seglog_spark.options import OptionError, WriteOptions
from seglog_spark.tasks import Written
from seglog_spark.transactional_tasks import prepare
from seglog_spark.writing import warn_of_expired, write_rows

_QUERY_ID: Final = "sql.streaming.queryId"
_EPOCH: Final = "streaming.sql.batchId"
_ADAPTIVE: Final = ("spark.sql.adaptive.streaming.stateless.enabled", "spark.sql.adaptive.enabled")
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PARTITIONS_BY_DEFAULT: Final = "200"
_ADAPTIVE_STREAMS: Final = (4, 3)
"""The first version of Spark that shares out rows of streams at run time, where both are true, their default."""


@dataclass(frozen=True)
class Committed(WriterCommitMessage):
    """The result of one task, and its query."""

    query: str | None
    written: Written


def _written(messages: list[WriterCommitMessage | None]) -> list[Written]:
    return [message.written for message in messages if isinstance(message, Committed)]


class _Writer:
    """Common part of batch and streaming writers. Made on the driver, which checks address and topic at once."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        with connect_first(options.server) as client:
            if options.topic is not None and not options.create_topic:
                client.describe_topic(options.topic)
            if options.guarantee == "exactly-once":
                prepare(client)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Committed:
        """Write a task's rows."""
        context = TaskContext.get()
        assert context is not None
        query, epoch = self.identity(context)
        writing = None if query is None else Writing(query, epoch, context.partitionId())
        if self.options.guarantee == "exactly-once":
            iterator = whole(iterator)
        with connect(self.options.server) as client:
            if query is not None:
                self.check_tasks(context, MarksTopic(client, self.options), query, epoch)
            return Committed(query, write_rows(client, self.options, iterator, writing))

    def identity(self, context: TaskContext) -> tuple[str | None, int]:
        """Query and epoch for the marks of rows; query None: rows have no marks."""
        raise NotImplementedError

    def check_tasks(self, context: TaskContext, marks: MarksTopic, query: str, epoch: int) -> None:
        """Raise an error where the rows may be in other tasks than when they were written before."""


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write."""

    def identity(self, context: TaskContext) -> tuple[str | None, int]:  # noqa: ARG002
        """The job's id, if it has one."""
        return self.options.job_id, 0

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done; OtherRowsError if the job had been, with other rows."""
        job = self.options.job_id
        written = _written(messages)
        warn_of_expired(written)
        if job is None or not written or self.options.guarantee == "exactly-once":
            return  # with exactly-once the tasks have noted what they wrote
        content = Content(sum(w.rows for w in written), sum(w.content for w in written) % MODULUS)
        with connect(self.options.server) as client:
            marks = MarksTopic(client, self.options)
            before = marks.finished(job)
            if before is None:
                marks.finish(job, 0, content)
            elif before.content is not None and before.content != content:
                raise OtherRowsError(
                    f"the job {job} was finished with {count_of(before.content.rows, 'row')} in {self.options.topic}, "
                    f"and these {content.rows:,} are other ones, of which none was written: give them a jobId of their "
                    "own"
                )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: appended records stay in the log; those of transactions that are not committed do not count."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write."""

    def identity(self, context: TaskContext) -> tuple[str | None, int]:
        """The query's id, which is in its checkpoint, and the micro-batch."""
        guarantee = self.options.guarantee
        if guarantee == "at-least-once":
            return None, 0
        query, epoch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_EPOCH)
        if query is None or epoch is None:
            raise RuntimeError(f"Spark does not say which micro-batch this is, so no row is written {guarantee}")
        return query, int(epoch)

    def check_tasks(self, context: TaskContext, marks: MarksTopic, query: str, epoch: int) -> None:
        """What decides which task has a row behind a shuffle: Spark 4.3 and later keep neither in the checkpoint."""
        version = tuple(int(number) for number in pyspark.__version__.split(".")[:2])
        if version >= _ADAPTIVE_STREAMS and "false" not in map(context.getLocalProperty, _ADAPTIVE):
            raise OptionError(
                f"deliveryGuarantee {self.options.guarantee} needs the same rows in the same tasks when a micro-batch "
                "is run again, and behind a shuffle adaptive execution may share them out otherwise: set "
                f"{_ADAPTIVE[0]} to false, as seglog_spark.session does; no row is written"
            )
        marks.share(query, epoch, context.getLocalProperty(_PARTITIONS) or _PARTITIONS_BY_DEFAULT)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of the micro-batch are done."""
        warn_of_expired(_written(messages))
        query = next((message.query for message in messages if isinstance(message, Committed)), None)
        if query is not None and self.options.guarantee == "effectively-once":
            with connect(self.options.server) as client:
                MarksTopic(client, self.options).finish(query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: appended records stay in the log, and are found when the micro-batch is run again."""


_END_OF_STREAM: Final = struct.pack(">i", -4)
"""``SpecialLengths.END_OF_STREAM`` of PySpark."""


class CutShortError(Exception):
    """The rows of a task ended before their end, or nobody can say whether they did."""


def whole(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, in a worker of PySpark. Raises CutShortError behind the last one, unless Spark says it is that."""
    yield from rows
    stream = _stream_of_worker()
    if stream is None:
        raise CutShortError(
            "this version of PySpark does not show whether a task got all of its rows, so none are committed: write "
            "effectively-once"
        )
    read = stream.peek(len(_END_OF_STREAM))[: len(_END_OF_STREAM)]
    if not read or not _END_OF_STREAM.startswith(read):
        raise CutShortError("what gives this task its rows has failed or was ended, and nothing of the task counts")


def _stream_of_worker() -> Any:
    """What the worker that runs this reads from Spark, found among the variables of its functions; None if it is not.

    PySpark hands it to nobody: it is the ``infile`` of ``pyspark.worker.main``, in newer versions that of a receiver.
    """
    frame = sys._getframe()  # noqa: SLF001 - see above
    while frame is not None:
        variables = frame.f_locals
        for stream in (getattr(variables.get("message_receiver"), "_infile", None), variables.get("infile")):
            if hasattr(stream, "peek"):
                return stream
        frame = frame.f_back  # type: ignore[assignment]
    return None
