"""Values as text for people: sizes, counts, times, keys and values of records."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT_MAX: Final = 160


def size_text(size: int) -> str:
    """``97 B``, ``34.5 KiB``, ``1.0 GiB``."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1023.95 or unit == "GiB":
            return f"{value:,.1f} {unit}"
    raise AssertionError("unreachable")


def range_text(position: int, end_position: int) -> str:
    """``bytes 100 to 199 (100 B)``, for [position, end_position)."""
    return f"bytes {position} to {end_position - 1} ({size_text(end_position - position)})"


def time_text(timestamp: int | None) -> str:
    """UTC with milliseconds, ``-`` for none, ``@`` and the number for a time beyond any calendar."""
    if timestamp is None or timestamp == -1:
        return "-"
    try:
        text = (_EPOCH + timedelta(milliseconds=timestamp)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"@{timestamp}"
    return text.removesuffix("+00:00") + "Z"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 batch``, ``1,200 batches``."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def bytes_text(content: bytes | None) -> str:
    """A key or value: ``'text'`` with its odd characters escaped, ``base64:...``, or ``null``; long ones are cut."""
    if content is None:
        return "null"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        shown = "base64:" + base64.b64encode(content[:_TEXT_MAX]).decode()
        is_cut = len(content) > _TEXT_MAX
    else:
        shown = repr(text[:_TEXT_MAX])  # chooses the quotes, and escapes unprintable characters
        is_cut = len(text) > _TEXT_MAX
    return f"{shown}... ({len(content):,} bytes)" if is_cut else shown
