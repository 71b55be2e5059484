"""Planning of a batch read: the offset ranges of its tasks, fixed when Spark asks for partitions."""

from seglog_spark.catalog import Log
from seglog_spark.extents import bytes_between
from seglog_spark.filters import Wanted
from seglog_spark.offsets import OffsetRange
from seglog_spark.options import OptionError, ReadOptions
from seglog_spark.planning import pinned, resolve, split


def plan_batch(log: Log, options: ReadOptions, wanted: Wanted) -> list[OffsetRange]:
    """The ranges to read, one per task. Raises OptionError, DataLossError, and what ``log`` raises."""
    assert options.ending is not None
    ends = log.ends(log.partitions(options.selection))
    starts = resolve(options.starting, ends, log.find_times, ("startingOffsets", "startingOffsetsByTimestamp"))
    stops = resolve(options.ending, ends, log.find_times, ("endingOffsets", "endingOffsetsByTimestamp"))
    ranges: list[OffsetRange] = []
    for partition in sorted(ends):
        start, stop = starts[partition], stops[partition]
        if start > stop:
            raise OptionError(f"the read of {partition} begins at {start}, after its end {stop}")
        found = pinned(partition, start, stop, ends[partition], fail_on_data_loss=options.fail_on_data_loss)
        ranges += wanted.cut(found)
    extents = log.extents({r.topic_partition: ends[r.topic_partition] for r in ranges})
    for r in ranges:
        partition = r.topic_partition
        if bytes_between(extents.get(partition, ()), r.start, r.end) > options.target_task_bytes:
            # Worth a request: the range will be split, best at starts of segments, where a read needs no search.
            extents[partition] = log.segments(partition, ends[partition]) or extents[partition]
    return split(ranges, extents, options)
