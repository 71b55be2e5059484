"""Planning of the exact offset ranges that tasks read, without Spark and without a socket.

Ranges are fixed: a range means the same offsets however often it is read, and is never shortened silently. If
requested records have been deleted, planning raises DataLossError, unless ``failOnDataLoss`` is false.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from seglog_protocol.errors import SeglogError
from seglog_spark.extents import Extent, bytes_between, cut
from seglog_spark.offsets import EARLIEST, LATEST, OffsetRange, Offsets, TopicPartition, shown
from seglog_spark.options import AtOffsets, OptionError, Place, ReadOptions

Extents = Mapping[TopicPartition, Sequence[Extent]]
FindTimes = Callable[[Offsets], Mapping[TopicPartition, int | None]]
"""For a time (epoch ms) by partition, the offset of the first record at or after it; None when there is none."""


class DataLossError(SeglogError):
    """Records to be read have been deleted; the message says which, why, and how to continue without them."""


class Ends(NamedTuple):
    """[``earliest``, ``latest``), the readable range of a partition."""

    earliest: int
    latest: int


def resolve(
    place: Place, ends: Mapping[TopicPartition, Ends], find_times: FindTimes, names: tuple[str, str]
) -> Offsets:
    """The offset of ``place`` in every partition of ``ends``.

    ``names`` are the options that give offsets and times by partition. A place that names partitions names all of them
    and no others: OptionError says which are too many or missing, and which have no record at or after their time.
    """
    if isinstance(place, AtOffsets):
        given = _of_each(place.offsets, place.everywhere, ends, names[0])
        return {p: {EARLIEST: ends[p].earliest, LATEST: ends[p].latest}.get(at, at) for p, at in given.items()}
    offsets = find_times(_of_each(place.times, place.everywhere, ends, names[1]))
    without = [partition for partition in ends if offsets[partition] is None]
    if without and not place.or_latest:
        what = "have no record at or after their times" if without[1:] else "has no record at or after its time"
        raise OptionError(
            f"{shown(without)} {what}; with startingOffsetsByTimestampStrategy latest such a partition is read from "
            "its end on"
        )
    # A record may come between two questions: the end that was seen first holds.
    return {p: latest if (at := offsets[p]) is None else min(at, latest) for p, (_, latest) in ends.items()}


def _of_each(given: Offsets, everywhere: int | None, ends: Mapping[TopicPartition, Ends], option: str) -> Offsets:
    if everywhere is not None:
        return {partition: given.get(partition, everywhere) for partition in ends}
    extra, missing = given.keys() - ends.keys(), ends.keys() - given.keys()
    if extra:
        be = "are" if len(extra) > 1 else "is"
        raise OptionError(f"{option} names {shown(extra)}, which {be} not among the partitions to read")
    if missing:
        raise OptionError(f"{option} leaves out {shown(missing)}; it has to name every partition that is read")
    return {partition: given[partition] for partition in ends}


def pinned(partition: TopicPartition, start: int, end: int, ends: Ends, *, fail_on_data_loss: bool) -> OffsetRange:
    """The range, if all of it can be read; shortened to the readable part if losses are accepted."""
    wanted = OffsetRange(*partition, start, max(start, end))
    if start >= ends.earliest and wanted.end <= ends.latest:
        return wanted
    if fail_on_data_loss:
        what = f"the log begins at {ends.earliest} now" if start < ends.earliest else f"the log ends at {ends.latest}"
        raise DataLossError(f"offsets of {wanted} cannot all be read: {what}. {GOING_ON}")
    start = min(max(start, ends.earliest), ends.latest)
    return OffsetRange(*partition, start, max(start, min(wanted.end, ends.latest)))


GOING_ON = "To read what is left, set failOnDataLoss to false"


def split(ranges: Iterable[OffsetRange], extents: Extents, options: ReadOptions) -> list[OffsetRange]:
    """The ranges split into pieces for tasks, which cover them exactly; empty ranges are left out.

    A piece has about ``targetTaskBytes`` and at most ``maxRecordsPerPartition`` offsets. There are at least
    ``minPartitions`` pieces if there are that many offsets.
    """
    whole = sorted(r for r in ranges if r.size > 0)
    counts = [_pieces(r, extents.get(r.topic_partition, ()), options) for r in whole]
    least = options.min_partitions or 0
    if sum(counts) < least:
        total = sum(r.size for r in whole)
        counts = [max(count, -(-r.size * least // total)) for count, r in zip(counts, whole, strict=True)]
    tasks: list[OffsetRange] = []
    for r, count in zip(whole, counts, strict=True):
        edges = [r.start, *cut(extents.get(r.topic_partition, ()), r.start, r.end, min(count, r.size)), r.end]
        for start, end in pairwise(edges):
            tasks += _at_most(r._replace(start=start, end=end), options.max_records_per_partition)
    return tasks


def _pieces(r: OffsetRange, extents: Sequence[Extent], options: ReadOptions) -> int:
    return max(1, -(-bytes_between(extents, r.start, r.end) // options.target_task_bytes))


def _at_most(r: OffsetRange, limit: int | None) -> list[OffsetRange]:
    if limit is None or r.size <= limit:
        return [r]
    pieces = -(-r.size // limit)
    edges = [r.start + r.size * number // pieces for number in range(pieces + 1)]
    return [r._replace(start=start, end=end) for start, end in pairwise(edges)]
