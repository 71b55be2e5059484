"""A source of Spark's that costs nothing: Arrow batches from memory. What it reaches no Python source can pass."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.batches import value_of

BATCH_ROWS: Final = 50_000
NAME: Final = "ceiling"


class CeilingSource(DataSource):
    """``rows`` rows of a column ``value`` in ``tasks`` tasks; value ``i`` is that of the row ``i`` modulo 50,000."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return NAME

    def schema(self) -> str:
        """One column."""
        return "value binary"

    def reader(self, schema: StructType) -> "CeilingReader":  # noqa: ARG002 - there is one column
        """A batch read."""
        return CeilingReader(int(self.options["rows"]), int(self.options["tasks"]))


class CeilingReader(DataSourceReader):
    """Gives out the same batch again and again."""

    def __init__(self, rows: int, tasks: int) -> None:
        self.rows = rows
        self.tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """Tasks of equally many rows."""
        return [InputPartition(self.rows // self.tasks) for _ in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        rows = partition.value
        batch = pa.record_batch({"value": pa.array([value_of(number) for number in range(min(rows, BATCH_ROWS))])})
        for start in range(0, rows, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, rows - start))
