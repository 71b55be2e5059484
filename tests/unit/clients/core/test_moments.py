"""What people type and read: moments, with the clock and the zone handed in, addresses, and numbers in sentences."""

import json
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.dialing import Address, parse_address
from seglog.core.errors import count_of, duration_of
from seglog.core.moments import AtOffset, AtTime, Edge, Moment, format_time, parse_moment, to_epoch_ms, to_positions
from tests.support import each_case

NOW = to_epoch_ms(datetime(2019, 3, 31, 12, 0, tzinfo=UTC))
HOUR = 3_600_000
DAY = 24 * HOUR
NEW_YEAR = 1546300800000


@pytest.fixture
def berlin() -> Iterator[None]:
    """This machine's zone is Berlin for a while, with the summer time that began on the morning of 2019-03-31."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@each_case(
    ("text", "moment"),
    [
        ("0", AtOffset(0)),
        ("1191", AtOffset(1191)),
        ("2019", AtOffset(2019)),
        ("@1546300800000", AtTime(NEW_YEAR)),
        ("@0", AtTime(0)),
        ("earliest", Edge.EARLIEST),
        ("Latest", Edge.LATEST),
        ("now", AtTime(NOW)),
        ("-1h", AtTime(NOW - HOUR)),
        ("-1d12h", AtTime(NOW - 36 * HOUR)),
        ("-90s", AtTime(NOW - 90_000)),
        ("-5ms", AtTime(NOW - 5)),
        ("-2w", AtTime(NOW - 14 * DAY)),
        ("+1m", AtTime(NOW + 60_000)),
        ("-9999999w", AtTime(0)),
        ("today", AtTime(NOW - 12 * HOUR)),
        ("yesterday", AtTime(NOW - 36 * HOUR)),
        ("tomorrow", AtTime(NOW + 12 * HOUR)),
        ("2019-01-01", AtTime(NEW_YEAR)),
        ("2019-01-01T00:00", AtTime(NEW_YEAR)),
        ("2019-01-01 00:00:00.001", AtTime(NEW_YEAR + 1)),
        ("2019-01-01T00:00Z", AtTime(NEW_YEAR)),
        ("2019-01-01T00:00+01:00", AtTime(NEW_YEAR - HOUR)),
        ("2019-01-01T00:00:00.0001", AtTime(NEW_YEAR + 1)),
        (" -1h ", AtTime(NOW - HOUR)),
    ],
)
def test_what_can_be_typed(text: str, moment: Moment) -> None:
    assert parse_moment(text, now_ms=NOW) == moment


@each_case("text", ["", "-1", "soon", "@", "@-1", "@x", "-1y", "2019-13-01", "-h", "9" * 30, "@" + "9" * 30])
def test_anything_else_is_refused_with_what_can_be_typed(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|too large"):
        parse_moment(text, now_ms=NOW)


@pytest.mark.parametrize("text", ["1h", " 2d12h", "30M"])
def test_a_relative_time_without_its_sign_is_asked_about(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is not a time; did you mean -{text.strip()}\\?"):
        parse_moment(text, now_ms=NOW)


def test_a_zone_moves_what_has_none_and_nothing_else() -> None:
    zone = timezone(timedelta(hours=2))
    assert parse_moment("2019-01-01", now_ms=NOW, zone=zone) == AtTime(NEW_YEAR - 2 * HOUR)
    assert parse_moment("2019-01-01T00:00Z", now_ms=NOW, zone=zone) == AtTime(NEW_YEAR)
    assert parse_moment("today", now_ms=NOW, zone=zone) == AtTime(NOW - 14 * HOUR)


@pytest.mark.usefixtures("berlin")
def test_the_machines_zone_uses_each_days_own_summer_time() -> None:
    assert parse_moment("2019-01-01", now_ms=NOW, zone=None) == AtTime(NEW_YEAR - HOUR)
    assert parse_moment("2019-07-01", now_ms=NOW, zone=None) == AtTime(
        to_epoch_ms(datetime(2019, 6, 30, 22, tzinfo=UTC))
    )
    midnight = to_epoch_ms(datetime(2019, 3, 30, 23, tzinfo=UTC))
    assert parse_moment("today", now_ms=NOW, zone=None) == AtTime(midnight), "the day began in winter time"
    assert format_time(NEW_YEAR, None) == "2019-01-01T01:00:00.000+01:00"
    assert format_time(NOW, None) == "2019-03-31T14:00:00.000+02:00"


def test_output_always_shows_its_zone() -> None:
    assert format_time(NEW_YEAR) == "2019-01-01T00:00:00.000Z"
    assert format_time(NEW_YEAR, timezone(timedelta(hours=-5))) == "2018-12-31T19:00:00.000-05:00"
    assert format_time(-1) == "-"
    assert format_time(2**62) == f"@{2**62}"


@given(st.integers(0, 253_402_300_799_999))
def test_what_is_printed_can_be_typed(timestamp: int) -> None:
    assert parse_moment(format_time(timestamp), now_ms=NOW) == AtTime(timestamp)


def test_a_datetime_without_a_zone_is_no_moment() -> None:
    with pytest.raises(ValueError, match="zone"):
        to_epoch_ms(datetime(2019, 1, 1))  # noqa: DTZ001


@each_case(
    "places",
    [{0: 5, 12: 0}, {"0": 5, "12": 0}, json.loads(json.dumps({0: 5, 12: 0})), {np.int32(0): np.int64(5), 12: 0}],
    ids=str,
)
def test_positions_may_have_been_json(places: Any) -> None:
    assert to_positions(places) == {0: 5, 12: 0}


@each_case(
    ("places", "error", "sentence"),
    [
        ({0: -1}, ValueError, "an offset is 0 or more, not -1"),
        ({0: 2**63}, ValueError, "an offset is at most 9223372036854775807, not 9223372036854775808"),
        ({2**31: 0}, ValueError, "a partition is at most 2147483647, not 2147483648"),
        ({-1: 0}, ValueError, "a partition is 0 or more, not -1"),
        ({"0": 5, 0: 6}, ValueError, "partition 0 is there twice"),
        ({"0": "5"}, TypeError, "an offset is a whole number, not '5'"),
        ({0: 5.0}, TypeError, "an offset is a whole number, not 5.0"),
        ({0: True}, TypeError, "an offset is a whole number"),
        ({0: None}, TypeError, "an offset is a whole number, not None"),
        ({"t-0": 5}, TypeError, "a partition is a whole number, not 't-0'"),
    ],
    ids=str,
)
def test_what_positions_may_not_be(places: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        to_positions(places)


# --- HOST:PORT as people write it -------------------------------------------------------------------------------------


@each_case(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 9192)),
        ("localhost:9999", Address("localhost", 9999)),
        (" 10.0.0.1:1 ", Address("10.0.0.1", 1)),
        ("[::1]", Address("::1", 9192)),
        ("[::1]:9999", Address("::1", 9999)),
        ("fe80::1", Address("fe80::1", 9192)),
    ],
)
def test_what_can_be_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@each_case(
    "text",
    [
        "",
        ":9192",
        "host:",
        "host:0",
        "host:65536",
        "host:x",
        "[::1",
        "[::1]x",
        "a b",
        "h:²",
        "/var/lib",
        "./data",
        "41000",
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        parse_address(text)


# --- Numbers in sentences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "text"), [(0, "0 records"), (1, "1 record"), (1000, "1,000 records")])
def test_counts_in_the_singular_and_in_the_plural(count: int, text: str) -> None:
    assert count_of(count, "record") == text


@each_case(
    ("milliseconds", "text"),
    [(0, "0 s"), (999, "0 s"), (61_999, "1 min 1 s"), (300_000, "5 min"), (3_600_000, "1 h"), (200_000_000, "2 d 7 h")],
)
def test_durations_in_their_two_largest_units(milliseconds: int, text: str) -> None:
    assert duration_of(milliseconds) == text
