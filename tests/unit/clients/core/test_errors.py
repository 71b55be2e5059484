"""Numbers in sentences."""

import pytest

from seglog.core.errors import count_of, duration_of
from tests.support import each_case


@pytest.mark.parametrize(("count", "text"), [(0, "0 records"), (1, "1 record"), (1000, "1,000 records")])
def test_counts_in_the_singular_and_in_the_plural(count: int, text: str) -> None:
    assert count_of(count, "record") == text


@each_case(
    ("milliseconds", "text"),
    [(0, "0 s"), (999, "0 s"), (61_999, "1 min 1 s"), (300_000, "5 min"), (3_600_000, "1 h"), (200_000_000, "2 d 7 h")],
)
def test_durations_in_their_two_largest_units(milliseconds: int, text: str) -> None:
    assert duration_of(milliseconds) == text
