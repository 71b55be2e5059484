"""Runs are cut and joined as they must: against a dictionary of offsets."""

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.coordinators.share.runs import AVAILABLE, Run, Runs
from tests.support import examples

CHANGES = st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(0, 4), st.integers(0, 2))


def as_dict(runs: Runs) -> dict[int, tuple[int, int]]:
    return {offset: (run.state, run.count) for run in runs for offset in range(run.first, run.last + 1)}


@settings(max_examples=examples(300))
@given(st.lists(CHANGES, max_size=30), st.integers(0, 60))
def test_of_what_records_say_of_an_offset_the_highest_count_counts_then_the_highest_state(
    changes: list[tuple[int, int, int, int]], start: int
) -> None:
    runs, expected = Runs(), dict[int, tuple[int, int]]()
    for first, size, state, count in changes:
        runs.overlay(first, first + size, state, count)
        for offset in range(first, first + size + 1):
            expected[offset] = max(expected.get(offset, (0, 0)), (count, state))
        assert as_dict(runs) == {offset: (state, count) for offset, (count, state) in expected.items()}
        neighbours = zip(list(runs), list(runs)[1:], strict=False)
        assert not any(one.goes_with(other) for one, other in neighbours), "two are kept where one would do"
        assert runs.records == [[run[0] for run in as_dict(runs).values()].count(state) for state in range(5)]
        for offset in range(60):
            index = runs.index(offset)
            assert [run.last < offset for run in runs] == [True] * index + [False] * (len(runs) - index)
    runs.drop_before(start)
    assert as_dict(runs).keys() == {offset for offset in expected if offset >= start}
    assert sum(runs.records) == len(as_dict(runs))


def test_ten_thousand_records_that_are_finished_one_by_one_are_few_runs_in_the_end() -> None:
    runs = Runs()
    runs.insert(Run(0, 9_999, AVAILABLE, 1, 0, 10_000))
    for some in (range(0, 10_000, 2), range(9_999, 0, -2)):
        for offset in some:
            [run] = runs.cut(offset, offset)
            runs.change(run, 2, 1)
            runs.join(offset, offset)
    assert [(run.first, run.last) for run in runs] == [(0, 9_999)]
