"""The picture of one segment: index entries, batches by codec, how dense records lie, and their times over offsets."""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple

from seglog.cli.figures import bytes_text
from seglog.cli.pictures.lanes import apart
from seglog.cli.pictures.model import Kind, Mark, Picture, Row, Span, Strip
from seglog.cli.pictures.scales import NumberScale
from seglog.core.moments import format_time
from seglog_protocol.texts import printable

DAMAGED: Final = "damaged"
"""The name, in place of a codec, of bytes that hold no batch any more."""
_BARS: Final = 60
"""Of a row; batches are put together for each."""
_LINES: Final = 4


class Batch(NamedTuple):
    """A batch of a segment: its bytes from ``position`` on. ``codec`` "" is not known, ``timestamp`` its largest."""

    position: int
    size: int
    base_offset: int
    next_offset: int
    records: int
    timestamp: int | None
    codec: str


class Entry(NamedTuple):
    """An entry of the offset index: the batch that ends with ``offset`` begins at ``position``."""

    offset: int
    position: int


def density_picture(
    title: str,
    size: int,
    batches: Sequence[Batch],
    entries: Sequence[Entry],
    facts: Sequence[str],
    zone: tzinfo | None,
) -> Picture:
    """A segment of ``size`` bytes: all of its batches, or samples of them, in their order; there is one at least."""
    file, offsets = NumberScale(0, max(1, size)), NumberScale(batches[0].base_offset, batches[-1].next_offset)
    rows = [*_index(entries, file), *_codecs(batches, file), *_amounts(batches, file)]
    strips = [Strip(file, tuple(rows), title="over the bytes of the file", label_titles=("",), detail_titles=("",))]
    if (row := _times(batches, offsets, zone)) is not None:
        strips.append(Strip(offsets, (row,), title="over its offsets", label_titles=("",), detail_titles=("",)))
    return Picture(printable(title), tuple(facts), tuple(strips))


def _index(entries: Sequence[Entry], file: NumberScale) -> Iterator[Row]:
    marks = [Mark(file.place(entry.position), Kind.ENTRY, f"offset {entry.offset:,}") for entry in entries]
    if marks:
        yield Row(("index",), (), tuple(marks), (f"entries: {len(marks):,}",))


def _codecs(batches: Sequence[Batch], file: NumberScale) -> Iterator[Row]:
    """A row for each codec, with its batches where they lie; neighbours are drawn as one."""
    for codec in sorted({batch.codec for batch in batches}):
        some = [batch for batch in batches if batch.codec == codec]
        spans: list[Span] = []
        for batch in some:
            first, last = file.place(batch.position), file.place(batch.position + batch.size)
            if spans and first - spans[-1].last < 1 / 600:
                spans[-1] = spans[-1]._replace(last=last)
            else:
                spans.append(Span(first, last, Kind.WRONG if codec == DAMAGED else Kind.BATCHES))
        places = apart([span[:2] for span in spans], 0.005)
        sizes = [batch.size for batch in some]
        said = f"batches: {len(some):,}, of {bytes_text(min(sizes))} to {bytes_text(max(sizes))}"
        drawn = (span._replace(first=a, last=b) for span, (a, b) in zip(spans, places, strict=True))
        yield Row((codec or "not read",), tuple(drawn), (), (said,))


def _amounts(batches: Sequence[Batch], file: NumberScale) -> Iterator[Row]:
    """How many records lie in a kilobyte."""
    intact = [batch for batch in batches if batch.codec != DAMAGED]
    if not intact:
        return
    columns = _columns(intact, [file.place(batch.position) for batch in intact])
    places = [(file.place(some[0].position), file.place(some[-1].position + some[-1].size)) for some in columns]
    values = [1000 * sum(each.records for each in some) / sum(each.size for each in some) for some in columns]
    least, most = min(values), max(values) or 1.0
    spans = [
        Span(*place, Kind.AMOUNT, max(0.02, value / most), f"{value:.3g}")
        for place, value in zip(apart(places, 0.005), values, strict=True)
    ]
    said = f"in a kilobyte: {most:.3g}" if least == most else f"in a kilobyte: {least:.3g} to {most:.3g}"
    yield Row(("records",), tuple(spans), (), (said,), lines=_LINES)


def _columns(batches: Sequence[Batch], places: Sequence[float]) -> list[list[Batch]]:
    """The batches of each bar that has some."""
    found: dict[int, list[Batch]] = {}
    for batch, place in zip(batches, places, strict=True):
        found.setdefault(min(_BARS - 1, int(place * _BARS)), []).append(batch)
    return list(found.values())


def _times(batches: Sequence[Batch], offsets: NumberScale, zone: tzinfo | None) -> Row | None:
    """The largest time in each part of the offsets; None where records have no times."""
    timed = [batch for batch in batches if batch.timestamp is not None and batch.timestamp >= 0]
    if not timed:
        return None
    times = [batch.timestamp or 0 for batch in timed]
    columns = _columns(timed, [offsets.place(batch.base_offset) for batch in timed])
    places = [(offsets.place(some[0].base_offset), offsets.place(some[-1].next_offset)) for some in columns]
    first, last = min(times), max(times)
    spans = []
    for place, some in zip(apart(places, 0.005), columns, strict=True):
        time = max(batch.timestamp or 0 for batch in some)
        height = max(0.02, (time - first) / max(1, last - first))
        spans.append(Span(*place, Kind.MOMENT, height, format_time(time, zone)))
    details = f"from {format_time(first, zone)} to {format_time(last, zone)}"
    return Row(("time",), tuple(spans), (), (details,), lines=2 * _LINES)
