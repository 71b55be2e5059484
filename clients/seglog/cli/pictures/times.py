"""Times as cells of a picture: short, because the title has the date of today."""

from datetime import tzinfo

from seglog.core.moments import from_epoch_ms


def short_time(time: int | None, *, now: int, zone: tzinfo | None, is_exact: bool = False) -> str:
    """``10:17:00`` today, ``07-01 10:17`` this year, else ``2024-07-01``; with milliseconds if ``is_exact``."""
    if time is None:
        return "-"
    try:
        local, today = from_epoch_ms(time, zone), from_epoch_ms(now, zone)
    except (OverflowError, ValueError):
        return f"@{time}"
    clock = f"{local:%H:%M:%S}" + (f".{local.microsecond // 1000:03d}" if is_exact else "")
    if local.date() == today.date():
        return clock
    if is_exact:
        return f"{local:%Y-%m-%d} {clock}"
    return f"{local:%m-%d %H:%M}" if local.year == today.year else f"{local:%Y-%m-%d}"
