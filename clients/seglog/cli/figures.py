"""Numbers as people read them: sizes, rates, counts and times in three or four digits, with their unit."""

import math
from typing import TYPE_CHECKING, Final

from seglog.core.errors import count_of, duration_of

if TYPE_CHECKING:
    from seglog_protocol.messages import BackupStatus

NONE: Final = "-"
"""Stands for a number that there is not."""

_PREFIXES: Final = ("", "k", "M", "G", "T", "P")


def count_text(number: float | None) -> str:
    """``0``, ``999``, ``12.3k``, ``4.5M``."""
    return NONE if number is None else _scaled(number, "")


def bytes_text(number: float | None) -> str:
    """``0 B``, ``999 B``, ``12.3 kB``, ``4.5 GB``: powers of 1000, as disks are sold and networks measured."""
    return NONE if number is None else _scaled(number, "B", " ")


def rate_text(number: float | None, unit: str = "") -> str:
    """``12.3 MB/s`` for ``unit`` ``B``; ``12.3k/s`` without one."""
    return NONE if number is None else f"{_scaled(number, unit, ' ' if unit else '')}/s"


def seconds_text(seconds: float | None) -> str:
    """``0``, ``250 us``, ``12.3 ms``, ``4.5 s``, ``3 d 4 h``; ``never`` for what is infinitely far."""
    if seconds is None or math.isnan(seconds):
        return NONE
    if math.isinf(seconds):
        return "never"
    if seconds <= 0:
        return "0"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds)} s" if seconds < 59.95 else duration_of(round(seconds * 1000))


def loss_of(backup: "BackupStatus") -> str:
    """The records that would be lost without the broker's disk: ``12 records, 3.4 kB, of the last 2.1 s …``."""
    seconds = seconds_text(backup.lost_ms / 1000)
    if backup.published_ms is None:
        return (
            f"nothing is published yet, {seconds} after the start: without the broker's disk all would be lost that no "
            "earlier start has published"
        )
    if not backup.lost_records:
        return "nothing would be lost without the broker's disk"
    records = count_of(backup.lost_records, "record")
    return f"{records}, {bytes_text(backup.lost_bytes)}, of the last {seconds} would be lost without the broker's disk"


def percent_text(share: float | None) -> str:
    """``37%``."""
    return NONE if share is None else f"{100 * share:.0f}%"


def _scaled(number: float, unit: str, gap: str = "") -> str:
    if math.isinf(number) or math.isnan(number):
        return NONE
    step, scaled = 0, number
    while abs(scaled) >= 999.5 and step < len(_PREFIXES) - 1:
        scaled /= 1000
        step += 1
    digits = f"{scaled:.0f}" if step == 0 and (abs(scaled) >= 10 or scaled == int(scaled)) else _digits(scaled)
    return f"{digits}{gap}{_PREFIXES[step]}{unit}"


def _digits(number: float) -> str:
    """Three digits: ``1.23``, ``12.3``, ``123``."""
    for most, places in ((9.995, 2), (99.95, 1)):
        if abs(number) < most:
            return f"{number:.{places}f}".rstrip("0").rstrip(".")
    return f"{number:.0f}"
