"""What a mirror keeps of a record, and how far two logs that should hold the same records agree."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from seglog.mirror.errors import MirrorError

Headers = tuple[tuple[str, bytes | None], ...]


class Content(NamedTuple):
    """All that is copied of a record. ``timestamp`` is in milliseconds, -1 for none."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


class Placed(NamedTuple):
    """A record where it lies."""

    offset: int
    content: Content


def sendable(timestamp: int) -> int:
    """The timestamp of a copy: librdkafka takes 0 for the present time, so that the first millisecond of 1970 is 1."""
    return timestamp or 1


def next_to_copy(written: Iterable[Placed], source: Iterator[Placed], start: int, end: int) -> int:
    """The offset in the source from which on records are not in the target yet.

    ``written`` are the target's records that came from ``start`` of the source on, and ``source`` are those that are
    there now, up to ``end``. Compaction and retention may have taken some since: where offsets are missing in the
    source, records of the target may be missing there, too. Raises MirrorError where the target has others.
    """
    following = start
    ahead = next(source, None)
    for record in written:
        if ahead is not None and ahead.content == record.content:
            following, ahead = ahead.offset + 1, next(source, None)
        elif (ahead.offset if ahead is not None else end) <= following:
            raise MirrorError(f"the record at offset {record.offset:,} is not the source's at offset {following:,}")
    return following
