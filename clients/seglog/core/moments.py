"""Parsing of offsets and times: ``1200``, ``@1546300800000``, ``-1h``, ``yesterday``, ``2019-01-01T10:00``.

A plain whole number is an offset; everything else is a time, in whole milliseconds since 1970 UTC. The clock comes in
as ``now_ms``; ``zone`` None means the machine's own zone.
"""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import Enum
from operator import index
from typing import Final, NamedTuple, SupportsIndex

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RELATIVE: Final = re.compile(r"[+-](?:\d+(?:ms|[smhdw]))+")
_RELATIVE_PART: Final = re.compile(r"(\d+)(ms|[smhdw])")
_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_INT64_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**31 - 1
"""The largest number of a partition."""
TIMESTAMP_MAX: Final = _INT64_MAX
"""Epoch ms, the largest that a batch can hold."""

EXAMPLES: Final = (
    "earliest, latest, an offset (1200), a millisecond timestamp (@1546300800000), a relative time (-1h, -2d12h), "
    "now, today, yesterday, or ISO 8601 (2019-01-01, 2019-01-01T10:00Z)"
)


class Edge(Enum):
    """An end of the log."""

    EARLIEST = "earliest"
    LATEST = "latest"


class AtOffset(NamedTuple):
    """An offset in the log."""

    offset: int


class AtTime(NamedTuple):
    """The first record at or after this time, epoch ms."""

    timestamp: int


Moment = Edge | AtOffset | AtTime


def parse_moment(text: str, *, now_ms: int, zone: tzinfo | None = UTC, examples: str = EXAMPLES) -> Moment:
    """The offset or time that ``text`` describes; times without a zone are in ``zone``.

    ValueError with a sentence that says what is meant, perhaps, or else lists what can be written: ``examples``.
    """
    word = text.strip()
    lower = word.lower()
    if lower in {"earliest", "latest"}:
        return Edge(lower)
    if word.isascii() and word.isdecimal():
        return AtOffset(_bounded(int(word[:20]), text))
    if lower.startswith("@"):
        digits = lower[1:]
        if not (digits.isascii() and digits.isdecimal()):
            raise ValueError(f"{text!r} is not a timestamp; write milliseconds since 1970 after the @: @1546300800000")
        return AtTime(_bounded(int(digits[:20]), text))
    if lower == "now":
        return AtTime(now_ms)
    if _RELATIVE.fullmatch(lower):
        size = sum(int(count[:20]) * _UNITS[unit] for count, unit in _RELATIVE_PART.findall(lower))
        return AtTime(_bounded(max(0, now_ms + (size if lower.startswith("+") else -size)), text))
    if lower in _DAYS:
        today = from_epoch_ms(now_ms, zone).date()
        return AtTime(to_epoch_ms(_midnight(today + timedelta(days=_DAYS[lower]), zone)))
    try:
        written = datetime.fromisoformat(word)
        aware = in_zone(written, zone) if written.tzinfo is None else written
        return AtTime(max(0, to_epoch_ms(aware, round_up=True)))
    except (ValueError, OverflowError):
        signed = f"-{text.strip()}"
        if _RELATIVE.fullmatch(signed.lower()):
            raise ValueError(f"{text!r} is not a time; did you mean {signed}?") from None
        raise ValueError(f"{text!r} is neither an offset nor a time; write {examples}") from None


def to_positions(places: Mapping[int, int] | Mapping[str, int]) -> dict[int, int]:
    """{partition: offset} as ``positions()`` returns it, also after a JSON round trip, which makes keys text.

    Raises ValueError and TypeError for an invalid partition or offset.
    """
    positions: dict[int, int] = {}
    for key, offset in places.items():
        is_text = isinstance(key, str) and key.isascii() and key.isdecimal()
        partition = _whole("a partition", int(key) if is_text else key, PARTITION_MAX)
        if partition in positions:
            raise ValueError(f"partition {partition} is there twice, as a number and as text")
        positions[partition] = _whole("an offset", offset, _INT64_MAX)
    return positions


def to_offset(number: int) -> int:
    """``number`` as an offset. Raises TypeError and ValueError for an invalid one."""
    return _whole("an offset", number, _INT64_MAX)


def to_partition(number: SupportsIndex) -> int:
    """``number`` as a partition. Raises TypeError and ValueError for an invalid one."""
    return _whole("a partition", number, PARTITION_MAX)


def _whole(what: str, number: object, largest: int) -> int:
    if isinstance(number, bool) or not isinstance(number, SupportsIndex):
        raise TypeError(f"{what} is a whole number, not {number!r}; places are {{partition: offset}}")
    if not 0 <= index(number) <= largest:
        bound = "0 or more" if index(number) < 0 else f"at most {largest}"
        raise ValueError(f"{what} is {bound}, not {number}")
    return index(number)


def _bounded(value: int, text: str) -> int:
    if value > _INT64_MAX:
        raise ValueError(f"{text!r} is too large a number")
    return value


def _midnight(day: date, zone: tzinfo | None) -> datetime:
    return in_zone(datetime(day.year, day.month, day.day), zone)  # noqa: DTZ001 - the zone comes in the next step


def in_zone(naive: datetime, zone: tzinfo | None) -> datetime:
    """The aware datetime of ``naive`` in ``zone``; None is the machine's zone, with that day's summer time."""
    return naive.astimezone() if zone is None else naive.replace(tzinfo=zone)


def to_epoch_ms(moment: datetime, *, round_up: bool = False) -> int:
    """Whole milliseconds since 1970 of an aware datetime. Raises ValueError for a naive one."""
    if moment.tzinfo is None:
        raise ValueError("a datetime without a zone is ambiguous; use datetime.now(UTC) or .replace(tzinfo=...)")
    since = moment - EPOCH
    return -(-since // MILLISECOND) if round_up else since // MILLISECOND


def to_timestamp(value: "int | datetime") -> int:
    """Epoch ms of a record's timestamp, -1 for none. Raises TypeError and ValueError, with what is valid instead."""
    if isinstance(value, datetime):
        timestamp = to_epoch_ms(value)
        if timestamp < 0:
            raise ValueError(f"the timestamp {value.isoformat()} lies before 1970, which no log can hold")
        return timestamp
    if isinstance(value, float):
        raise TypeError(
            f"a timestamp is whole milliseconds since 1970 or an aware datetime, not the float {value!r}; "
            "seconds, as time.time() gives them, become int(seconds * 1000)"
        )
    if isinstance(value, bool) or not hasattr(value, "__index__"):  # which numpy's integers have, too
        raise TypeError(
            f"a timestamp is whole milliseconds since 1970 or an aware datetime, not {type(value).__name__}"
        )
    timestamp = index(value)
    if not -1 <= timestamp <= _INT64_MAX:
        raise ValueError(
            f"a timestamp is from 0 to {_INT64_MAX}, in milliseconds since 1970, or -1 for none, not {timestamp}"
        )
    return timestamp


def from_epoch_ms(timestamp: int, zone: tzinfo | None = UTC) -> datetime:
    """The aware datetime of a timestamp. Raises OverflowError where the year does not fit."""
    return (EPOCH + timestamp * MILLISECOND).astimezone(zone)


def format_time(timestamp: int, zone: tzinfo | None = UTC) -> str:
    """A timestamp for people, always with its zone: ``2019-01-01T00:00:00.000Z``; ``-`` for none (-1)."""
    if timestamp < 0:
        return "-"
    try:
        text = from_epoch_ms(timestamp, zone).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return f"@{timestamp}"
    return text.removesuffix("+00:00") + "Z" if zone is UTC else text
