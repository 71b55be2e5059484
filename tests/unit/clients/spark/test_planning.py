"""What a batch and a stream plan to read: ranges, limits, tasks, filters, and what is lost."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_spark.extents import Extent, bytes_between, cut, offset_behind
from seglog_spark.filters import Operator, Wanted
from seglog_spark.offsets import OffsetRange, Offsets, TopicPartition
from seglog_spark.options import OptionError, parse_read_options
from seglog_spark.planning import DataLossError, split
from seglog_spark.plans import StreamPlan, lag, limit_bytes, limit_offsets, plan_batch
from tests.spark.fake_log import FakeLog, batch_options, log, stream_options, tp
from tests.support import each_case

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))
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


@given(segments(), st.integers(0, 3000), st.integers(1, 2000), st.integers(0, 300_000))
def test_an_offset_behind_some_bytes_has_no_more_than_these_before_it(
    found: list[Extent], start: int, size: int, limit: int
) -> None:
    end = start + size
    behind = offset_behind(found, start, limit, end)
    assert start <= behind <= end
    # Rounding up costs a byte an extent.
    assert behind == end or bytes_between(found, start, behind) <= limit + len(found)


@each_case(
    ("options", "ranges"),
    [
        ({}, [(0, 10, 30), (1, 0, 10)]),
        ({"minPartitions": "3"}, [(0, 10, 20), (0, 20, 30), (1, 0, 10)]),
        ({"startingTimestamp": "4001", "endingTimestamp": "20000"}, [(0, 10, 20), (1, 5, 10)]),
        ({"subscribe": "", "assign": '{"a": [1]}'}, [(1, 0, 10)]),
    ],
)
def test_a_batch_reads_what_is_there_between_its_ends(
    options: dict[str, str], ranges: list[tuple[int, int, int]]
) -> None:
    there = FakeLog({A0: 30, A1: 10, tp("b-0"): 9}, {A0: 10})
    chosen = {name: text for name, text in ({"servers": "localhost", "subscribe": "a"} | options).items() if text}
    assert plan_batch(there, parse_read_options(chosen, "batch"), ALL) == [OffsetRange("a", *r) for r in ranges]


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


PLACES = st.dictionaries(
    st.integers(0, 5).map(lambda number: TopicPartition("a", number)),
    st.tuples(st.integers(0, 500), st.integers(0, 500)),
)


@given(PLACES, st.integers(1, 700))
def test_a_limit_is_kept_exactly(places: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    """A limit is kept exactly and every partition goes on while there is an offset for it."""
    start = {p: first for p, (first, _) in places.items()}
    latest = {p: first + behind for p, (first, behind) in places.items()}
    end = limit_offsets(start, latest, limit)
    total, gone = sum(lag(start, latest).values()), lag(start, end)
    assert sum(gone.values()) == min(total, limit)
    assert all(start[p] <= end[p] <= latest[p] for p in places)
    assert len(gone) == min(len(lag(start, latest)), limit)


@given(PLACES, st.integers(1, 50_000))
def test_a_limit_of_bytes_is_kept_but_for_one_record_a_partition(
    places: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start = {p: first for p, (first, _) in places.items()}
    latest = {p: first + behind for p, (first, behind) in places.items()}
    there = FakeLog(latest)
    end = limit_bytes(start, latest, limit, there.extents(there.ends(latest)))
    gone = lag(start, end)
    assert gone.keys() == lag(start, latest).keys()
    assert sum(gone.values()) * 100 <= limit + 100 * len(gone)


def run(plan: StreamPlan, start: Offsets) -> list[Offsets]:
    """The ends of all micro-batches until nothing changes."""
    ends: list[Offsets] = []
    while (end := plan.next_end(start, is_limited=True)) != start:
        assert len(ends) < 1000, "it does not end"
        ends.append(end)
        start = end
    return ends


def test_a_new_query_begins_where_its_options_say() -> None:
    there = FakeLog({A0: 30, A1: 5}, {A0: 10})
    assert StreamPlan(there, stream_options()).initial() == {A0: 10, A1: 0}
    assert StreamPlan(there, stream_options(startingOffsets="latest")).initial() == {A0: 30, A1: 5}
    with pytest.raises(DataLossError, match="the log begins at 10 now"):
        StreamPlan(there, stream_options(startingOffsets='{"a": {"0": 3, "1": 0}}')).initial()
    options = stream_options(startingOffsets='{"a": {"0": 3, "1": 0}}', failOnDataLoss="false")
    assert StreamPlan(there, options).initial() == {A0: 10, A1: 0}


def test_available_now_ends_at_what_was_there() -> None:
    """Available now ends at what was there and takes no more at a time than allowed."""
    there = log(a_0=25, a_1=5)
    plan = StreamPlan(there, stream_options(maxOffsetsPerTrigger="10", minOffsetsPerTrigger="9"))
    start = plan.initial()
    plan.stop_at_latest()
    there.latest[A0] = 100
    there.latest[A2] = 7
    ends = run(plan, start)
    assert len(ends) == 3
    assert ends[-1] == {A0: 25, A1: 5}


def test_a_stream_that_began_with_internal_topics_leaves_them_where_it_is() -> None:
    """An older version's patterns matched them: what it planned is read as planned, and no more of them."""
    there = log(a_0=25, b_0=9)
    there.internal.add("b")
    given = {"servers": "localhost", "subscribePattern": "[ab]", "startingOffsets": "earliest"}
    plan, b = StreamPlan(there, parse_read_options(given, "stream")), tp("b-0")
    assert plan.initial() == {A0: 0}
    assert plan.next_end({A0: 5, b: 4}, is_limited=True) == {A0: 25, b: 4}
    assert plan.tasks({A0: 5, b: 4}, {A0: 25, b: 4}) == [OffsetRange("a", 0, 5, 25)]
    assert plan.tasks({A0: 5, b: 4}, {A0: 25, b: 7})[1:] == [OffsetRange("b", 0, 4, 7)]


def test_available_now_ends_also_when_an_earlier_run_has_read_beyond_its_target() -> None:
    there = log(a_0=25)
    plan = StreamPlan(there, stream_options())
    plan.stop_at_latest()
    there.latest[A0] = 40
    assert run(plan, {A0: 33}) == []


def test_a_new_partition_joins_at_its_earliest_offset() -> None:
    """A partition that is new joins at its earliest offset and is read with the next micro batch."""
    there = FakeLog({A0: 5, A1: 9, A2: 0}, {A1: 6})
    plan = StreamPlan(there, stream_options(minOffsetsPerTrigger="100"))
    plan.stop_at_latest()
    joined, end = run(plan, {A0: 5})
    assert joined == {A0: 5, A1: 6, A2: 0}
    assert plan.tasks({A0: 5}, joined) == []
    assert end == {A0: 5, A1: 9, A2: 0}
    assert plan.tasks(joined, end) == [OffsetRange("a", 1, 6, 9)]


def test_without_a_limit_everything_is_taken_whatever_the_options_say() -> None:
    plan = StreamPlan(log(a_0=25), stream_options(maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10"))
    assert plan.next_end({A0: 0}, is_limited=False) == {A0: 25}


def test_a_micro_batch_waits_for_its_least_number_of_offsets_but_not_for_ever() -> None:
    there, now = log(a_0=2), [0.0]
    options = stream_options(minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    plan = StreamPlan(there, options, clock=lambda: now[0])
    assert plan.next_end({A0: 0}, is_limited=True) == {A0: 0}
    now[0] = 9.9
    assert plan.next_end({A0: 0}, is_limited=True) == {A0: 0}
    now[0] = 10
    assert plan.next_end({A0: 0}, is_limited=True) == {A0: 2}
    there.latest[A0] = 7
    assert plan.next_end({A0: 2}, is_limited=True) == {A0: 7}
    now[0] = 1000
    assert plan.next_end({A0: 7}, is_limited=True) == {A0: 7}
    there.latest[A1] = 1
    assert plan.next_end({A0: 7}, is_limited=True) == {A0: 7, A1: 0}


def test_bytes_limit_a_micro_batch_too() -> None:
    plan = StreamPlan(log(a_0=100, a_1=100), stream_options(maxBytesPerTrigger="1000"))
    assert plan.next_end({A0: 0, A1: 90}, is_limited=True) == {A0: 9, A1: 91}


def test_a_log_that_ends_before_what_was_read_of_it_has_lost_records() -> None:
    there = log(a_0=20)
    with pytest.raises(DataLossError, match="read up to offset 25, and its log ends at 20"):
        StreamPlan(there, stream_options()).next_end({A0: 25}, is_limited=True)
    plan = StreamPlan(there, stream_options(failOnDataLoss="false"))
    assert plan.next_end({A0: 25}, is_limited=True) == {A0: 20}
    assert plan.tasks({A0: 25}, {A0: 20}) == []


def test_a_topic_that_is_gone_is_told() -> None:
    there = log(a_0=20)
    with pytest.raises(DataLossError, match="b-0 was read before and no longer exists"):
        StreamPlan(there, stream_options()).next_end({A0: 20, tp("b-0"): 5}, is_limited=True)
    plan = StreamPlan(there, stream_options(failOnDataLoss="false"))
    start = {A0: 20, tp("b-0"): 5}
    assert plan.next_end(start, is_limited=True) == start
    assert plan.tasks(start, start) == []


def test_a_planned_range_that_retention_has_taken() -> None:
    """A planned range that retention has taken meanwhile is not read shorter in silence."""
    there = FakeLog({A0: 30}, {A0: 10})
    with pytest.raises(DataLossError, match="a-0 from 5 to 30 cannot all be read"):
        StreamPlan(there, stream_options()).tasks({A0: 5}, {A0: 30})
    plan = StreamPlan(there, stream_options(failOnDataLoss="false"))
    assert plan.tasks({A0: 5}, {A0: 30}) == [OffsetRange("a", 0, 10, 30)]


def test_a_micro_batch_has_the_same_tasks_again() -> None:
    """The same micro batch has the same tasks in another run whatever has been appended meanwhile."""
    options = replace(stream_options(maxRecordsPerPartition="7", minPartitions="3"), target_task_bytes=1)
    first = StreamPlan(log(a_0=30, a_1=9), options).tasks({A0: 2, A1: 0}, {A0: 30, A1: 9})
    again = StreamPlan(log(a_0=99, a_1=9), options).tasks({A0: 2, A1: 0}, {A0: 30, A1: 9})
    assert first == again
    assert len(first) == 8


def test_a_task_of_a_micro_batch_has_a_quarter_of_a_million_offsets_at_most() -> None:
    tasks = StreamPlan(log(a_0=600_000), stream_options()).tasks({A0: 0}, {A0: 600_000})
    assert [task.size for task in tasks] == [200_000] * 3
