"""The picture of a topic: in a lane for each partition its segments and the groups' next records lie over time."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple

from seglog.cli.figures import bytes_text
from seglog.cli.pictures.explained import Life, life_of, setting
from seglog.cli.pictures.model import Kind, Mark, Picture, Row, Span, Strip
from seglog.cli.pictures.scales import TimeScale
from seglog.cli.retention import kept
from seglog.core.errors import count_of, duration_of
from seglog.core.explaining import PartitionExplanation
from seglog.core.moments import format_time
from seglog.core.offsets import PartitionLag
from seglog_protocol.messages import ExplainSegmentsReply
from seglog_protocol.texts import printable

LANES_MAX: Final = 25
"""Partitions of one picture."""
READERS_MAX: Final = 8
"""Groups that are drawn, those that are furthest behind."""
_SEGMENTS_MAX: Final = 40
_SPANS_MAX: Final = 240
_PINS_MAX: Final = 120
"""Segments and groups' places of all lanes together: a page has 100 kB."""
_PROBLEMS_MAX: Final = 5
_HIGHEST: Final = 0.56
"""Of the height of a lane; pins of groups stand out."""
_LOWEST: Final = 0.16
_SHORTEST: Final = 0.006
_PIN: Final = 0.025

_OFFSETS: Final = re.compile(r"\boffsets (\d{1,19}) to")

Link = Callable[[int, int | None], str]
"""The address of a segment, by partition and base offset, or of a partition, with None."""


def lanes_picture(
    lanes: Sequence[PartitionExplanation],
    groups: Mapping[str, Sequence[PartitionLag]],
    zone: tzinfo | None,
    link: Link,
) -> Picture:
    """The partitions ``lanes`` of a topic, at most ``LANES_MAX``, with the positions of groups in them."""
    lanes = lanes[:LANES_MAX]
    most = max(1, min(_SEGMENTS_MAX, _SPANS_MAX // max(1, len(lanes))))
    drawn = [_Lane(explained.partition, *_shown(explained, most)) for explained in lanes]
    now = max((lane.log.now_ms for lane in drawn), default=0)
    frontier = _frontier(drawn)
    times = [
        time for lane in drawn for life in (*lane.older, *lane.lives) for time in (life.first, life.newest) if time
    ]
    scale = TimeScale(times if frontier is None else [*times, frontier], now=now, zone=zone)
    letters = _letters(groups, min(READERS_MAX, _PINS_MAX // max(1, len(lanes))))
    largest = max((life.segment.size for lane in drawn for life in lane.lives), default=0)
    rows = [
        _row(lane, explained, scale, largest, letters, groups, link)
        for lane, explained in zip(drawn, lanes, strict=True)
    ]
    guides = [Mark(scale.place(now), Kind.NOW)]
    if frontier is not None:
        guides.append(Mark(scale.place(frontier), Kind.FRONTIER, "retention: what is older may go"))
    strip = Strip(
        scale,
        tuple(rows),
        label_titles=("PARTITION",),
        detail_titles=("SEGMENTS", "SIZE", "KEPT"),
        guides=tuple(guides),
        after=tuple(_readers(groups, letters)),
    )
    title = f"{drawn[0].log.topic}, " if drawn else ""
    return Picture(
        printable(f"{title}{count_of(len(drawn), 'partition')} over the time of records"),
        tuple(_facts(lanes, now, zone)),
        (strip,),
    )


class _Lane(NamedTuple):
    """A partition: its older segments, which are drawn as one, and the others."""

    log: ExplainSegmentsReply
    older: Sequence[Life]
    lives: Sequence[Life]


def _shown(explained: PartitionExplanation, most: int) -> tuple[Sequence[Life], Sequence[Life]]:
    lives = [life_of(segment, explained.partition) for segment in explained.segments if segment.state != "deleted"]
    if len(lives) <= most:
        return [], lives
    return lives[: len(lives) - most + 1], lives[len(lives) - most + 1 :]


def _frontier(lanes: Sequence[_Lane]) -> int | None:
    """The time before which records may go; None where none is set."""
    for lane in lanes:
        retention, policy = setting(lane.log, "retention.ms"), lane.log.config.get("cleanup.policy")
        if retention is not None and retention >= 0 and (policy is None or "delete" in policy.value):
            return max(0, lane.log.now_ms - retention)
    return None


def _row(
    lane: _Lane,
    explained: PartitionExplanation,
    scale: TimeScale,
    largest: int,
    letters: Mapping[str, str],
    groups: Mapping[str, Sequence[PartitionLag]],
    link: Link,
) -> Row:
    log = lane.log
    spans = [_span(life, log, scale, largest, link) for life in lane.lives if life.newest is not None]
    if lane.older:
        spans.insert(0, _merged(lane.older, log, scale, link))
    spans = [
        span._replace(first=first, last=last)
        for span, (first, last) in zip(spans, apart([span[:2] for span in spans], _SHORTEST), strict=True)
    ]
    pins = sorted(
        (scale.place(_time(lag)), letters[name], f"{printable(name)}, {_position(lag)}")
        for name, lags in groups.items()
        if name in letters
        for lag in lags
        if lag.partition == log.partition
    )
    places = apart([(max(0.0, at - _PIN / 2),) * 2 for at, _, _ in pins], _PIN)
    marks = [
        *_size_frontier(lane, spans),
        *_wrong(lane, spans),
        *(
            Mark(at + _PIN / 2, Kind.READER, name, letter)
            for (at, _), (_, letter, name) in zip(places, pins, strict=True)
        ),
    ]
    return Row(
        label=(f"{log.partition}",),
        spans=tuple(spans),
        marks=tuple(marks),
        details=(f"{log.segments:,}", bytes_text(log.size), kept(explained).text),
        link=link(log.partition, None),
        lines=2,
    )


def _span(life: Life, log: ExplainSegmentsReply, scale: TimeScale, largest: int, link: Link) -> Span:
    segment = life.segment
    assert life.newest is not None
    first = min(life.newest, life.newest if life.first is None else life.first)
    return Span(
        scale.place(first),
        scale.place(life.newest),
        _kind(life, log),
        _HIGHEST * max(_LOWEST, segment.size / max(1, largest)),
        f"segment {segment.base_offset:,}, {bytes_text(segment.size)}",
        link(log.partition, segment.base_offset),
    )


def _kind(life: Life, log: ExplainSegmentsReply) -> Kind:
    segment, compaction = life.segment, log.compaction
    if segment.state == "active":
        return Kind.ACTIVE
    if segment.deletable_ms is not None and segment.deletable_ms <= log.now_ms:
        return Kind.DUE
    if compaction is not None and compaction.first_dirty_offset is not None:
        return Kind.CLEAN if segment.next_offset <= compaction.first_dirty_offset else Kind.DIRTY
    return Kind.CLOSED


def _merged(older: Sequence[Life], log: ExplainSegmentsReply, scale: TimeScale, link: Link) -> Span:
    times = [time for life in older for time in (life.first, life.newest) if time is not None] or [0]
    size = bytes_text(sum(life.segment.size for life in older))
    name = f"{count_of(len(older), 'segment')} from {older[0].segment.base_offset:,}, {size}"
    places = scale.place(min(times)), scale.place(max(times))
    return Span(*places, Kind.OLDER, _HIGHEST, name, link(log.partition, None))


def _size_frontier(lane: _Lane, spans: Sequence[Span]) -> Iterator[Mark]:
    """A mark where ``retention.bytes`` reaches to, if the log is larger."""
    limit, policy = setting(lane.log, "retention.bytes"), lane.log.config.get("cleanup.policy")
    if limit is None or limit < 0 or (policy is not None and "delete" not in policy.value):
        return
    drawn = [life for life in lane.lives if life.newest is not None]
    behind = 0
    for life, span in zip(reversed(drawn), reversed(spans), strict=False):
        size = life.segment.size
        if behind + size > limit:
            at = span.last - (span.last - span.first) * (limit - behind) / size
            yield Mark(at, Kind.FRONTIER, f"{bytes_text(limit)} from the end, retention.bytes: what is older may go")
            return
        behind += size


def _wrong(lane: _Lane, spans: Sequence[Span]) -> Iterator[Mark]:
    """Marks of what the broker warns of, and of holes between segments."""
    drawn = [life for life in lane.lives if life.newest is not None]
    for life, span in zip(drawn, spans[len(spans) - len(drawn) :], strict=True):
        for warning in life.segment.warnings[:1]:
            yield Mark((span.first + span.last) / 2, Kind.WRONG, warning)
    for before, after, span in zip(drawn, drawn[1:], spans[len(spans) - len(drawn) + 1 :], strict=False):
        if before.segment.next_offset < after.segment.base_offset and _kind(before, lane.log) is not Kind.CLEAN:
            hole = f"no offsets {before.segment.next_offset:,} to {after.segment.base_offset - 1:,}"
            yield Mark(span.first, Kind.WRONG, hole)
    for problem in lane.log.problems:
        yield Mark(_place_of(problem, drawn, spans[len(spans) - len(drawn) :]), Kind.WRONG, problem)


def _place_of(problem: str, drawn: Sequence[Life], spans: Sequence[Span]) -> float:
    """Where the first offset lies that a broker's sentence names; the end of the scale without one."""
    named = _OFFSETS.search(problem)
    offset = -1 if named is None else int(named[1])
    for life, span in zip(drawn, spans, strict=True):
        base, behind = life.segment.base_offset, life.segment.next_offset
        if base <= offset < behind:
            return span.first + (span.last - span.first) * (offset - base) / (behind - base)
    return 1.0


def apart(places: Sequence[Sequence[float]], least: float) -> list[tuple[float, float]]:
    """Places from left to right, none over another: each is ``least`` wide, and all end at 1, if they can."""
    moved: list[tuple[float, float]] = []
    behind = 0.0
    for first, last in places:
        start = max(behind, first)
        behind = max(start + least, last)
        moved.append((start, behind))
    limit = 1.0
    for number in range(len(moved) - 1, -1, -1):
        first, last = moved[number]
        last = min(last, limit)
        limit = max(0.0, min(first, last - least))
        moved[number] = limit, max(limit, last)
    return moved


# --- Groups -----------------------------------------------------------------------------------------------------------


def _letters(groups: Mapping[str, Sequence[PartitionLag]], most: int) -> dict[str, str]:
    """Of those that are furthest behind."""
    order = sorted(groups, key=lambda name: (-sum(lag.records for lag in groups[name]), name))
    return {name: chr(ord("A") + number) for number, name in enumerate(order[:most])}


def _time(lag: PartitionLag) -> int:
    """Of the next record, else of the newest one."""
    return next((time for time in (lag.timestamp, lag.newest_timestamp) if time is not None), lag.now_ms)


def _position(lag: PartitionLag) -> str:
    if lag.lost:
        return f"at {lag.position:,}, {count_of(lag.lost, 'record')} before it are lost"
    return (
        f"at {lag.position:,}, {count_of(lag.records, 'record')} behind"
        if lag.records
        else f"at {lag.position:,}, the end"
    )


def _readers(groups: Mapping[str, Sequence[PartitionLag]], letters: Mapping[str, str]) -> Iterator[str]:
    for name, letter in letters.items():
        lags = groups[name]
        behind = count_of(sum(lag.records for lag in lags), "record")
        age = max((lag.seconds or 0.0 for lag in lags), default=0.0)
        loss = min(
            (lag.seconds_to_loss for lag in lags if lag.records and lag.seconds_to_loss is not None), default=None
        )
        until = "" if loss is None else f", retention may take its next ones in {duration_of(round(loss * 1000))}"
        yield f"{letter}  {printable(name)}: {behind} behind, the oldest {duration_of(round(age * 1000))} old{until}"
    if left := len(groups) - len(letters):
        yield f"Not drawn: {count_of(left, 'group')} with less behind."


def _facts(lanes: Sequence[PartitionExplanation], now: int, zone: tzinfo | None) -> Iterator[str]:
    if lanes:
        yield f"now {format_time(now, zone)}"
        yield kept(lanes[0]).sentence
    wrong = [sentence for lane in lanes for sentence in problems_of(lane.partition)]
    yield from wrong[:_PROBLEMS_MAX]
    if len(wrong) > _PROBLEMS_MAX:
        yield f"{len(wrong) - _PROBLEMS_MAX:,} more things are wrong"


def problems_of(log: ExplainSegmentsReply) -> list[str]:
    """The sentences about what is wrong with a partition, each with its name."""
    name = f"{log.topic}-{log.partition}: "
    return [printable(name + sentence.removeprefix(name)) for sentence in (*log.problems, *log.doubts)]
