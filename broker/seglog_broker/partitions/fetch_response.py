"""The response to a fetch: its header, which names gaps, and the leased slices of its payload.

A gap is a range of offsets without a record, with the reason. The broker does not read the batches of the response. The
client sees where one does not follow the other, and the response has what it needs to give a reason.

A hundred consumers at the end of a partition are woken by one append and fetch the same bytes. The response to the
first one is used again for the others as long as nothing has changed: a small one with a copy of its bytes, which takes
one system call for each instead of three, a large one with leases of their own. So is the response to those who have
waited for nothing.
"""

from types import TracebackType
from typing import Final, Self

from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.segment_log import LogSlice, TailRange
from seglog_protocol.messages import FetchReply, FetchRequest, Gap, name_hole

COPY_BYTES_MAX: Final = 16 * 1024
"""The largest response whose bytes are copied for equal fetches."""

GAPS_MAX: Final = 100
"""The most gaps of one partition in one reply, so that its header fits; further holes are "missing" to the client."""


class FetchAnswer:
    """A reply and its leased payload. Leave the ``with`` block, or call ``close``, when it has been sent."""

    __slots__ = ("payload", "reply", "size", "slices")

    def __init__(self, reply: FetchReply, slices: list[LogSlice], payload: bytes = b"") -> None:
        self.reply = reply
        self.payload = payload  # payload bytes in memory; those of the slices follow
        self.slices = slices  # in the order of the payload
        self.size = len(payload) + sum([slice_.size for slice_ in slices])  # bytes of the whole payload

    def close(self) -> None:
        """Release the leases."""
        for slice_ in self.slices:
            slice_.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class RecentAnswer:
    """The last response from the end of one partition alone. It holds no lease."""

    __slots__ = ("_copy", "_durable", "_end", "_log", "_near", "_reply", "_request", "_start")

    def __init__(self, log: PartitionLog, near: TailRange | None, request: FetchRequest, reply: FetchReply) -> None:
        """``near`` is the payload, None for an empty one."""
        self._log = log
        self._near = near
        self._request = request
        self._reply = reply
        self._start = log.log_start_offset
        self._durable = log.durable_end_offset
        self._end = log.log_end_offset
        self._copy = b""

    @classmethod
    def of(cls, log: PartitionLog, request: FetchRequest, answer: FetchAnswer) -> Self | None:
        """The part of ``answer`` to keep, for a ``request`` of one partition; None if it cannot be used again."""
        if request.partitions[0].offset == log.log_end_offset and answer.reply.partitions[0].error is None:
            return cls(log, None, request, answer.reply)
        near = log.active.tail.latest
        if near is None or not answer.slices or not answer.slices[0].is_of(near):
            return None
        return cls(log, near, request, answer.reply)

    def again(self, request: FetchRequest) -> FetchAnswer | None:
        """A response to ``request``, if it would be the same as the last one; else None."""
        log, near = self._log, self._near
        if (
            self._end != log.log_end_offset
            or (near is not None and near is not log.active.tail.latest)  # changes with the segment, and in a new one
            or self._durable != log.durable_end_offset
            or self._start != log.log_start_offset
            or self._request.partitions != request.partitions
            or self._request.max_bytes != request.max_bytes
            or self._request.isolation != request.isolation
        ):
            return None
        if self._copy or near is None:
            return FetchAnswer(self._reply, [], self._copy)
        found = log.slice_near_end(near)
        if found.size <= COPY_BYTES_MAX and found.file.is_cached(found.position, found.size):
            copy = found.file.pread(found.size, found.position)
            self._copy = copy if len(copy) == found.size else b""  # else the file was cut; sending it will fail
        return FetchAnswer(self._reply, [found])


def gaps_of_read(
    log: PartitionLog, offset: int, found: LogSlice | None, end: int, *, min_one: bool
) -> tuple[list[Gap] | None, int | None]:
    """(gaps, offset below which other holes are from compaction) for a read at ``offset``; either is None if absent.

    The gaps are the offsets between ``offset`` and the first batch found, and later ranges that are recorded as
    missing: between two segments, or inside one that compaction has merged. Later damage is not included, because a
    slice ends before damaged bytes. If the read was for at least one batch (``min_one``) and there is none, all offsets
    up to ``end``, that of the log or of what is read of it, are a gap: otherwise a reader would wait there for ever.
    """
    state = log.state
    first = offset
    if found is not None:
        first = max(offset, found.start_offset)
    elif min_one:
        first = max(offset, end)
    compacted_before = state.compacted_before
    gaps: list[Gap] = []
    if state.damaged:
        known = [Gap(d.start_offset, d.end_offset, d.reason) for d in state.damaged if d.end_offset > offset]
        known.sort(key=lambda gap: gap.start)
        gaps = name_hole(offset, first, known, compacted_before)
        gaps += [gap for gap in known if gap.start >= first and gap.reason == "missing"]
        if len(gaps) > GAPS_MAX:
            compacted_before = min(compacted_before, gaps[GAPS_MAX].start)
            del gaps[GAPS_MAX:]
    elif first > offset:
        gaps = name_hole(offset, first, (), compacted_before)
    return gaps or None, compacted_before if compacted_before > offset else None
