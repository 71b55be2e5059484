"""Of very many topics and groups some have samples of their own, and how many is bounded."""

from seglog_broker.api.monitoring.samples import NAME_CHARACTERS_MAX, SAMPLES_MAX, select


def test_of_very_many_topics_and_groups_the_largest_have_samples() -> None:
    sizes = {f"t{number}": number for number in range(1000)}
    assert select(sizes, dict.fromkeys(sizes, 1), 3) == ["t999", "t998", "t997"]
    assert select(sizes, dict.fromkeys(sizes, 1), 0) == []
    assert select({"a": 1, "b": 1}, {"a": 1, "b": 1}, 2) == ["a", "b"], "of equal size by name"


def test_samples_of_all_together_are_bounded_and_what_does_not_fit_keeps_nothing_smaller_out() -> None:
    sizes = {"huge": 9, "half": 8, "more": 7, "small": 6}
    samples = {"huge": SAMPLES_MAX + 1, "half": SAMPLES_MAX // 2, "more": SAMPLES_MAX // 2 + 1, "small": 10}
    assert select(sizes, samples, 10) == ["half", "small"]


def test_very_long_names_have_no_samples() -> None:
    fits, long = "g" * NAME_CHARACTERS_MAX, "g" * (NAME_CHARACTERS_MAX + 1)
    assert select({fits: 1, long: 2}, {fits: 1, long: 1}, 10) == [fits]
