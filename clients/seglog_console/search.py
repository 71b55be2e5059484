"""Search in keys, values and headers of a topic, a step at a time: a page says what a step has found, and goes on.

Nothing is kept between steps: where the next one begins, and what has been counted, are in its address. A batch is
looked through as a whole first, uncompressed; records are made of one alone that holds the bytes.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from seglog.core.moments import AtTime, Edge
from seglog.core.records import FetchedBatch, Record
from seglog_console.commands import shell_text
from seglog_console.pages import BadInputError, View
from seglog_console.reading import STEP_SECONDS, Absent, Place, damage, extents, read
from seglog_console.records import Asked, Row, asked_of, consume_command, place_of, row_of, shown_row
from seglog_console.values import KINDS
from seglog_protocol.errors import CorruptRecordError

STEP_BYTES: Final = 32 << 20
"""About the bytes of records, uncompressed, that one step looks through."""
MATCHES_MAX: Final = 50
"""Of one step."""
PLACES: Final = ("anywhere", "value", "key", "headers")
_FETCH_BYTES: Final = 4 << 20
_PARTITIONS_AT_ONCE: Final = 1_000
"""Of which the ends are asked in one request."""

Ranges = dict[int, tuple[int, int]]


class Hunt(NamedTuple):
    """The bytes that are searched, and in what of a record: one of PLACES."""

    needle: bytes
    place: str

    def look(self, batch: FetchedBatch) -> tuple[list[Record], int]:
        """The records of a batch that hold the bytes, and the size of all. Raises CorruptRecordError."""
        content = batch.content()
        if self.needle not in content:
            return [], len(content)
        return list(filter(self._is_in, batch.records())), len(content)

    def _is_in(self, record: Record) -> bool:
        needle, place = self.needle, self.place
        if place in {"anywhere", "value"} and needle in (record.value or b""):
            return True
        if place in {"anywhere", "key"} and needle in (record.key or b""):
            return True
        return place in {"anywhere", "headers"} and any(
            needle in name.encode() or needle in (content or b"") for name, content in record.headers
        )


@dataclass
class Step:
    """One step: what it has found, what of the range has been looked at with those before, and where it stopped."""

    records: int
    size: int
    matches: int
    next: tuple[int, int] | None = None
    """Partition and offset; None at the end."""
    rows: list[Row] = field(default_factory=list)
    deadline: float = field(default_factory=lambda: time.monotonic() + STEP_SECONDS)
    looked: int = 0

    @property
    def is_over(self) -> bool:
        """True when it has done enough for one request."""
        return self.looked >= STEP_BYTES or len(self.rows) >= MATCHES_MAX or time.monotonic() >= self.deadline


class Search(NamedTuple):
    """The bytes that are searched, and where: from ``begin`` to ``end`` (exclusive) of each partition."""

    asked: Asked
    hunt: Hunt
    begin: Place
    end: Place

    async def ranges(self, partitions: Sequence[int]) -> AsyncGenerator[Ranges, None]:
        """The ranges of offsets, some partitions at a time."""
        asked, client = self.asked, self.asked.view.client
        for index in range(0, len(partitions), _PARTITIONS_AT_ONCE):
            some = partitions[index : index + _PARTITIONS_AT_ONCE]
            starts = await extents(client, asked.topic, some, self.begin, asked.isolation)
            ends = {each.partition: each.end for each in starts}
            if self.end is not Edge.LATEST:
                found = await extents(client, asked.topic, some, self.end, asked.isolation)
                ends = {each.partition: each.place for each in found}
            yield {each.partition: (each.place, max(each.place, ends[each.partition])) for each in starts}


async def context(view: View) -> dict[str, Any]:
    """One step of a search, or the form for one."""
    asked = await asked_of(view)
    shown = {"asked": asked, "topic": asked.topic, "kinds": KINDS, "places": PLACES, "step": None}
    if not view.text("find"):
        return shown
    begin, end = place_of(view, view.text("from"), Edge.EARLIEST), place_of(view, view.text("to"), Edge.LATEST)
    search = Search(asked, _hunt(view), begin, end)
    numbers: Sequence[int] = range(asked.partitions_in_all) if asked.partition is None else [asked.partition]
    first, total = _next_of(view), view.number("of", 0)
    if first is None:
        first = (numbers[0], 0)
        total = sum([end - start async for some in search.ranges(numbers) for start, end in some.values()])
    step = Step(view.number("records", 0), view.number("bytes", 0), view.number("matches", 0))
    left = [number for number in numbers if number >= first[0]]
    async with view.console.searches, aclosing(search.ranges(left)) as several:
        async for ranges in several:
            await _scan(search, ranges, first, step)
            if step.next is not None:
                break
    return shown | {
        "step": step,
        "total": total,
        "share": min(1.0, step.records / total) if total and step.next else 1.0,
        "needle": "" if view.text("hex") else view.text("find"),
        "rows": [shown_row(row, asked, search.hunt.needle) for row in step.rows],
        "go_on": _link(search, step, total),
        "command": _command(search),
    }


def _hunt(view: View) -> Hunt:
    text, place = view.text("find"), view.text("in", PLACES[0])
    if place not in PLACES:
        raise BadInputError(f"in is {place!r}; it is one of {', '.join(PLACES)}")
    if not view.text("hex"):
        return Hunt(text.encode(errors="replace"), place)
    try:
        needle = bytes.fromhex(text)
    except ValueError:
        needle = b""
    if not needle:
        raise BadInputError(f"{text!r} is no bytes in hex; write for example 00 ff")
    return Hunt(needle, place)


def _next_of(view: View) -> tuple[int, int] | None:
    """Partition and offset where a step before has stopped; None in the first one."""
    text = view.text("next")
    found = re.fullmatch(r"(\d{1,10}):(\d{1,19})", text)
    if text and found is None:
        raise BadInputError(f"next is {text!r}; it is the partition and the offset where a search goes on: 0:1200")
    return None if found is None else (int(found[1]), int(found[2]))


async def _scan(search: Search, ranges: Ranges, first: tuple[int, int], step: Step) -> None:
    """Look through ranges, partition by partition, from ``first`` on, until the step is over."""
    asked = search.asked
    for partition, (begin, end) in ranges.items():
        start = max(begin, first[1]) if partition == first[0] else begin
        if start >= end:
            continue
        if step.is_over:
            step.next = (partition, start)
            return
        items = read(asked.view.client, asked.topic, {partition: (start, end)}, asked.isolation, _FETCH_BYTES)
        async with aclosing(items):
            async for item in items:
                at = await _look(search.hunt, item, step)
                if step.is_over and at < end:
                    step.next = (partition, at)
                    return


async def _look(hunt: Hunt, item: FetchedBatch | Absent, step: Step) -> int:
    """Look at one batch; the offset behind what has been looked at."""
    if isinstance(item, FetchedBatch):
        start, end = item.start_offset, item.end_offset
        try:
            found, size = await asyncio.to_thread(hunt.look, item)
        except CorruptRecordError as error:
            item = damage(error)
        else:
            step.looked += size
            step.size += size
            left = MATCHES_MAX - len(step.rows)
            if len(found) > left:
                end = found[left].offset
            step.rows += [
                Row(item.partition, each.offset, each.offset + 1, each.timestamp, each, item.header)
                for each in found[:left]
            ]
            step.matches += min(left, len(found))
            step.records += end - start
            return end
    if item.is_damage:
        step.rows.append(row_of(item, step.rows))
    step.records += item.end - item.start
    return item.end


def _link(search: Search, step: Step, total: int) -> str:
    """The address of the next step; empty at the end. Times are those of the first step."""
    if step.next is None:
        return ""
    places = {"from": search.begin, "to": search.end}
    times = {name: f"@{place.timestamp}" for name, place in places.items() if isinstance(place, AtTime)}
    counted = {"records": step.records, "bytes": step.size, "matches": step.matches, "of": total}
    given = dict(search.asked.view.request.query_params) | times | counted
    return "?" + urlencode(given | {"next": "{}:{}".format(*step.next)})


def _command(search: Search) -> str:
    """The command that prints the same, searched by grep."""
    view, hunt = search.asked.view, search.hunt
    parts = [consume_command(search.asked, search.asked.partition)]
    parts += [
        f"--{option} {shell_text([view.text(name)])}"
        for name, option, place in (("from", "from", search.begin), ("to", "until", search.end))
        if view.text(name) and not isinstance(place, Mapping)
    ]
    if hunt.place != "value":
        parts.append("--offsets --keys --headers")
    if view.text("hex"):
        pattern = "".join(f"\\x{byte:02x}" for byte in hunt.needle)
        return f"{' '.join(parts)} | LC_ALL=C grep -aP '{pattern}'"
    return f"{' '.join(parts)} | grep -aF -e {shell_text([view.text('find')])}"
