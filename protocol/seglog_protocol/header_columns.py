"""The headers of many records at once, as numpy arrays; ``record_columns`` does not decode them.

    headerCount     varint, then for each: key as varint length and UTF-8, value as varint length (-1 none) and bytes

The records are known to be well formed, headers included, so nothing is checked here. Headers are contiguous, as
records are: step k finds the k-th header of every record that has one, and the few records with more headers than the
others are walked one by one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from seglog_protocol.batch_columns import Int64s
from seglog_protocol.checksum import Buffer
from seglog_protocol.record_columns import Octets, RecordColumns

LOCKSTEP_MIN: Final = 16
"""Number of records from which one array step for all is cheaper than plain Python for each."""

_VARINT_BYTES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """The headers of some records, in order; arrays are int64.

    ``first_header`` (one entry more than there are records) holds where those of each record begin and end. Positions
    are byte positions in the records' ``data``; ``value_length`` is -1 for null.
    """

    first_header: Int64s
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s

    def __len__(self) -> int:
        """Number of headers."""
        return len(self.key_start)


def decode_headers(records: RecordColumns, first: int = 0, last: int | None = None) -> HeaderColumns:
    """The headers of records [``first``, ``last``); ``last`` None is the end."""
    octets = Octets(records.data)
    counts, position = _numbers(octets, records.value_end[first:last])
    counts >>= 1
    first_header = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first_header[1:])
    key_start, key_length, value_start, value_length = np.empty((4, int(first_header[-1])), np.int64)
    active, step = np.flatnonzero(counts), 0
    position, to = position[active], first_header[:-1][active]
    while active.size >= LOCKSTEP_MIN:
        length, begin = _numbers(octets, position)
        key_start[to], key_length[to] = begin, length >> 1
        length, begin = _numbers(octets, begin + (length >> 1))
        value_start[to], value_length[to] = begin, np.where(length & 1, -1, length >> 1)
        step += 1
        left = counts[active] > step
        active = active[left]
        position = (begin + np.where(length & 1, 0, length >> 1))[left]
        to = to[left] + 1
    for start, stop, at in zip(to.tolist(), first_header[1:][active].tolist(), position.tolist(), strict=True):
        here = at
        for number in range(start, stop):
            size, here = _number(records.data, here)
            key_start[number], key_length[number] = here, size >> 1
            size, here = _number(records.data, here + (size >> 1))
            value_start[number], value_length[number] = here, -1 if size & 1 else size >> 1
            here += 0 if size & 1 else size >> 1
    return HeaderColumns(first_header, key_start, key_length, value_start, value_length)


def _numbers(octets: Octets, position: Int64s) -> tuple[Int64s, Int64s]:
    return octets.varints(position, _VARINT_BYTES_MAX, np.zeros(len(position), np.bool_))


def _number(data: Buffer, position: int) -> tuple[int, int]:
    """The varint at ``position``, still zigzag, and the position after it."""
    number, shift = 0, 0
    while True:
        octet = data[position]
        position += 1
        number |= (octet & 0x7F) << shift
        shift += 7
        if octet <= 0x7F:
            return number & 0xFFFFFFFF, position
