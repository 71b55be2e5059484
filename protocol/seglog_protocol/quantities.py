"""Durations and sizes as people write them: ``7d``, ``1d12h``, ``500ms``; ``1GiB``, ``1.5MB``, ``512K``.

A number without a unit is in the unit of its configuration key, as in Kafka; only numbers are stored. KiB, MiB, GiB and
TiB are powers of 1024, kB, MB, GB and TB powers of 1000; K, M, G and T alone are powers of 1024, as in most systems.
Units of time are lower case only, because ``1M`` could be a month or a minute.
"""

import re
from enum import Enum
from fractions import Fraction
from typing import Final

_NUMBER: Final = r"[0-9]{1,19}(?:\.[0-9]{1,9})?"
_TIMES: Final = {
    "ms": 1,
    "s": 1000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_SIZES: Final = {"b": 1} | {
    letter + kind: base**power
    for power, letter in enumerate("kmgt", 1)
    for kind, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_TIME_PART: Final = re.compile(rf"({_NUMBER})\s?(ms|min|[smhdw])")
_DURATION: Final = re.compile(rf"{_TIME_PART.pattern}(?:\s?{_TIME_PART.pattern})*")
_SIZE: Final = re.compile(rf"({_NUMBER})\s?({'|'.join(sorted(_SIZES, key=len, reverse=True))})", re.IGNORECASE)

_NO_LIMIT: Final = 2**63 - 1
_READ_TIMES: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))
_READ_SIZES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Unit(Enum):
    """The unit of a number written without one."""

    MILLISECONDS = "milliseconds"
    SECONDS = "seconds"
    MINUTES = "minutes"
    HOURS = "hours"
    BYTES = "bytes"

    @property
    def names(self) -> str:
        """The units that may follow a number, as part of a sentence."""
        if self is Unit.BYTES:
            return "B, KiB, MiB, GiB, TiB, K, M, G, T (powers of 1024) and kB, MB, GB, TB (of 1000)"
        return "ms, s, m or min, h, d and w"

    @property
    def examples(self) -> str:
        """Example values, as part of a sentence."""
        return "1GiB, 64MiB, 500kB" if self is Unit.BYTES else "7d, 12h, 30m, 10s, 500ms"


_MILLISECONDS: Final = {Unit.MILLISECONDS: 1, Unit.SECONDS: 1000, Unit.MINUTES: 60_000, Unit.HOURS: 3_600_000}


def unit_of(key: str) -> Unit | None:
    """The unit of a configuration key, derived from its name; None when it is neither a duration nor a size."""
    words = key.split(".")
    if "bytes" in words or words[-1] == "size" or key == "seglog.request.memory.max":
        return Unit.BYTES
    for word, unit in (("ms", Unit.MILLISECONDS), ("minutes", Unit.MINUTES), ("hours", Unit.HOURS)):
        if word in words:
            return unit
    return None


def parse_quantity(text: str, unit: Unit) -> Fraction | None:
    """The value of ``text`` (a number with its unit) in ``unit``; None when ``text`` is not written that way."""
    text = text.strip()
    if unit is Unit.BYTES:
        found = _SIZE.fullmatch(text)
        return Fraction(found[1]) * _SIZES[found[2].lower()] if found else None
    if not _DURATION.fullmatch(text):
        return None
    parts = _TIME_PART.findall(text)
    return Fraction(sum(Fraction(number) * _TIMES[name] for number, name in parts), _MILLISECONDS[unit])


def reading_of(value: int, unit: Unit | None) -> str:
    """A number for people, "7 days" or "1 GiB"; empty where the plain number reads as well."""
    if value == _NO_LIMIT:
        return "no limit"
    if unit is None or value <= 0:
        return ""
    if unit is Unit.BYTES:
        return next((f"{value // size} {name}" for size, name in _READ_SIZES if value % size == 0), "")
    milliseconds = value * _MILLISECONDS[unit]
    for size, name in _READ_TIMES:
        count, rest = divmod(milliseconds, size)
        if count and not rest:
            return f"{count} {name}{'' if count == 1 else 's'}"
    return ""


def with_reading(key: str, text: str) -> str:
    """The value of a configuration key for people: ``604800000 (7 days)``, or the value alone."""
    reading = reading_of(int(text), unit_of(key)) if text.isascii() and text.isdecimal() else ""
    return f"{text} ({reading})" if reading else text
