"""Deadlines against a plain dictionary."""

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.coordinators.deadlines import Deadlines
from tests.support import examples

_KEYS = st.sampled_from("abcde")


@settings(max_examples=examples(300))
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("set"), _KEYS, st.integers(0, 20)),
            st.tuples(st.just("discard"), _KEYS, st.just(0)),
            st.tuples(st.just("pop"), st.just(""), st.integers(0, 20)),
        ),
        max_size=60,
    )
)
def test_the_next_deadline_is_the_smallest_whatever_was_put_off_or_discarded(steps: list[tuple[str, str, int]]) -> None:
    deadlines = Deadlines()
    model: dict[str, int] = {}
    for what, key, time in steps:
        if what == "set":
            deadlines.set(key, time)
            model[key] = time
        elif what == "discard":
            deadlines.discard(key)
            model.pop(key, None)
        else:
            popped = deadlines.pop_due(time)
            if popped is None:
                assert min(model.values(), default=time + 1) > time
            else:
                assert model[popped] == min(model.values()) <= time
                del model[popped]
        assert deadlines.earliest() == min(model.values(), default=None)
        assert len(deadlines._due) == len(model)


def test_keys_that_come_and_go_leave_nothing_behind() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines.set(f"key {number}", 10_000 - number)
        deadlines.discard(f"key {number}")
    deadlines.set("last", 0)
    assert len(deadlines._due) == 1
    assert len(deadlines._heap) < 200
    assert len(deadlines._entries) < 200
