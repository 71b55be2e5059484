from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_spark.offsets import OffsetRange, Offsets, TopicPartition
from seglog_spark.planning import DataLossError
from seglog_spark.plans import StreamPlan, lag, limit_bytes, limit_offsets
from tests.spark.fake_log import FakeLog, log, stream_options, tp

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))
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
    plan, b = StreamPlan(there, stream_options(subscribe="a,b")), tp("b-0")
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
