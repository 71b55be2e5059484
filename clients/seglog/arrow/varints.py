"""Encoding of many varints at once, and joins of binary columns, for records and headers."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seglog.arrow.schema import constant
from seglog_protocol.batch_columns import Int64s
from seglog_protocol.record_columns import UInt64s, put_varints, varint_sizes

_NOTHING: Final = constant(pa.binary(), b"")


def varint_columns(*columns: UInt64s) -> pa.Array:
    """A binary column with the concatenated varints of each row."""
    sizes = [varint_sizes(column) for column in columns]
    ends = np.cumsum(np.sum(sizes, axis=0))
    written = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    position = offsets[:-1].astype(np.int64)
    for column, size in zip(columns, sizes, strict=True):
        put_varints(written, position, column, size)
        position += size
    return binary_array(offsets, pa.py_buffer(written))


def joined(*columns: pa.Array | pa.Scalar) -> tuple[Int64s, pa.Buffer]:
    """Binary columns concatenated row by row (null is empty): the starts of the rows and the end, and the buffer."""
    array = pc.binary_join_element_wise(*columns, _NOTHING, null_handling="replace")
    return offsets_of(array), array.buffers()[2]


def offsets_of(array: pa.Array) -> Int64s:
    """The start of each value of a binary or list array in its content, and the end of the last one."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)


def binary_array(offsets: npt.NDArray[np.int32], content: pa.Buffer) -> pa.Array:
    """A binary column without nulls."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), content])
