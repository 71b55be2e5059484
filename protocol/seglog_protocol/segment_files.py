"""Names of segment files, and the two index formats: entries, search and sanity checks, over plain bytes.

Every reader of a partition directory, the broker's index modules included, uses this module, so that each format is
defined once. No file is opened here: buffers come in (bytes, or an mmap that is only addressed, never sliced).

    <stem>.log        record batches, contiguous                  stem = base offset, 20 decimal digits
    <stem>.index      int32 relative offset, int32 position        8 bytes an entry, both rising
    <stem>.timeindex  int64 timestamp, int32 relative offset       12 bytes an entry, timestamps rising
    <stem>.checksum   size and checksum of the .log                seglog's own, see the broker's segment_checksum
    <stem>.awaited    the .log is a hole of its size yet           seglog's own, see the broker's segment.awaited

An offset entry holds the *last* offset of a batch and the position where that batch *begins*. A time entry (t, o) means
that no record at an offset <= o has a timestamp above t. Neither has a checksum, because both can be rebuilt from the
log.
"""

import struct
from collections.abc import Callable, Iterator
from mmap import mmap
from typing import Any, Final, NamedTuple

Buffer = bytes | bytearray | memoryview | mmap

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
CHECKSUM_SUFFIX: Final = ".checksum"
AWAITED_SUFFIX: Final = ".awaited"
SEGMENT_SUFFIXES: Final = (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    CHECKSUM_SUFFIX,
    AWAITED_SUFFIX,
)
"""Files of one segment, in the order in which they are renamed and deleted."""

DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
TEMPORARY_SUFFIX: Final = ".tmp"

PARTITION_STATE_FILE: Final = "seglog-partition.json"
"""Beside the segments of a partition: the state for which Kafka has no file."""

OFFSET_MAX: Final = 2**63 - 1

TIMESTAMP_MAX: Final = 2**63 - 1

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""Largest offset relative to a segment's base: entries are int32."""

_STEM_DIGITS: Final = 20

OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")
OFFSET_FIELD: Final = struct.Struct(">i")
TIME_FIELD: Final = struct.Struct(">q")
"""The fields of entries that are searched: relative offsets and positions, and timestamps."""


def segment_file_name(base_offset: int, suffix: str) -> str:
    """``00000000000000000042.log`` for 42 and ".log", so that ``ls`` lists segments in offset order."""
    return f"{base_offset:0{_STEM_DIGITS}d}{suffix}"


def parse_segment_file_name(name: str) -> tuple[int, str] | None:
    """(base offset, everything from the first dot on), or None when the name is not a segment file's."""
    stem, suffix = name[:_STEM_DIGITS], name[_STEM_DIGITS:]
    if len(suffix) < 2 or suffix[0] != "." or "\n" in suffix or not (stem.isascii() and stem.isdigit()):
        return None  # no regular expression, for speed: a start parses the name of every file
    base_offset = int(stem)
    return None if base_offset > OFFSET_MAX else (base_offset, suffix)


class OffsetEntry(NamedTuple):
    """One entry of an offset index, relative to the segment's base offset."""

    relative_offset: int
    position: int


class TimeEntry(NamedTuple):
    """One entry of a time index, relative to the segment's base offset."""

    timestamp: int
    relative_offset: int


def encode_offset_entry(relative_offset: int, position: int) -> bytes:
    """The 8 bytes of an offset index entry."""
    return OFFSET_ENTRY.pack(relative_offset, position)


def encode_time_entry(timestamp: int, relative_offset: int) -> bytes:
    """The 12 bytes of a time index entry."""
    return TIME_ENTRY.pack(timestamp, relative_offset)


def offset_entry(data: Buffer, number: int) -> OffsetEntry:
    """Entry ``number``, counted from 0."""
    return OffsetEntry._make(OFFSET_ENTRY.unpack_from(data, number * OFFSET_ENTRY.size))


def time_entry(data: Buffer, number: int) -> TimeEntry:
    """Entry ``number``, counted from 0."""
    return TimeEntry._make(TIME_ENTRY.unpack_from(data, number * TIME_ENTRY.size))


def offset_entries(data: Buffer) -> Iterator[OffsetEntry]:
    """All whole entries."""
    return (offset_entry(data, number) for number in range(len(data) // OFFSET_ENTRY.size))


def time_entries(data: Buffer) -> Iterator[TimeEntry]:
    """All whole entries."""
    return (time_entry(data, number) for number in range(len(data) // TIME_ENTRY.size))


Unpack = Callable[[Buffer, int], tuple[Any, ...]]
"""Reads a field at a position (bytes), as ``struct.Struct.unpack_from``: once for each entry that a search looks at."""


def find_offset_floor(
    data: Buffer, count: int, relative_offset: int, *, low: int = 0, unpack: Unpack = OFFSET_FIELD.unpack_from
) -> int:
    """Number of the last entry in [low, count) at or below ``relative_offset``, or low - 1; log2(count) + 1 probes."""
    return _floor(unpack, OFFSET_ENTRY.size, 0, data, count, relative_offset, low)


def find_position_floor(data: Buffer, count: int, position: int, *, low: int = 0) -> int:
    """As ``find_offset_floor``, over the positions (bytes) where the entries' batches begin."""
    return _floor(OFFSET_FIELD.unpack_from, OFFSET_ENTRY.size, 4, data, count, position, low)


def find_time_floor(
    data: Buffer, count: int, timestamp: int, *, low: int = 0, unpack: Unpack = TIME_FIELD.unpack_from
) -> int:
    """Number of the last time entry in [low, count) at or below ``timestamp``, or low - 1."""
    return _floor(unpack, TIME_ENTRY.size, 0, data, count, timestamp, low)


def _floor(unpack: Unpack, size: int, skip: int, data: Buffer, count: int, wanted: int, low: int) -> int:
    high = count
    while low < high:  # ``bisect_right`` with a key takes one and a half times as long
        middle = (low + high) >> 1
        if unpack(data, middle * size + skip)[0] <= wanted:
            low = middle + 1
        else:
            high = middle
    return low - 1


def offset_index_problem(data: Buffer, log_size: int) -> str | None:
    """Why these bytes cannot be the offset index of a log of ``log_size`` bytes, or None; checks both ends only."""
    if len(data) % OFFSET_ENTRY.size:
        return f"its size {len(data)} is not a multiple of {OFFSET_ENTRY.size}"
    count = len(data) // OFFSET_ENTRY.size
    if count:
        first, last = offset_entry(data, 0), offset_entry(data, count - 1)
        if first.position < 0 or first.relative_offset < 0:
            return "its first entry is negative"
        if last.position >= log_size:
            return f"its last entry points at {last.position}, the log ends at {log_size}"
        if count > 1 and not (first.relative_offset < last.relative_offset and first.position < last.position):
            return "its entries do not rise"
    return None


def time_index_problem(data: Buffer) -> str | None:
    """Why these bytes cannot be a time index, or None; checks both ends only."""
    if len(data) % TIME_ENTRY.size:
        return f"its size {len(data)} is not a multiple of {TIME_ENTRY.size}"
    count = len(data) // TIME_ENTRY.size
    if count:
        first, last = time_entry(data, 0), time_entry(data, count - 1)
        if first.relative_offset < 0 or last.relative_offset < 0:
            return "an entry names an offset below the base"
        if count > 1 and not (first.timestamp < last.timestamp and first.relative_offset <= last.relative_offset):
            return "its entries do not rise"
    return None
