"""The pictures of ``seglog explain``: a bar for each segment of a partition, and each probe of a seek with its scan."""

from collections.abc import Callable, Iterator, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple

from seglog.cli.pictures.model import Kind, Mark, Picture, Row, Span, Strip
from seglog.cli.pictures.scales import NumberScale, TimeScale
from seglog.cli.segment_table import leaves_disk, leaves_log, title_of
from seglog.core.errors import count_of, duration_of
from seglog.core.explaining import PartitionExplanation
from seglog.core.moments import AtOffset, AtTime, format_time, from_epoch_ms
from seglog_protocol.messages import ExplainedLookup, ExplainedSegment, ExplainReply, ExplainSegmentsReply
from seglog_protocol.texts import printable

ROWS_MAX: Final = 40
"""Bars; of more segments the first and the last are shown."""

_DETAILS: Final = ("BYTES", "FIRST", "NEWEST", "ROLLED", "MAY GO", "CHECK", "FILES GONE")
_SPARE: Final = (0, 3)
_ROOM: Final = 58


def segments_picture(
    explained: PartitionExplanation,
    zone: tzinfo | None,
    *,
    rows: int = ROWS_MAX,
    link: Callable[[int], str] | None = None,
) -> Picture:
    """A partition's segments, at most ``rows`` of them; a note in their midst counts the others.

    ``link`` gives the address of more about a segment, by its base offset.
    """
    log = explained.partition
    shown, hidden = chosen(explained.segments, max(2, rows))
    lives = [life_of(segment, log) for segment in shown]
    times = [moment for life in lives for moment in life.times]
    scale = TimeScale([*times, log.next_check_ms], now=log.now_ms, zone=zone)
    bars = [_row(life, scale, log, zone, link) for life in lives]
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


def chosen(
    segments: Sequence[ExplainedSegment], rows: int
) -> tuple[Sequence[ExplainedSegment], Sequence[ExplainedSegment]]:
    """At most ``rows`` segments that are shown, and those between them that are not."""
    if len(segments) <= rows:
        return segments, []
    last = rows // 2
    first = rows - last
    return [*segments[:first], *segments[-last:]], segments[first:-last]


def _hidden(segments: Sequence[ExplainedSegment]) -> str:
    size = count_of(sum(segment.size for segment in segments), "byte")
    offsets = f"offsets {segments[0].base_offset:,} to {segments[-1].next_offset - 1:,}"
    return f"{count_of(len(segments), 'more segment')}, {offsets}, {size}"


class Life(NamedTuple):
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


def life_of(segment: ExplainedSegment, log: ExplainSegmentsReply) -> Life:
    """The past and the future of a segment, as far as it is known."""
    newest = segment.largest_timestamp
    if segment.age_since_ms is not None and (newest is None or segment.age_source != "largest timestamp"):
        newest = segment.age_since_ms
    check = gone = None
    if segment.state == "deleted":
        delay = max(0, setting(log, "file.delete.delay.ms") or 0)
        gone = segment.gone_by_ms
        check = None if gone is None else min(log.now_ms, gone - delay)
    else:
        check, gone = leaves_log(segment, log)[1], leaves_disk(segment, log)[1]
    due = None if check is None else segment.deletable_ms
    return Life(segment, segment.first_timestamp, newest, segment.rolled_ms, due, check, gone)


def _row(
    life: Life, scale: TimeScale, log: ExplainSegmentsReply, zone: tzinfo | None, link: Callable[[int], str] | None
) -> Row:
    segment = life.segment
    to_come = segment.bytes_to_come if life.check is None else None
    times = (life.first, life.newest, life.rolled, life.due, life.check, life.gone)
    first, newest, rolled, due, check, gone = (short_time(time, now=log.now_ms, zone=zone) for time in times)
    return Row(
        label=(f"{segment.base_offset:,}", printable(segment.state)),
        spans=tuple(_spans(life, scale, log)),
        marks=tuple(_marks(life, scale)),
        details=(
            f"{segment.size:,}",
            *(first, newest, rolled),
            *(due if to_come is None else f"{to_come:,} B more", check, gone),
        ),
        link="" if link is None or segment.state == "deleted" else link(segment.base_offset),
    )


def _spans(life: Life, scale: TimeScale, log: ExplainSegmentsReply) -> Iterator[Span]:
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


def _marks(life: Life, scale: TimeScale) -> Iterator[Mark]:
    if life.rolled is not None and life.segment.state != "deleted":
        yield Mark(scale.place(life.rolled), Kind.ROLLED)
    if life.gone is not None:
        yield Mark(scale.place(life.gone), Kind.GONE)


# --- Sentences about segments -----------------------------------------------------------------------------------------


def _facts(log: ExplainSegmentsReply, zone: tzinfo | None) -> Iterator[str]:
    until = duration_of(max(0, log.next_check_ms - log.now_ms))
    yield f"now {format_time(log.now_ms, zone)}; the next check is in {until}"
    policy = log.config.get("cleanup.policy")
    if policy is not None and "delete" not in policy.value:
        yield f"cleanup.policy = {printable(policy.value)} deletes no segments" if policy.value else "no cleanup.policy"
        yield from (printable(sentence) for sentence in (*log.doubts, *log.problems))
        return
    rules = []
    retention, size = setting(log, "retention.ms"), setting(log, "retention.bytes")
    if retention is not None:
        rules.append("retention.ms sets no limit" if retention < 0 else f"retention.ms {duration_of(retention)}")
    if size is not None and size >= 0:
        rules.append(f"retention.bytes {size:,}")
    rules.append(f"a check every {duration_of(log.check_interval_ms)}")
    if (delay := setting(log, "file.delete.delay.ms")) is not None:
        rules.append(f"files gone {duration_of(delay)} later")
    yield ", ".join(rules)
    yield from (printable(sentence) for sentence in (*log.doubts, *log.problems))


def _after(lives: Sequence[Life], log: ExplainSegmentsReply, zone: tzinfo | None) -> Iterator[str]:
    """What a bytes' cell means, and the whole chain for the first record of the oldest segment that is in the log."""
    if any(life.check is None and life.segment.bytes_to_come is not None for life in lives):
        yield "B more: it goes by its size, at the check after so many bytes"
    oldest = next((life for life in lives if life.segment.state != "deleted"), None)
    retention = setting(log, "retention.ms")
    if oldest is None or oldest.first is None or oldest.newest is None or oldest.check is None:
        return

    def at(time: int) -> str:
        return short_time(time, now=log.now_ms, zone=zone)

    chain = [f"record {max(log.earliest, oldest.segment.base_offset):,}: written {at(oldest.first)}"]
    if retention is not None and retention >= 0 and oldest.due is not None:
        chain.append(f"may expire from {at(oldest.first + retention)} on")
        if oldest.first < oldest.newest:
            chain.append(f"its segment from {at(oldest.due)} on")
    chain.append(f"check {at(oldest.check)}")
    if oldest.gone is not None:
        chain.append(f"files gone {at(oldest.gone)}")
    yield ", ".join(chain)


def setting(log: ExplainSegmentsReply, key: str) -> int | None:
    """A whole number of the configuration; None if it is missing or is none."""
    entry = log.config.get(key)
    try:
        return None if entry is None else int(entry.value)
    except ValueError:
        return None


def short_time(time: int | None, *, now: int, zone: tzinfo | None) -> str:
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


# --- A seek -----------------------------------------------------------------------------------------------------------

_LOOKUPS_MAX: Final = 8
_PROBES_MAX: Final = 64
"""No index has so many entries that a search needs more."""


def seek_picture(reply: ExplainReply, wanted: AtOffset | AtTime, zone: tzinfo | None) -> Picture:
    """A seek, from its segment to the batch that was found."""
    place = f"offset {wanted.offset:,}" if isinstance(wanted, AtOffset) else format_time(wanted.timestamp, zone)
    segment = "no segment" if reply.segment is None else f"segment {reply.segment:020d}"
    facts = [f"{segment}: {printable(reply.why)}"]
    if reply.rebuilt_indexes:
        facts.append("an index was missing or did not lead to a batch, and was rebuilt first")
    return Picture(
        f"{printable(reply.topic)}-{reply.partition}, {place}, in {count_of(reply.segments, 'segment')}",
        tuple(facts),
        (*(_lookup(lookup, zone) for lookup in reply.lookups[:_LOOKUPS_MAX]), *_log(reply, zone)),
    )


# --- An index ---------------------------------------------------------------------------------------------------------


def _lookup(lookup: ExplainedLookup, zone: tzinfo | None) -> Strip:
    is_time = lookup.index == "time"
    entries = count_of(lookup.entries, "entry", many="entries")
    sought = f"before {format_time(lookup.wanted, zone)}" if is_time else f"at or below offset {lookup.wanted:,}"
    name = printable(lookup.file.rpartition("/")[2])
    return Strip(
        NumberScale(0, max(1, lookup.entries)),
        tuple(_probes(lookup, zone)),
        title=f"{name}, {entries}: the last one {sought}",
        label_titles=("PROBE",),
        detail_titles=("ENTRY", "TIME" if is_time else "OFFSET", "GO"),
        after=(_outcome(lookup, zone),),
    )


def _probes(lookup: ExplainedLookup, zone: tzinfo | None) -> Iterator[Row]:
    """A row for each entry that was read: what was still possible before it."""
    scale = NumberScale(0, max(1, lookup.entries))
    is_time = lookup.index == "time"
    low, high, found = 0, lookup.entries, None
    for number, probe in enumerate(lookup.trail[:_PROBES_MAX], start=1):
        is_below = probe.key < lookup.wanted if is_time else probe.key <= lookup.wanted
        span = Span(scale.place(min(low, high)), scale.place(max(low, high)), Kind.RANGE)
        mark = Mark((scale.place(probe.entry) + scale.place(probe.entry + 1)) / 2, Kind.PROBE)
        cells = (f"{probe.entry:,}", _key(lookup, probe.key, zone), "right" if is_below else "left")
        yield Row((str(number),), (span,), (mark,), cells)
        if is_below:
            low, found = probe.entry + 1, probe
        else:
            high = probe.entry
    if found is not None and lookup.key is not None:
        place = (scale.place(found.entry) + scale.place(found.entry + 1)) / 2
        cells = (f"{found.entry:,}", _key(lookup, found.key, zone), "")
        yield Row(("found",), (), (Mark(place, Kind.FOUND),), cells)


def _key(lookup: ExplainedLookup, key: int, zone: tzinfo | None) -> str:
    return format_time(key, zone) if lookup.index == "time" else f"{key:,}"


def _outcome(lookup: ExplainedLookup, zone: tzinfo | None) -> str:
    if not lookup.entries:
        return "It is empty: the scan begins where the segment does."
    if lookup.key is None or lookup.value is None:
        return "Every entry lies above: the scan begins where the segment does."
    if lookup.index == "time":
        return f"Nothing up to offset {lookup.value:,} is after {format_time(lookup.key, zone)}."
    return f"Offset {lookup.key:,} ends the batch at position {lookup.value:,}: the scan begins there."


# --- The log ----------------------------------------------------------------------------------------------------------


def _log(reply: ExplainReply, zone: tzinfo | None) -> Iterator[Strip]:
    """The whole file, and below it the part that was scanned, as wide as there is room."""
    if reply.position is None:
        return
    start = min(reply.scan_start, reply.position)
    end = reply.position + max(1, reply.batch_size)
    size = max(end, reply.log_size)
    whole = NumberScale(0, size)
    at, batch, behind = whole.place(start), whole.place(reply.position), whole.place(end)
    spans = [Span(at, batch, Kind.SCAN), Span(batch, behind, Kind.BATCH)]
    if start > 0:
        spans.insert(0, Span(0.0, at, Kind.FILE))
    if end < size:
        spans.append(Span(behind, 1.0, Kind.FILE))
    name = "" if reply.segment is None else f"{reply.segment:020d}.log, "
    yield Strip(whole, (Row(("file",), tuple(spans)),), title=f"{name}{count_of(size, 'byte')}")
    near = NumberScale(start, end)
    found = near.place(reply.position)
    spans = [Span(0.0, found, Kind.SCAN)] if reply.position > start else []
    marks = tuple(Mark(near.place(position), Kind.HEADER) for position in reply.positions)
    yield Strip(
        near,
        (Row(("scan",), (*spans, Span(found, 1.0, Kind.BATCH)), marks),),
        title=(
            f"the scan: {count_of(reply.scanned_batches, 'batch header')} over "
            f"{count_of(reply.scanned_bytes, 'byte')}, {count_of(reply.read_bytes, 'byte')} of the log read"
        ),
        after=tuple(_found(reply, zone)),
    )


def _found(reply: ExplainReply, zone: tzinfo | None) -> Iterator[str]:
    if reply.base_offset is not None and reply.last_offset is not None:
        yield f"The batch has offsets {reply.base_offset:,} to {reply.last_offset:,}, at position {reply.position:,}."
    if reply.record_offset is not None and reply.record_timestamp is not None:
        yield f"The record is at offset {reply.record_offset:,}, of {format_time(reply.record_timestamp, zone)}."
