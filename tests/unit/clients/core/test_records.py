"""Gaps are merged, bounded and counted."""

from seglog.core.records import GAPS_KEPT_MAX, ConsumerGap, GapLog


def gap(start: int, end: int, partition: int = 0, reason: str = "compacted") -> ConsumerGap:
    return ConsumerGap("t", partition, start, end, reason)


def test_neighbours_of_one_reason_are_one_gap_also_when_partitions_alternate() -> None:
    log = GapLog()
    for one in (gap(0, 5), gap(10, 20, 1), gap(5, 8), gap(20, 21, 1), gap(8, 9, reason="damaged"), gap(20, 30)):
        log.add(one)
    assert list(log) == [gap(0, 8), gap(10, 21, 1), gap(8, 9, reason="damaged"), gap(20, 30)]
    assert (log.total, log.offsets_total) == (4, 30)


def test_only_the_last_are_kept_but_all_are_counted() -> None:
    log = GapLog()
    for number in range(GAPS_KEPT_MAX + 50):
        log.add(gap(number * 10, number * 10 + 1))
    assert len(log) == GAPS_KEPT_MAX
    assert next(iter(log)) == gap(500, 501)
    assert (log.total, log.offsets_total) == (GAPS_KEPT_MAX + 50, GAPS_KEPT_MAX + 50)
