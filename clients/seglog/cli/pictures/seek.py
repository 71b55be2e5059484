"""The picture of ``seglog explain seek``: what each probe of an index leaves, then the scan of the log."""

from collections.abc import Iterator
from datetime import tzinfo
from typing import Final

from seglog.cli.pictures.model import Kind, Mark, Picture, Row, Span, Strip
from seglog.cli.pictures.scales import NumberScale
from seglog.core.errors import count_of
from seglog.core.moments import AtOffset, AtTime, format_time
from seglog_protocol.messages import ExplainedLookup, ExplainReply
from seglog_protocol.texts import printable

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
