"""Numbers in three digits, with their unit."""

import math

from hypothesis import given
from hypothesis import strategies as st

from seglog.cli.figures import bytes_text, count_text, percent_text, rate_text, seconds_text
from tests.support import each_case


@each_case(
    ("number", "count", "size"),
    [
        (None, "-", "-"),
        (0, "0", "0 B"),
        (0.25, "0.25", "0.25 B"),
        (7, "7", "7 B"),
        (999, "999", "999 B"),
        (999.6, "1k", "1 kB"),
        (1_000, "1k", "1 kB"),
        (12_345, "12.3k", "12.3 kB"),
        (999_999, "1M", "1 MB"),
        (4_560_000_000, "4.56G", "4.56 GB"),
        (math.inf, "-", "-"),
    ],
)
def test_counts_and_sizes(number: float | None, count: str, size: str) -> None:
    assert (count_text(number), bytes_text(number)) == (count, size)


@each_case(
    ("seconds", "text"),
    [
        (None, "-"), (math.nan, "-"), (math.inf, "never"), (0, "0"), (-1, "0"), (0.000_25, "250 us"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"), (4.5, "4.5 s"), (59.96, "59 s"), (60, "1 min"), (273_600, "3 d 4 h"),
    ],
)  # fmt: skip
def test_times(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


def test_rates_and_shares() -> None:
    assert (rate_text(12_300_000, "B"), rate_text(250), rate_text(None)) == ("12.3 MB/s", "250/s", "-")
    assert (percent_text(0.374), percent_text(None)) == ("37%", "-")


@given(st.floats(min_value=0, max_value=1e10))
def test_they_are_short(number: float) -> None:
    assert max(map(len, (count_text(number), bytes_text(number), seconds_text(number)))) <= 14
