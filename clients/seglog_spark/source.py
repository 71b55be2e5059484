"""Spark's data source interface: ``spark.read.format("seglog")``, ``readStream``, ``write``, ``writeStream``.

Spark creates these objects in processes of its own and pickles them, so they hold options and no connections; the work
is in ``plans``, ``reading`` and ``sink``. The last two need numpy and pyarrow and are imported only where rows are
processed, because most of those processes only plan, and exit after one request.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from seglog_spark.catalog import Catalog, LocalCatalog, Log, connect_first
from seglog_spark.filters import Operator, Wanted
from seglog_spark.group_progress import GroupProgress
from seglog_spark.offsets import OffsetRange, Offsets, from_spark, to_spark
from seglog_spark.options import OptionError, ReadOptions, parse_read_options, parse_write_options, wants_headers
from seglog_spark.plans import StreamPlan, plan_batch
from seglog_spark.python_daemon import end_quietly
from seglog_spark.schema import check_columns, ddl

if TYPE_CHECKING:
    import pyarrow as pa

    from seglog_spark.sink import BatchWriter, StreamWriter

_logger = logging.getLogger(__name__)

end_quietly()  # this may be a worker of Spark's, which imports this module for the source

_OPERATORS: Final[dict[type[Filter], Operator]] = {
    EqualTo: "=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    IsNotNull: "is not null",
}


class SeglogDataSource(DataSource):
    """Topics of a seglog broker, or of a log directory. Options are checked when a reader or writer is made of them."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "seglog"

    def schema(self) -> str:
        """The default schema of a read."""
        return ddl(include_headers=wants_headers(self.options))

    def reader(self, schema: StructType) -> "BatchReader":
        """A batch read."""
        options = parse_read_options(self.options, "batch")
        kind = PushdownBatchReader if options.pushdown else BatchReader
        return kind(options, _columns(schema, options))

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        """A streaming read."""
        options = parse_read_options(self.options, "stream")
        return StreamReader(options, _columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":  # noqa: ARG002 - rows say what they have
        """A batch write."""
        from seglog_spark.sink import BatchWriter  # noqa: PLC0415 - see the module's first lines

        if overwrite:
            raise OptionError("a topic is only ever appended to: write with .mode('append')")
        return BatchWriter(parse_write_options(self.options, "batch"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: ARG002, N802
        """A streaming write."""
        from seglog_spark.sink import StreamWriter  # noqa: PLC0415 - the same

        if overwrite:
            raise OptionError("a topic is only ever appended to: write with .outputMode('append')")
        return StreamWriter(parse_write_options(self.options, "stream"))


def _columns(schema: StructType, options: ReadOptions) -> tuple[str, ...]:
    columns = [(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields]
    return check_columns(columns, include_headers=options.include_headers)


def _log(options: ReadOptions, opened: ExitStack) -> Log:
    """The look-ups for planning; a connection to a broker is closed with ``opened``."""
    if isinstance(options.server, Path):
        return LocalCatalog(options.server, durable_only=options.durable_only, isolation=options.isolation)
    client = opened.enter_context(connect_first(options.server))
    return Catalog(client, durable_only=options.durable_only, isolation=options.isolation)


class _Reader:
    """Common part of batch and stream readers, on a worker."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of a task; Spark creates one task without a range if there is nothing to read."""
        from seglog_spark.reading import RangeReader  # noqa: PLC0415 - see the module's first lines

        options, wanted = self.options, partition.value
        if isinstance(wanted, OffsetRange):
            ranges = RangeReader(
                options.server, self.columns, options.fail_on_data_loss, options.durable_only, options.isolation
            )
            yield from ranges.read(wanted)


class BatchReader(_Reader, DataSourceReader):
    """A batch read; its ranges are fixed when Spark asks for partitions."""

    wanted = Wanted()

    def partitions(self) -> list[InputPartition]:
        """A task for each range."""
        with ExitStack() as opened:
            log = _log(self.options, opened)
            return [InputPartition(found) for found in plan_batch(log, self.options, self.wanted)]


class PushdownBatchReader(BatchReader):
    """A batch read with filter pushdown, for filters that ranges apply exactly.

    A separate class, because Spark refuses a reader with ``pushFilters`` unless its configuration allows pushdown.
    """

    def pushFilters(self, filters: Sequence[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Apply the filters that ranges can apply; returns the others, for Spark."""
        for offered in filters:
            narrowed = self._narrowed(offered)
            if narrowed is None:
                yield offered
            else:
                self.wanted = narrowed

    def _narrowed(self, offered: Filter) -> Wanted | None:
        operator = _OPERATORS.get(type(offered))
        column: tuple[str, ...] = getattr(offered, "attribute", ())
        if operator is None or len(column) != 1:
            return None
        values = offered.value if isinstance(offered, In) else (getattr(offered, "value", None),)
        return self.wanted.narrowed(column[0], operator, values)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Only the copy in the driver's long-lived process plans offsets."""

    _plan: StreamPlan | None = None
    _progress: GroupProgress | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        """The state without the fields of this process."""
        return {name: value for name, value in self.__dict__.items() if name not in {"_plan", "_progress"}}

    def _planned(self) -> StreamPlan:
        if self._plan is None:
            self._plan = StreamPlan(_log(self.options, ExitStack()), self.options)
        return self._plan

    def _commit(self, done: Offsets) -> None:
        """Commit progress to the group of the options, if there is one; a failure is only logged."""
        group, server = self.options.group, self.options.server
        if group is None or isinstance(server, Path):
            return
        if self._progress is None:
            self._progress = GroupProgress(connect_first(server), group)
        sentence = self._progress.commit(done)
        if sentence is not None:
            _logger.warning("%s", sentence)

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        return to_spark(self._planned().initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The strictest limit of the options; ``latestOffset`` applies them all."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit
    ) -> dict[str, dict[str, int]]:
        """The end of the next micro-batch."""
        # Spark calls ``commit`` one micro-batch later, and not at all for the last one of a run. Here ``start`` is the
        # end of what is done.
        self._commit(from_spark(start))
        is_limited = not isinstance(limit, ReadAllAvailable)
        return to_spark(self._planned().next_end(from_spark(start), is_limited=is_limited))

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """The actual ends, from which Spark's progress computes the lag."""
        return to_spark(self._planned().latest())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Exclude records appended from now on from this run."""
        self._planned().stop_at_latest()

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> list[InputPartition]:
        """A task for each range of a micro-batch."""
        return [InputPartition(found) for found in self._planned().tasks(from_spark(start), from_spark(end))]
