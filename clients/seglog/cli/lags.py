"""The lag of a position as cells of a table, as JSON, and as a sentence where something is wrong."""

from typing import Any, Final

from seglog.core.errors import count_of, duration_of
from seglog.core.offsets import PartitionLag

_FATES: Final = {"expired": "have expired", "truncated": "were deleted", "missing": "are missing"}


def fate_of(reason: str) -> str:
    """What became of records that are gone, from the broker's word for it: they ``have expired``."""
    return _FATES.get(reason, f"are gone: {reason}")


def lag_as_json(lag: PartitionLag) -> dict[str, Any]:
    """Its fields, and what follows from them."""
    following = ("records", "unstable", "seconds", "seconds_to_loss", "lost", "is_beyond_end")
    return lag._asdict() | {name: getattr(lag, name) for name in following}


def behind(lag: PartitionLag) -> str:
    """The age of the next record; in words where the log gives no timestamp."""
    if lag.is_beyond_end:
        return "-"
    return "no timestamp" if lag.seconds is None else duration_of(round(lag.seconds * 1000))


def kept(lag: PartitionLag) -> str:
    """For how long what lies at the position is kept."""
    if not lag.records:
        return "-"
    kept = []
    if lag.loss_from_ms is not None and lag.loss_by_ms is not None:
        near, far = (duration_of(max(0, moment - lag.now_ms)) for moment in (lag.loss_from_ms, lag.loss_by_ms))
        kept.append(f"for {near}" if near == far else f"for {near} to {far}")
    if lag.bytes_to_loss is not None:
        kept.append(f"for {count_of(lag.bytes_to_loss, 'more byte')}")
    return " or ".join(kept) or "forever"


def what_is_wrong(lag: PartitionLag, what: str = "position") -> str | None:
    """A sentence where the position, which is called ``what``, lies outside the log; else None."""
    name = f"{lag.topic}-{lag.partition}"
    if lag.is_beyond_end:
        return (
            f"{name}: {what} {lag.position} is beyond the end of the log, {lag.latest}: "
            "the log lost records, or it was not read from this log"
        )
    if lag.lost:
        why = f" ({lag.earliest_reason})" if lag.earliest_reason else ""
        return (
            f"{name}: {what} {lag.position} is below the earliest offset, {lag.earliest}: "
            f"{count_of(lag.lost, 'offset')} before it cannot be read any more{why}"
        )
    return None
