"""How many partitions a large Produce request names, found without making objects of them.

A hundred megabytes of partitions without records would be millions of objects, and seconds of work on the loop.
"""

import struct
from typing import Final

from seglog_protocol.kafka import RequestHeader, is_flexible
from seglog_protocol.kafka.varints import Refused, read_varint, skip_tags

PARTITIONS_MAX: Final = 10_000
"""The most partitions in a Produce request, as in one on the native port."""

_TOPIC_ID_VERSION_MIN: Final = 13
_TOPIC_ID_BYTES: Final = 16
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_ACKS_AND_TIMEOUT_BYTES: Final = 6
_INDEX_BYTES: Final = 4


def partitions_of(header: RequestHeader, frame: memoryview) -> int:
    """The partitions that a Produce request names, a topic without any counted as one; at most PARTITIONS_MAX + 1.

    0 for a malformed request, which is refused when it is read.
    """
    try:
        return _count(header, frame)
    except (struct.error, IndexError, Refused):
        return 0


def _count(header: RequestHeader, frame: memoryview) -> int:
    flexible = is_flexible(header.api_key, header.version)
    p = _after_text(frame, header.body, flexible) + _ACKS_AND_TIMEOUT_BYTES
    topics, p = _array(frame, p, flexible)
    counted = 0
    for _ in range(topics):
        p = p + _TOPIC_ID_BYTES if header.version >= _TOPIC_ID_VERSION_MIN else _after_text(frame, p, flexible)
        partitions, p = _array(frame, p, flexible)
        counted += max(1, partitions)
        if counted > PARTITIONS_MAX:
            return PARTITIONS_MAX + 1
        for _ in range(partitions):
            size, p = _array(frame, p + _INDEX_BYTES, flexible)
            p = _after_tags(frame, p + size, flexible)
        p = _after_tags(frame, p, flexible)
    return counted


def _array(frame: memoryview, p: int, flexible: bool) -> tuple[int, int]:
    """A count or a length, 0 for null, and where what it counts begins."""
    if flexible:
        size, p = read_varint(frame, p)
        return max(0, size - 1), p
    return max(0, _INT32.unpack_from(frame, p)[0]), p + _INT32.size


def _after_text(frame: memoryview, p: int, flexible: bool) -> int:
    if flexible:
        size, p = read_varint(frame, p)
        return p + max(0, size - 1)
    return p + _INT16.size + max(0, int(_INT16.unpack_from(frame, p)[0]))


def _after_tags(frame: memoryview, p: int, flexible: bool) -> int:
    if not flexible:
        return p
    count, p = read_varint(frame, p)
    return skip_tags(frame, p, len(frame), count)
