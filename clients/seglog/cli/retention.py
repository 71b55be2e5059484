"""The retention that really holds: between which ages records leave a partition, and why not at the configured one."""

from typing import NamedTuple

from seglog.cli.pictures.explained import setting
from seglog.core.errors import duration_of
from seglog.core.explaining import PartitionExplanation
from seglog_protocol.messages import ExplainedSegment


class Kept(NamedTuple):
    """Ages in ms. The first record of a segment leaves the log at ``least_ms`` or later, the disk by ``most_ms``.

    None: no age limits it. ``text`` is short, ``sentence`` says where the difference to ``configured_ms`` comes from.
    """

    configured_ms: int | None
    least_ms: int | None
    most_ms: int | None
    text: str
    sentence: str


def kept(explained: PartitionExplanation) -> Kept:
    """How long a partition keeps records, as its closed segments have it.

    Where there are none yet, a segment is taken to span ``segment.ms`` at most.
    """
    log = explained.partition
    retention, size = setting(log, "retention.ms"), setting(log, "retention.bytes")
    policy = log.config.get("cleanup.policy")
    if policy is not None and "delete" not in policy.value:
        until = "until a newer record has its key" if policy.value else "for ever: there is no cleanup.policy"
        return Kept(None, None, None, until, f"A record is kept {until}.")
    behind = "" if size is None or size < 0 else f"until {size:,} bytes are behind it"
    if retention is None or retention < 0:
        text = behind or "for ever"
        return Kept(None, None, None, text, f"A record is kept {text}.")
    delay = max(0, setting(log, "file.delete.delay.ms") or 0)
    spans = [age for segment in explained.segments if (age := _ages(segment)) is not None]
    if spans:
        least, most = min(first for first, _ in spans), max(last for _, last in spans)
        younger = max(0, most - retention - log.check_interval_ms - delay)
    else:
        younger = max(0, setting(log, "segment.ms") or 0)
        least, most = retention, retention + younger + log.check_interval_ms + delay
    sentence = (
        f"The first record of a segment is kept {_from_to(least, most)}; configured: {duration_of(retention)}. Its "
        f"segment goes as a whole, with its newest record, up to {_short(younger)} younger; a check comes every "
        f"{duration_of(log.check_interval_ms)}; files go {duration_of(delay)} later."
    )
    sooner = f" It goes sooner, if {size:,} bytes are behind it before." if behind else ""
    return Kept(retention, least, most, _from_to(least, most), sentence + sooner)


def kept_text(explained: PartitionExplanation) -> str:
    """``17 to 23 min, configured 10 min``."""
    found = kept(explained)
    return found.text if found.configured_ms is None else f"{found.text}, configured {duration_of(found.configured_ms)}"


def _ages(segment: ExplainedSegment) -> tuple[int, int] | None:
    """The ages of its first record when it may leave the log, and when it has left the disk at the latest."""
    first, leaves, gone = segment.first_timestamp, segment.leaves_from_ms, segment.gone_by_ms
    if segment.state in {"active", "deleted"} or first is None or leaves is None or gone is None:
        return None
    return max(0, leaves - first), max(0, gone - first)


def _from_to(least: int, most: int) -> str:
    near, far = duration_of(least), duration_of(most)
    if near == far:
        return near
    number, _, unit = near.partition(" ")
    return f"{number} to {far}" if far.split(" ")[1:] == [unit] else f"{near} to {far}"


def _short(milliseconds: int) -> str:
    return duration_of(milliseconds) if milliseconds >= 1000 else "1 s"
