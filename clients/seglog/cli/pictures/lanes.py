"""The picture of a topic: in a lane for each partition its segments and the groups' next records lie over time."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import tzinfo
from itertools import pairwise
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
from seglog_protocol.messages import ExplainedSegment, ExplainSegmentsReply
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
    drawn = [_lane(explained, most) for explained in lanes]
    now = max((lane.log.now_ms for lane in drawn), default=0)
    retention = next((limit for lane in drawn if (limit := _limit(lane.log, "retention.ms")) is not None), None)
    frontier = None if retention is None else max(0, now - retention)
    lives = [life for lane in drawn for life in (*lane.older, *lane.lives)]
    spans = [(life.first, life.newest) for life in lives if life.first and life.newest]
    times = [time for life in lives for time in (life.first, life.newest) if time]
    scale = TimeScale(times if frontier is None else [*times, frontier], now=now, zone=zone, spans=spans)
    letters = _letters(groups, min(READERS_MAX, _PINS_MAX // max(1, len(lanes))))
    largest = max((life.segment.size for lane in drawn for life in lane.lives), default=0)
    rows = [_row(lane, scale, largest, letters, groups, link) for lane in drawn]
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
    kept: str
    older: Sequence[Life]
    lives: Sequence[Life]


def _lane(explained: PartitionExplanation, most: int) -> _Lane:
    log = explained.partition
    lives = [life_of(segment, log) for segment in explained.segments if segment.state != "deleted"]
    lives = [life for life in lives if life.newest is not None]
    older = 0 if len(lives) <= most else len(lives) - most + 1
    return _Lane(log, kept(explained).text, lives[:older], lives[older:])


def _limit(log: ExplainSegmentsReply, key: str) -> int | None:
    """A limit of retention; None where there is none, or no segment is deleted for it."""
    limit, policy = setting(log, key), log.config.get("cleanup.policy")
    return None if limit is None or limit < 0 or (policy and "delete" not in policy.value) else limit


def _row(
    lane: _Lane,
    scale: TimeScale,
    largest: int,
    letters: Mapping[str, str],
    groups: Mapping[str, Sequence[PartitionLag]],
    link: Link,
) -> Row:
    log = lane.log
    spans = [_merged(lane.older, log, scale, link)] if lane.older else []
    spans += [_span(life, log, scale, largest, link) for life in lane.lives]
    places = apart([span[:2] for span in spans], _SHORTEST)
    spans = [span._replace(first=first, last=last) for span, (first, last) in zip(spans, places, strict=True)]
    drawn = list(zip(lane.lives, spans[len(spans) - len(lane.lives) :], strict=True))
    pins = sorted(
        (scale.place(_time(lag)), letters[name], f"{printable(name)}, {_position(lag)}")
        for name, lags in groups.items()
        if name in letters
        for lag in lags
        if lag.partition == log.partition
    )
    places = apart([(max(0.0, at - _PIN / 2),) * 2 for at, _, _ in pins], _PIN)
    readers = (
        Mark(at + _PIN / 2, Kind.READER, name, letter) for (at, _), (_, letter, name) in zip(places, pins, strict=True)
    )
    return Row(
        label=(f"{log.partition}",),
        spans=tuple(spans),
        marks=(*_size_frontier(log, drawn), *_wrong(log, drawn), *readers),
        details=(f"{log.segments:,}", bytes_text(log.size), lane.kept),
        link=link(log.partition, None),
        lines=2,
    )


def _span(life: Life, log: ExplainSegmentsReply, scale: TimeScale, largest: int, link: Link) -> Span:
    segment, newest = life.segment, life.newest or 0
    return Span(
        scale.place(min(newest, newest if life.first is None else life.first)),
        scale.place(newest),
        _kind(segment, log),
        _HIGHEST * max(_LOWEST, segment.size / max(1, largest)),
        f"segment {segment.base_offset:,}, {bytes_text(segment.size)}",
        link(log.partition, segment.base_offset),
    )


def _kind(segment: ExplainedSegment, log: ExplainSegmentsReply) -> Kind:
    if segment.state == "active":
        return Kind.ACTIVE
    if segment.deletable_ms is not None and segment.deletable_ms <= log.now_ms:
        return Kind.DUE
    if log.compaction is not None and log.compaction.first_dirty_offset is not None:
        return Kind.CLEAN if segment.next_offset <= log.compaction.first_dirty_offset else Kind.DIRTY
    return Kind.CLOSED


def _merged(older: Sequence[Life], log: ExplainSegmentsReply, scale: TimeScale, link: Link) -> Span:
    places = [scale.place(time) for life in older for time in (life.first, life.newest) if time is not None]
    size = bytes_text(sum(life.segment.size for life in older))
    name = f"{count_of(len(older), 'segment')} from {older[0].segment.base_offset:,}, {size}"
    return Span(min(places), max(places), Kind.OLDER, _HIGHEST, name, link(log.partition, None))


Drawn = Sequence[tuple[Life, Span]]


def _size_frontier(log: ExplainSegmentsReply, drawn: Drawn) -> Iterator[Mark]:
    """A mark where ``retention.bytes`` reaches to, if the log is larger."""
    left = limit = _limit(log, "retention.bytes")
    for life, span in reversed(drawn):
        if limit is None or left is None:
            return
        if life.segment.size > left:
            at = span.last - (span.last - span.first) * left / life.segment.size
            yield Mark(at, Kind.FRONTIER, f"{bytes_text(limit)} from the end, retention.bytes: what is older may go")
            return
        left -= life.segment.size


def _wrong(log: ExplainSegmentsReply, drawn: Drawn) -> Iterator[Mark]:
    """Marks of what the broker warns of, and of holes between segments."""
    for life, span in drawn:
        for warning in life.segment.warnings[:1]:
            yield Mark((span.first + span.last) / 2, Kind.WRONG, warning)
    for (before, _), (after, span) in pairwise(drawn):
        first, last = before.segment.next_offset, after.segment.base_offset - 1
        if first <= last and _kind(before.segment, log) is not Kind.CLEAN:
            yield Mark(span.first, Kind.WRONG, f"no offsets {first:,} to {last:,}")
    for problem in log.problems:
        yield Mark(_place_of(problem, drawn), Kind.WRONG, problem)


def _place_of(problem: str, drawn: Drawn) -> float:
    """Where the first offset lies that a broker's sentence names; the end of the scale without one."""
    named = _OFFSETS.search(problem)
    offset = -1 if named is None else int(named[1])
    for life, span in drawn:
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
    behind = f"{count_of(lag.records, 'record')} behind" if lag.records else "the end"
    return f"at {lag.position:,}, " + (f"{count_of(lag.lost, 'record')} before it are lost" if lag.lost else behind)


def _readers(groups: Mapping[str, Sequence[PartitionLag]], letters: Mapping[str, str]) -> Iterator[str]:
    for name, letter in letters.items():
        lags = groups[name]
        behind = count_of(sum(lag.records for lag in lags), "record")
        age = max(lag.seconds or 0.0 for lag in lags)
        losses = [lag.seconds_to_loss for lag in lags if lag.records and lag.seconds_to_loss is not None]
        until = f", retention may take its next ones in {duration_of(round(min(losses) * 1000))}" if losses else ""
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
