"""Whether the rows that Spark gave a task are all of its rows.

Where what gives the rows fails, or the executor dies, Spark closes the stream to the Python worker in the middle, and
pyarrow takes that for the end of a stream: a sink sees fewer rows, and no error. That does no harm to one whose result
Spark throws away; it does to one that commits. Behind all rows Spark writes a number that says that it has come to the
end, which PySpark's worker reads when the sink has returned. So it is looked at here, and left where it is.
"""

import struct
import sys
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

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
