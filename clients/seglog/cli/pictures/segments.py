"""The picture of ``seglog explain segments``: a bar for each segment, from its first record to the end of its files."""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple

from seglog.cli.pictures.model import Kind, Mark, Picture, Row, Span, Strip
from seglog.cli.pictures.scales import TimeScale
from seglog.cli.segment_table import leaves_disk, leaves_log, title_of
from seglog.core.errors import count_of, duration_of
from seglog.core.explaining import PartitionExplanation
from seglog.core.moments import format_time, from_epoch_ms
from seglog_protocol.messages import ExplainedSegment, ExplainSegmentsReply
from seglog_protocol.texts import printable

ROWS_MAX: Final = 40
"""Bars; of more segments the first and the last are shown."""

_DETAILS: Final = ("BYTES", "FIRST", "NEWEST", "ROLLED", "MAY GO", "CHECK", "FILES GONE")
_SPARE: Final = (0, 3)
_ROOM: Final = 58


def segments_picture(explained: PartitionExplanation, zone: tzinfo | None, *, rows: int = ROWS_MAX) -> Picture:
    """A partition's segments, at most ``rows`` of them; a note in their midst counts the others."""
    log = explained.partition
    shown, hidden = _chosen(explained.segments, max(2, rows))
    lives = [_life(segment, log) for segment in shown]
    times = [moment for life in lives for moment in life.times]
    scale = TimeScale([*times, log.next_check_ms], now=log.now_ms, zone=zone)
    bars = [_row(life, scale, log, zone) for life in lives]
    if hidden:
        bars.insert(len(bars) - len(bars) // 2, Row(note=_hidden(hidden)))
    guides = (Mark(scale.place(log.now_ms), Kind.NOW), Mark(scale.place(log.next_check_ms), Kind.CHECK))
    strip = Strip(
        scale,
        tuple(bars),
        label_titles=("SEGMENT", "STATE"),
        detail_titles=_DETAILS,
        guides=guides,
        after=tuple(_after(lives, log, zone)),
        room=_ROOM,
        spare=_SPARE,
    )
    return Picture(printable(title_of(log)), tuple(_facts(log, zone)), (strip,))


def _chosen(
    segments: Sequence[ExplainedSegment], rows: int
) -> tuple[Sequence[ExplainedSegment], Sequence[ExplainedSegment]]:
    """The segments that are shown, and those between them that are not."""
    if len(segments) <= rows:
        return segments, []
    last = rows // 2
    first = rows - last
    return [*segments[:first], *segments[-last:]], segments[first:-last]


def _hidden(segments: Sequence[ExplainedSegment]) -> str:
    size = count_of(sum(segment.size for segment in segments), "byte")
    offsets = f"offsets {segments[0].base_offset:,} to {segments[-1].next_offset - 1:,}"
    return f"{count_of(len(segments), 'more segment')}, {offsets}, {size}"


class _Life(NamedTuple):
    """What happens to a segment, epoch ms; None for what does not, or is not known."""

    segment: ExplainedSegment
    first: int | None
    newest: int | None
    rolled: int | None
    due: int | None
    check: int | None
    gone: int | None

    @property
    def times(self) -> list[int]:
        """All that is known."""
        return [time for time in self[1:] if isinstance(time, int)]


def _life(segment: ExplainedSegment, log: ExplainSegmentsReply) -> _Life:
    newest = segment.largest_timestamp
    if segment.age_since_ms is not None and (newest is None or segment.age_source != "largest timestamp"):
        newest = segment.age_since_ms
    check = gone = None
    if segment.state == "deleted":
        delay = max(0, _setting(log, "file.delete.delay.ms") or 0)
        gone = segment.gone_by_ms
        check = None if gone is None else min(log.now_ms, gone - delay)
    else:
        check, gone = leaves_log(segment, log)[1], leaves_disk(segment, log)[1]
    due = None if check is None else segment.deletable_ms
    return _Life(segment, segment.first_timestamp, newest, segment.rolled_ms, due, check, gone)


def _row(life: _Life, scale: TimeScale, log: ExplainSegmentsReply, zone: tzinfo | None) -> Row:
    segment = life.segment
    to_come = segment.bytes_to_come if life.check is None else None
    times = (life.first, life.newest, life.rolled, life.due, life.check, life.gone)
    first, newest, rolled, due, check, gone = (_short_time(time, now=log.now_ms, zone=zone) for time in times)
    return Row(
        label=(f"{segment.base_offset:,}", printable(segment.state)),
        spans=tuple(_spans(life, scale, log)),
        marks=tuple(_marks(life, scale)),
        details=(
            f"{segment.size:,}",
            *(first, newest, rolled),
            *(due if to_come is None else f"{to_come:,} B more", check, gone),
        ),
    )


def _spans(life: _Life, scale: TimeScale, log: ExplainSegmentsReply) -> Iterator[Span]:
    """One after the other: each begins where the one before it ended, whatever the clocks of producers were."""
    if life.segment.state == "deleted":
        if life.check is not None and life.gone is not None:
            yield Span(scale.place(life.check), scale.place(life.gone), Kind.GOING)
        return
    begin = end = None
    if life.newest is not None:
        begin = min(life.newest, life.newest if life.first is None else life.first)
        end = life.newest
        yield Span(scale.place(begin), scale.place(end), Kind.RECORDS)
    if life.check is None or life.gone is None:
        if end is not None and not life.segment.rule:
            yield Span(scale.place(end), 1.0, Kind.KEPT_FOR_EVER)
        return
    if end is None:
        end = log.now_ms
    due = min(max(end, life.check if life.due is None else life.due), max(end, life.check))
    if due > end:
        yield Span(scale.place(end), scale.place(due), Kind.KEPT)
    check = max(due, life.check)
    if check > due:
        yield Span(scale.place(due), scale.place(check), Kind.DUE)
    if life.gone > check:
        yield Span(scale.place(check), scale.place(life.gone), Kind.GOING)


def _marks(life: _Life, scale: TimeScale) -> Iterator[Mark]:
    if life.rolled is not None and life.segment.state != "deleted":
        yield Mark(scale.place(life.rolled), Kind.ROLLED)
    if life.gone is not None:
        yield Mark(scale.place(life.gone), Kind.GONE)


# --- Sentences --------------------------------------------------------------------------------------------------------


def _facts(log: ExplainSegmentsReply, zone: tzinfo | None) -> Iterator[str]:
    until = duration_of(max(0, log.next_check_ms - log.now_ms))
    yield f"now {format_time(log.now_ms, zone)}; the next check is in {until}"
    policy = log.config.get("cleanup.policy")
    if policy is not None and "delete" not in policy.value:
        yield f"cleanup.policy = {printable(policy.value)} deletes no segments" if policy.value else "no cleanup.policy"
        yield from (printable(sentence) for sentence in (*log.doubts, *log.problems))
        return
    rules = []
    retention, size = _setting(log, "retention.ms"), _setting(log, "retention.bytes")
    if retention is not None:
        rules.append("retention.ms sets no limit" if retention < 0 else f"retention.ms {duration_of(retention)}")
    if size is not None and size >= 0:
        rules.append(f"retention.bytes {size:,}")
    rules.append(f"a check every {duration_of(log.check_interval_ms)}")
    if (delay := _setting(log, "file.delete.delay.ms")) is not None:
        rules.append(f"files gone {duration_of(delay)} later")
    yield ", ".join(rules)
    yield from (printable(sentence) for sentence in (*log.doubts, *log.problems))


def _after(lives: Sequence[_Life], log: ExplainSegmentsReply, zone: tzinfo | None) -> Iterator[str]:
    """What a bytes' cell means, and the whole chain for the first record of the oldest segment that is in the log."""
    if any(life.check is None and life.segment.bytes_to_come is not None for life in lives):
        yield "B more: it goes by its size, at the check after so many bytes"
    oldest = next((life for life in lives if life.segment.state != "deleted"), None)
    retention = _setting(log, "retention.ms")
    if oldest is None or oldest.first is None or oldest.newest is None or oldest.check is None:
        return

    def at(time: int) -> str:
        return _short_time(time, now=log.now_ms, zone=zone)

    chain = [f"record {max(log.earliest, oldest.segment.base_offset):,}: written {at(oldest.first)}"]
    if retention is not None and retention >= 0 and oldest.due is not None:
        chain.append(f"may expire from {at(oldest.first + retention)} on")
        if oldest.first < oldest.newest:
            chain.append(f"its segment from {at(oldest.due)} on")
    chain.append(f"check {at(oldest.check)}")
    if oldest.gone is not None:
        chain.append(f"files gone {at(oldest.gone)}")
    yield ", ".join(chain)


def _setting(log: ExplainSegmentsReply, key: str) -> int | None:
    """A whole number of the configuration; None if it is missing or is none."""
    entry = log.config.get(key)
    try:
        return None if entry is None else int(entry.value)
    except ValueError:
        return None


def _short_time(time: int | None, *, now: int, zone: tzinfo | None) -> str:
    """``10:17:00`` today, ``07-01 10:17`` this year, else ``2024-07-01``: the title has the date of today."""
    if time is None:
        return "-"
    try:
        local, today = from_epoch_ms(time, zone), from_epoch_ms(now, zone)
    except (OverflowError, ValueError):
        return f"@{time}"
    if local.date() == today.date():
        return f"{local:%H:%M:%S}"
    return f"{local:%m-%d %H:%M}" if local.year == today.year else f"{local:%Y-%m-%d}"
