import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_spark.extents import Extent, bytes_between, cut, offset_behind
from seglog_spark.filters import Operator, Wanted
from seglog_spark.offsets import OffsetRange, TopicPartition
from seglog_spark.options import OptionError, parse_read_options
from seglog_spark.planning import DataLossError, split
from seglog_spark.plans import plan_batch
from tests.spark.fake_log import FakeLog, batch_options, log, tp
from tests.support import each_case

A0 = TopicPartition("a", 0)
ALL = Wanted()


@st.composite
def segments(draw: st.DrawFn) -> list[Extent]:
    """Segments one behind the other, with a hole here and there."""
    found, offset = [], draw(st.integers(0, 1000))
    for _ in range(draw(st.integers(0, 6))):
        offset += draw(st.sampled_from([0, 0, 7]))
        end = offset + draw(st.integers(1, 500))
        found.append(Extent(offset, end, draw(st.integers(0, 100_000))))
        offset = end
    return found


@given(
    st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 2000), st.integers(0, 2000), segments()), max_size=4),
    st.integers(1, 50_000),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(20, 500),
)
def test_tasks_tile_the_ranges_exactly_and_keep_their_limits(
    partitions: dict[int, tuple[int, int, list[Extent]]], target: int, least: int | None, most: int | None
) -> None:
    options = replace(batch_options(), target_task_bytes=target, min_partitions=least, max_records_per_partition=most)
    ranges = [OffsetRange("a", number, start, start + size) for number, (start, size, _) in partitions.items()]
    extents = {TopicPartition("a", number): found for number, (_, _, found) in partitions.items()}
    tasks = split(ranges, extents, options)
    for whole in ranges:
        mine = [task for task in tasks if task.partition == whole.partition]
        edges = [edge for task in mine for edge in (task.start, task.end)]
        assert edges[:1] + edges[-1:] == ([whole.start, whole.end] if whole.size else [])
        assert edges[1:-1:2] == edges[2::2]
        assert all(task.size > 0 for task in mine)
    assert most is None or all(task.size <= most for task in tasks)


def test_a_large_partition_is_cut_at_segments() -> None:
    """A partition much larger than a task is cut by bytes at the edges of segments."""
    # The second segment's records are ten times as large: offsets alone would give its reader most of the work.
    found = [Extent(0, 1000, 100_000), Extent(1000, 2000, 1_000_000), Extent(2000, 2990, 100_000)]
    assert cut(found, 0, 2990, 3) == [1000 + 300, 1000 + 700]
    even = [Extent(0, 1000, 100), Extent(1000, 2010, 100), Extent(2010, 3000, 100)]
    assert cut(even, 0, 3000, 3) == [1000, 2010]


def test_a_batch_asks_for_the_segments_of_partitions_that_are_larger_than_a_task() -> None:
    there = FakeLog({A0: 3000, tp("a-1"): 9})
    there.rolled = {A0: [Extent(0, 950, 100_000), Extent(950, 2000, 100_000), Extent(2000, 3000, 100_000)]}
    options = replace(batch_options(), target_task_bytes=100_000)
    tasks = plan_batch(there, options, ALL)
    assert tasks == [
        OffsetRange("a", 0, 0, 950),
        OffsetRange("a", 0, 950, 2000),
        OffsetRange("a", 0, 2000, 3000),
        OffsetRange("a", 1, 0, 9),
    ]
    there.rolled = {}
    assert [task.size for task in plan_batch(there, options, ALL)] == [1000] * 3 + [9]


def test_without_sizes_pieces_have_as_many_offsets_each() -> None:
    assert cut([], 10, 40, 3) == [20, 30]


@given(segments(), st.integers(0, 3000), st.integers(1, 2000), st.integers(0, 300_000))
def test_an_offset_behind_some_bytes_has_no_more_than_these_before_it(
    found: list[Extent], start: int, size: int, limit: int
) -> None:
    end = start + size
    behind = offset_behind(found, start, limit, end)
    assert start <= behind <= end
    # Rounding up costs a byte an extent.
    assert behind == end or bytes_between(found, start, behind) <= limit + len(found)


def test_a_batch_reads_from_the_earliest_to_the_latest() -> None:
    there = FakeLog({A0: 30, tp("a-1"): 5, tp("b-0"): 9}, {A0: 10, tp("a-1"): 5})
    assert plan_batch(there, batch_options(), ALL) == [OffsetRange("a", 0, 10, 30)]


def test_more_tasks_than_partitions_are_made_in_proportion_to_their_sizes() -> None:
    tasks = plan_batch(log(a_0=30, a_1=10), batch_options(minPartitions="4"), ALL)
    assert [(task.partition, task.size) for task in tasks] == [(0, 10), (0, 10), (0, 10), (1, 10)]


def test_a_place_has_to_name_every_partition_and_no_other() -> None:
    there = log(a_0=30, a_1=10)
    with pytest.raises(OptionError, match="leaves out a-1; it has to name every partition"):
        plan_batch(there, batch_options(startingOffsets='{"a": {"0": 1}}'), ALL)
    with pytest.raises(OptionError, match="names b-0, which is not among"):
        plan_batch(there, batch_options(endingOffsets='{"a": {"0": 1, "1": 1}, "b": {"0": 1}}'), ALL)
    with pytest.raises(OptionError, match="names b-0, b-1, which are not among"):
        plan_batch(there, batch_options(endingOffsets='{"a": {"0": 1, "1": 1}, "b": {"0": 1, "1": 1}}'), ALL)
    with pytest.raises(OptionError, match="startingOffsetsByTimestamp leaves out a-1"):
        plan_batch(there, batch_options(startingOffsetsByTimestamp='{"a": {"0": 1}}'), ALL)
    exact = batch_options(startingOffsets='{"a": {"0": 3, "1": -2}}', endingOffsets='{"a": {"0": -1, "1": 4}}')
    assert plan_batch(there, exact, ALL) == [OffsetRange("a", 0, 3, 30), OffsetRange("a", 1, 0, 4)]


def test_times_lead_to_the_first_record_at_or_after_them() -> None:
    there = log(a_0=30, a_1=10)
    options = batch_options(startingTimestamp="4001", endingTimestamp="20000")
    assert plan_batch(there, options, ALL) == [OffsetRange("a", 0, 5, 20), OffsetRange("a", 1, 5, 10)]


def test_a_start_behind_every_record_is_an_error_unless_the_strategy_says_latest() -> None:
    there = log(a_0=30, a_1=10)
    with pytest.raises(OptionError, match="a-1 has no record at or after its time"):
        plan_batch(there, batch_options(startingTimestamp="12000"), ALL)
    with pytest.raises(OptionError, match="a-0, a-1 have no record at or after their times"):
        plan_batch(there, batch_options(startingTimestamp="32000"), ALL)
    options = batch_options(startingTimestamp="12000", startingOffsetsByTimestampStrategy="latest")
    assert plan_batch(there, options, ALL) == [OffsetRange("a", 0, 12, 30)]


def test_a_read_that_ends_before_it_begins_is_refused() -> None:
    options = batch_options(startingOffsets='{"a": {"0": 7}}', endingOffsets='{"a": {"0": 3}}')
    with pytest.raises(OptionError, match="begins at 7, after its end 3"):
        plan_batch(log(a_0=30), options, ALL)


@each_case(
    ("start", "end", "left"),
    [(5, 20, (10, 20)), (5, 8, None), (12, 40, (12, 30)), (35, 40, None), (10, 30, (10, 30))],
)
def test_what_is_not_there_any_more_is_an_error_or_left_out(start: int, end: int, left: tuple[int, int] | None) -> None:
    there = FakeLog({A0: 30}, {A0: 10})
    options = batch_options(startingOffsets=f'{{"a": {{"0": {start}}}}}', endingOffsets=f'{{"a": {{"0": {end}}}}}')
    if left == (start, end):
        assert plan_batch(there, options, ALL) == [OffsetRange("a", 0, *left)]
    else:
        said = "the log begins at 10 now" if start < 10 else "the log ends at 30"
        with pytest.raises(DataLossError, match=re.escape(said)):
            plan_batch(there, options, ALL)
    accepting = replace(options, fail_on_data_loss=False)
    assert plan_batch(there, accepting, ALL) == ([] if left is None else [OffsetRange("a", 0, *left)])


def test_assigned_partitions_are_read_and_no_others() -> None:
    options = parse_read_options({"servers": "localhost", "assign": '{"a": [1]}'}, "batch")
    assert plan_batch(log(a_0=30, a_1=10), options, ALL) == [OffsetRange("a", 1, 0, 10)]


# --- Filters ----------------------------------------------------------------------------------------------------------

OPERATORS: dict[Operator, str] = {"=": "==", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@given(
    st.lists(st.tuples(st.sampled_from(sorted(OPERATORS)), st.integers(-3, 33)), max_size=4),
    st.frozensets(st.integers(0, 2), max_size=2),
)
def test_filters_leave_in_a_range_exactly_the_offsets_that_pass_them(
    bounds: list[tuple[Operator, int]], numbers: frozenset[int]
) -> None:
    wanted: Wanted | None = ALL.narrowed("partition", "in", numbers)
    for operator, value in bounds:
        assert wanted is not None
        wanted = wanted.narrowed("offset", operator, [value])
    assert wanted is not None
    left = {
        (r.partition, offset)
        for number in range(3)
        for r in wanted.cut(OffsetRange("a", number, 5, 30))
        for offset in range(r.start, r.end)
    }
    plain = {
        (number, offset)
        for number in numbers
        for offset in range(5, 30)
        if all(eval(f"{offset} {OPERATORS[operator]} {value}") for operator, value in bounds)
    }
    assert left == plain


def test_filters_that_a_range_cannot_keep_are_left_to_spark() -> None:
    assert ALL.narrowed("timestamp", ">", [5]) is None
    assert ALL.narrowed("partition", ">", [5]) is None
    assert ALL.narrowed("offset", "in", [5, 9]) is None
    assert ALL.narrowed("key", "is not null", []) is None
    assert ALL.narrowed("offset", "is not null", []) == ALL
    only = ALL.narrowed("topic", "=", ["b"])
    assert only is not None
    assert only.cut(OffsetRange("a", 0, 0, 5)) == []
