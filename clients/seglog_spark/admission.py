"""The end of a micro-batch: limits on offsets and bytes, divided among partitions. No Spark, no clock.

Every partition with a lag gets a share in proportion to it, and at least one offset while the limit allows, so that
none starves behind a busy one. Limits in offsets are exact, limits in bytes as exact as sizes are known.
"""

from collections.abc import Mapping

from seglog_spark.extents import bytes_between, offset_behind
from seglog_spark.offsets import Offsets, TopicPartition
from seglog_spark.planning import Extents


def lag(start: Offsets, latest: Offsets) -> Offsets:
    """The lag in offsets of each partition that has any."""
    return {partition: end - start[partition] for partition, end in latest.items() if end > start[partition]}


def limit_offsets(start: Offsets, latest: Offsets, limit: int) -> Offsets:
    """An end for every partition of ``latest``, at most ``limit`` offsets after ``start`` in total."""
    shares = _shares(lag(start, latest), limit)
    return {p: start[p] + shares[p] if p in shares else end for p, end in latest.items()}


def limit_bytes(start: Offsets, latest: Offsets, limit: int, extents: Extents) -> Offsets:
    """An end for every partition of ``latest``, about ``limit`` bytes after ``start`` in total.

    Each partition with a lag advances by at least one offset, so that a record larger than its share does not stop it.
    """
    behind = lag(start, latest)
    sizes = {p: max(1, bytes_between(extents.get(p, ()), start[p], latest[p])) for p in behind}
    shares = _shares(sizes, limit)
    ends = dict(latest)
    for p in behind:
        end = offset_behind(extents.get(p, ()), start[p], shares.get(p, 0), latest[p])
        ends[p] = max(end, start[p] + 1)
    return ends


def _shares(wanted: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """``limit`` divided in proportion to ``wanted``; the largest first where there is not one for each."""
    total = sum(wanted.values())
    if total <= limit:
        return dict(wanted)
    order = sorted(wanted, key=lambda p: (-wanted[p], p))
    shares = dict.fromkeys(wanted, 0)
    for p in order[:limit]:
        shares[p] = 1
    left = limit - min(limit, len(order))
    more = {p: wanted[p] - shares[p] for p in order}
    open_total = sum(more.values())
    for p in order:
        extra = left * more[p] // open_total if open_total else 0
        shares[p] += extra
    rest = limit - sum(shares.values())
    for p in order:  # what rounding left
        extra = min(rest, wanted[p] - shares[p])
        shares[p] += extra
        rest -= extra
    return shares
