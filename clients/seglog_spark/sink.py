"""The sink that Spark sees: batch and streaming writers around ``writing``.

``write`` runs on workers, ``commit`` and ``abort`` on the driver, each with a copy of the writer; what passes between
them is the commit message.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from seglog_spark.catalog import connect, connect_first
from seglog_spark.marks import Writing
from seglog_spark.marks_topic import MarksTopic
from seglog_spark.options import WriteOptions
from seglog_spark.writing import Written, write_rows

_QUERY_ID: Final = "sql.streaming.queryId"
_EPOCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Committed(WriterCommitMessage):
    """What one task wrote, and for which query."""

    query: str | None
    written: Written


class _Writer:
    """What batch and streaming writers do. Made on the driver, where a wrong address is an error soon."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        connect_first(options.server).close()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Committed:
        """Write a task's rows."""
        context = TaskContext.get()
        assert context is not None
        query, epoch = self.identity(context)
        writing = None if query is None else Writing(query, epoch, context.partitionId())
        with connect(self.options.server) as client:
            return Committed(query, write_rows(client, self.options, iterator, writing))

    def identity(self, context: TaskContext) -> tuple[str | None, int]:
        """Query and epoch that rows are marked with; no query: they are not."""
        raise NotImplementedError

    def finish(self, messages: Sequence[WriterCommitMessage | None], epoch: int) -> None:
        """All tasks are done."""
        query = next((message.query for message in messages if isinstance(message, Committed)), None)
        if query is not None:
            with connect(self.options.server) as client:
                MarksTopic(client, self.options).finish(query, epoch)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write."""

    def identity(self, context: TaskContext) -> tuple[str | None, int]:  # noqa: ARG002
        """The job's id, if it has one."""
        return self.options.job_id, 0

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        self.finish(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A log takes nothing back: what was written stays."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write."""

    def identity(self, context: TaskContext) -> tuple[str | None, int]:
        """The query's id, which its checkpoint keeps, and the micro-batch."""
        if self.options.guarantee == "at-least-once":
            return None, 0
        query, epoch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_EPOCH)
        if query is None or epoch is None:
            raise RuntimeError("Spark does not say which micro-batch this is, so effectively-once cannot be kept")
        return query, int(epoch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of the micro-batch are done."""
        self.finish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A log takes nothing back: what was written stays, and is found when the micro-batch is run again."""
