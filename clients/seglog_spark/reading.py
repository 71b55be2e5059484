"""Reading of an offset range as Arrow batches: the work of a task, on any machine that reaches the broker or its files.

A range is read to its end, or the task fails with DataLossError because records were deleted, unless losses are
accepted. Offsets removed by compaction are not a loss; the reason of every gap comes from the broker or its files.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from seglog.arrow import read_arrow
from seglog.arrow.fitting import Misfit
from seglog.client import Client
from seglog.core.records import ConsumerGap
from seglog_protocol.errors import CorruptRecordError, OffsetOutOfRangeError
from seglog_protocol.isolation import READ_UNCOMMITTED, Isolation
from seglog_spark.catalog import connect
from seglog_spark.offsets import OffsetRange
from seglog_spark.planning import GOING_ON, DataLossError
from seglog_spark.servers import Server

ROWS_MAX: Final = 16_384
"""Rows per batch for Spark: fewer are slower to transfer, and more do not stay in the processor's cache."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges from the broker at ``server``, or from a log directory; pickled to workers."""

    server: Server | Path
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    durable_only: bool = False
    isolation: Isolation = READ_UNCOMMITTED
    on_gap: Callable[[ConsumerGap], None] | None = None
    """Called with every gap, including those that are not a loss."""
    on_misfit: Callable[[Misfit], None] | None = None
    """Called with records whose timestamp is beyond microseconds, and null; None: that is a loss of the record."""

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """All records of the range, with ``columns``. Raises DataLossError, and the client's errors."""
        position = wanted.start
        with nullcontext(self.server) if isinstance(self.server, Path) else connect(self.server) as client:
            while True:
                try:
                    position = yield from self._read(client, wanted, position)
                    break
                except OffsetOutOfRangeError as error:
                    raise _lost(wanted, error.message) from error
                except CorruptRecordError as error:
                    self._lose(wanted, error.message)
                    if error.next_offset <= position:
                        raise
                    position = error.next_offset
        if position < wanted.end:
            self._lose(wanted, f"the log ends at {position}")

    def _read(self, client: Client | Path, wanted: OffsetRange, position: int) -> Generator[pa.RecordBatch, None, int]:
        number = wanted.partition
        with read_arrow(
            client,
            wanted.topic,
            partitions=[number],
            since={number: position},
            until={number: wanted.end},
            columns=self.columns,
            batch_rows=ROWS_MAX,
            durable_only=self.durable_only,
            isolation=self.isolation,
            on_out_of_range="error" if self.fail_on_data_loss else "earliest",
            on_gap=lambda gap: self._meet(wanted, gap),
            on_misfit=self.on_misfit or (lambda misfit: self._lose(wanted, f"{misfit.offset} is {misfit.reason}")),
        ) as reader:
            yield from reader
            return reader.positions()[number]

    def _meet(self, wanted: OffsetRange, gap: ConsumerGap) -> None:
        if self.on_gap is not None:
            self.on_gap(gap)
        if gap.reason != "compacted":
            self._lose(wanted, f"offsets {gap.start} to {gap.end - 1} are {gap.reason}")

    def _lose(self, wanted: OffsetRange, why: str) -> None:
        """Raise, or go on where that is accepted."""
        if self.fail_on_data_loss:
            raise _lost(wanted, why)
        _log.warning("records of %s are lost: %s", wanted, why)


def _lost(wanted: OffsetRange, why: str) -> DataLossError:
    return DataLossError(f"offsets of {wanted} cannot all be read: {why.rstrip('.')}. {GOING_ON}")
