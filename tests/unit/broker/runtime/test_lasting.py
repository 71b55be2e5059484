"""Failures that recur, told once."""

from seglog_broker.runtime.lasting import KEYS_MAX, Recurring


def test_a_failure_is_told_when_it_comes_so_many_times_in_a_row_and_its_end_when_it_was_told() -> None:
    recurring = Recurring(2)
    assert [recurring.begins("a") for _ in range(3)] == [False, True, False]
    assert [recurring.ends("a") for _ in range(2)] == [True, False]
    assert [recurring.begins("b"), recurring.ends("b"), recurring.begins("b")] == [False, False, False]


def test_the_keys_that_failed_last_are_held() -> None:
    recurring = Recurring(2)
    assert not any(recurring.begins(key) for key in range(KEYS_MAX + 1))
    assert [recurring.begins(key) for key in (1, 0)] == [True, False]
