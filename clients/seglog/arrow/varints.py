"""Encoding of many varints at once, and joins of binary columns, for records and headers."""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seglog.arrow.schema import constant
from seglog_protocol.batch_columns import Int64s

UInt64s: TypeAlias = npt.NDArray[np.uint64]

VARLONG_BYTES_MAX: Final = 10

_NOTHING: Final = constant(pa.binary(), b"")


def zigzag(numbers: Int64s) -> UInt64s:
    """The zigzag encoding: small numbers of either sign become small unsigned numbers."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def varint_sizes(numbers: UInt64s) -> Int64s:
    """The size of each number's varint in bytes."""
    sizes = np.ones(len(numbers), np.int64)
    largest = int(numbers.max()) if len(numbers) else 0
    for groups in range(1, VARLONG_BYTES_MAX):
        if largest < 1 << 7 * groups:
            break
        sizes += numbers >= np.uint64(1 << 7 * groups)
    return sizes


def varint_columns(*columns: UInt64s) -> pa.Array:
    """A binary column with the concatenated varints of each row."""
    sizes = [varint_sizes(column) for column in columns]
    ends = np.cumsum(np.sum(sizes, axis=0))
    written = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    position = offsets[:-1].astype(np.int64)
    for column, size in zip(columns, sizes, strict=True):
        _write(written, position, column, size)
        position += size
    return binary_array(offsets, pa.py_buffer(written))


def _write(written: npt.NDArray[np.uint8], position: Int64s, numbers: UInt64s, sizes: Int64s) -> None:
    longest = int(sizes.max()) if len(sizes) else 0
    if longest <= 1:
        written[position] = numbers
        return
    low = (numbers & np.uint64(0x7F)).astype(np.uint8)
    written[position] = low | (sizes > 1).astype(np.uint8) << 7
    for group in range(1, longest):
        which = np.flatnonzero(sizes > group)
        low = (numbers[which] >> np.uint64(7 * group) & np.uint64(0x7F)).astype(np.uint8)
        written[position[which] + group] = low | (sizes[which] > group + 1).astype(np.uint8) << 7


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
