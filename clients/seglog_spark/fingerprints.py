"""Fingerprints of rows, by which a repeated job detects that its rows differ from those of the first run.

A row's fingerprint depends on its key, value, headers and requested partition, not on its batch. The timestamp is left
out, because rows without one get the time of writing. A set of rows is identified by the sum of its fingerprints, in
any order. Numbers have 64 bits and wrap; they detect mistakes, not forgeries.

The bytes of a column are terms of one polynomial, byte i times M to the power of i: the difference of two running sums,
divided by the power at its start, depends on a row's bytes alone. So there is no Python step per row.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.arrow.columns import NewRecords
from seglog.arrow.varints import binary_array, offsets_of
from seglog_protocol.batch_columns import Int64s

Fingerprints = npt.NDArray[np.uint64]

MODULUS: Final = 1 << 64

BLOCK_BYTES: Final = 64 * 1024
"""Bytes processed at a time; their terms take eight times as much memory."""

_MULTIPLIER: Final = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_INVERSE: Final[int] = pow(_MULTIPLIER, -1, MODULUS)
_POWERS: Final[Fingerprints] = np.cumprod(np.full(BLOCK_BYTES, _MULTIPLIER, np.uint64), dtype=np.uint64)
_INVERSE_POWERS: Final[Fingerprints] = np.cumprod(np.full(BLOCK_BYTES, _INVERSE, np.uint64), dtype=np.uint64)
_BLOCK_INVERSE: Final = _INVERSE_POWERS[-1]
_NO_HEADERS: Final = binary_array(np.array([0, 1], np.int32), pa.py_buffer(b"\x00"))  # as encoded in a record


def fingerprints(records: NewRecords) -> Fingerprints:
    """One number for each record."""
    found = _mixed(records.partition.astype(np.uint64))
    for column, lengths in ((records.key, records.key_length), (records.value, records.value_length)):
        found = _mixed(found + _contents(column, lengths))
    headers = _NO_HEADERS if records.headers is None else records.headers
    return _mixed(found + _contents(headers, np.diff(offsets_of(headers))))


def total(found: Fingerprints) -> int:
    """The fingerprint of a set of records, in any order."""
    return int(found.sum(dtype=np.uint64))


def _contents(column: pa.Array | None, lengths: Int64s) -> Fingerprints:
    """A number for the bytes of each value; ``lengths`` distinguish null from empty."""
    if column is None:
        return _mixed(lengths.astype(np.uint64))
    edges = offsets_of(column)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)[edges[0] : edges[-1]]
    edges -= edges[0]
    sums = _running(data, edges)
    blocks, positions = np.divmod(edges[:-1], BLOCK_BYTES)
    moved = (sums[1:] - sums[:-1]) * _INVERSE_POWERS[positions]
    if len(data) >= BLOCK_BYTES:
        moved *= np.power(_BLOCK_INVERSE, blocks.astype(np.uint64))
    return _mixed(moved + lengths.astype(np.uint64))


def _running(data: npt.NDArray[np.uint8], edges: Int64s) -> Fingerprints:
    """The sum of all terms before each of ``edges``, which ascend."""
    sums = np.zeros(len(edges), np.uint64)
    before, scale = 0, 1
    for first in range(0, len(data), BLOCK_BYTES):
        block = data[first : first + BLOCK_BYTES]
        begin, end = np.searchsorted(edges, (first, first + len(block)), side="right")
        inside = edges[begin:end] - first
        within = inside[: np.searchsorted(inside, len(block))]
        cuts = np.concatenate(([0], within[np.diff(within, prepend=0) > 0]))
        running = np.zeros(len(cuts) + 1, np.uint64)
        np.cumsum(np.add.reduceat(block * _POWERS[: len(block)], cuts), out=running[1:])
        sums[begin:end] = np.uint64(before) + np.uint64(scale) * running[np.searchsorted(cuts, inside)]
        before = (before + scale * int(running[-1])) % MODULUS
        scale = scale * int(_POWERS[-1]) % MODULUS
    return sums


def _mixed(numbers: Fingerprints) -> Fingerprints:
    """The finalizer of SplitMix64, which mixes all bits, so that sums and swaps do not cancel out."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
