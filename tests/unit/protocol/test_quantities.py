"""Durations and sizes: what is written is what is meant, and what is read can be written."""

import re
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.quantities import Unit, parse_quantity, reading_of, unit_of
from tests.support import each_case

FACTORS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SIZES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "K": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(FACTORS))), min_size=1, max_size=4))
def test_a_duration_is_the_sum_of_its_parts_in_every_unit(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    milliseconds = sum(number * FACTORS[unit] for number, unit in parts)
    assert parse_quantity(text, Unit.MILLISECONDS) == milliseconds
    assert parse_quantity(text, Unit.SECONDS) == Fraction(milliseconds, 1000)
    assert parse_quantity(text, Unit.HOURS) == Fraction(milliseconds, 3_600_000)


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(sorted(SIZES)))
def test_a_size_is_exact_also_with_decimals_and_in_any_case(whole: int, thousandths: int, unit: str) -> None:
    text = f"{whole}.{thousandths:03d}{unit}"
    expected = Fraction(whole * 1000 + thousandths, 1000) * SIZES[unit]
    assert parse_quantity(text, Unit.BYTES) == parse_quantity(text.upper(), Unit.BYTES) == expected


@each_case("text", ["", "7", "-7d", "d", "7D", "1M", "7days", "1e3s", "0x1s", "1.s", ".5s", "1h\n2x", "1GiB"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert parse_quantity(text, Unit.MILLISECONDS) is None


@each_case("text", ["", "7", "-1K", "K", "1d", "1PiB", "1KiBB", "1..5M", "1,5M", "\u0661K"])
def test_what_is_no_size_is_none(text: str) -> None:
    assert parse_quantity(text, Unit.BYTES) is None


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_none(text: str) -> None:
    for unit in Unit:
        parse_quantity(text, unit)


@given(st.integers(1, 10**15), st.sampled_from([Unit.BYTES, Unit.MILLISECONDS, Unit.MINUTES, Unit.HOURS]))
def test_what_is_shown_beside_a_number_means_that_number(value: int, unit: Unit) -> None:
    reading = reading_of(value, unit)
    if reading:
        written = reading if unit is Unit.BYTES else re.sub(r" (.)\w+$", r"\1", reading)
        assert parse_quantity(written, unit) == value


def test_a_number_without_a_rounder_reading_has_none() -> None:
    assert [reading_of(n, Unit.BYTES) for n in (-1, 0, 1000, 1024)] == ["", "", "", "1 KiB"]
    assert [reading_of(n, Unit.MILLISECONDS) for n in (-1, 0, 999, 1500, 1000, 86_400_000)] == [
        *[""] * 4,
        "1 second",
        "1 day",
    ]
    assert reading_of(2**63 - 1, Unit.MILLISECONDS) == "no limit"
    assert reading_of(7, None) == ""


def test_units_of_keys() -> None:
    assert unit_of("log.retention.hours") is Unit.HOURS
    assert unit_of("seglog.fetch.max.wait.ms.max") is Unit.MILLISECONDS
    assert unit_of("log.cleaner.dedupe.buffer.size") is Unit.BYTES
    assert unit_of("num.partitions") is None
