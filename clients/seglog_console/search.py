"""Search in keys, values and headers of a topic, a step at a time: a page says what a step has found, and goes on.

Nothing is kept between steps: where the next one begins, and what has been counted, are in its address. A batch is
looked through as a whole first, uncompressed; records are made of one alone that holds the bytes.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from seglog.core.moments import AtTime, Edge
from seglog.core.records import FetchedBatch, Record
from seglog_console.commands import shell_text
from seglog_console.pages import BadInputError, View
from seglog_console.reading import STEP_SECONDS, Place, Row, damage, extents, read
from seglog_console.records import Asked, asked_of, consume_command, place_of
from seglog_protocol.errors import CorruptRecordError

STEP_BYTES: Final = 32 << 20
"""About the bytes of records, uncompressed, that one step looks through."""
MATCHES_MAX: Final = 50
"""Of one step."""
_FETCH_BYTES: Final = 4 << 20
_PARTITIONS_AT_ONCE: Final = 1_000
"""Of which the ends are asked in one request."""

Ranges = dict[int, tuple[int, int]]


class Search(NamedTuple):
    """The bytes that are searched, from ``begin`` to ``end`` (exclusive)."""

    asked: Asked
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

    def look(self, batch: FetchedBatch) -> tuple[list[Record], int]:
        """The records of a batch that hold the bytes, and the size of all. Raises CorruptRecordError."""
        content = batch.content()
        is_there = self.asked.needle in content
        return [record for record in batch.records() if self._holds(record)] if is_there else [], len(content)

    def _holds(self, record: Record) -> bool:
        named = ((name.encode(), content) for name, content in record.headers)
        return any(self.asked.needle in (part or b"") for part in (record.key, record.value, *chain(*named)))


@dataclass
class Step:
    """One step: what it has found, the offsets and bytes that it has looked at, and where it stopped."""

    records: int = 0
    size: int = 0
    next: tuple[int, int] | None = None
    """Partition and offset; None at the end."""
    rows: list[Row] = field(default_factory=list)
    deadline: float = field(default_factory=lambda: time.monotonic() + STEP_SECONDS)

    @property
    def is_over(self) -> bool:
        """True when it has done enough for one request."""
        return self.size >= STEP_BYTES or len(self.rows) >= MATCHES_MAX or time.monotonic() >= self.deadline


async def context(view: View) -> dict[str, Any]:
    """One step of a search, or the form for one."""
    asked = replace(await asked_of(view), needle=_needle(view))
    if not asked.needle:
        return asked.shown() | {"step": None}
    begin, end = place_of(view, view.text("from"), Edge.EARLIEST), place_of(view, view.text("to"), Edge.LATEST)
    search = Search(asked, begin, end)
    numbers: Sequence[int] = range(asked.partitions_in_all) if asked.partition is None else [asked.partition]
    step = Step()
    first, total = (view.number("next", numbers[0]), view.number("offset", 0)), view.number("of", 0)
    if not view.text("next"):
        total = sum([end - start async for some in search.ranges(numbers) for start, end in some.values()])
    left = [number for number in numbers if number >= first[0]]
    async with view.console.readings, aclosing(search.ranges(left)) as several:
        async for ranges in several:
            await _scan(search, ranges, first, step)
            if step.next is not None:
                break
    counted = {
        "records": view.number("records", 0) + step.records,
        "bytes": view.number("bytes", 0) + step.size,
        "matches": view.number("matches", 0) + sum(row.record is not None for row in step.rows),
        "of": total,
    }
    return asked.shown() | {
        "step": step,
        "counted": counted,
        "share": min(1.0, counted["records"] / total) if total and step.next else 1.0,
        "needle": "" if view.text("hex") else view.text("find"),
        "go_on": _link(search, step.next, counted),
        "command": _command(search),
    }


def _needle(view: View) -> bytes:
    text = view.text("find")
    if not (view.text("hex") and text):
        return text.encode(errors="replace")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise BadInputError(f"{text!r} is no bytes in hex; write for example 00 ff") from None


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
                at = await _look(search, item, step)
                if step.is_over and at < end:
                    step.next = (partition, at)
                    return


async def _look(search: Search, item: FetchedBatch | Row, step: Step) -> int:
    """Look at one batch; the offset behind what has been looked at."""
    end, row = item.end_offset, item
    if isinstance(row, FetchedBatch):
        try:
            found, size = await asyncio.to_thread(search.look, row)
        except CorruptRecordError as error:
            row = damage(error)
        else:
            left = MATCHES_MAX - len(step.rows)
            end = found[left].offset if len(found) > left else end
            step.size += size
            step.rows += [Row(row.partition, each.offset, each.offset + 1, each, row.header) for each in found[:left]]
    if isinstance(row, Row) and row.is_damage:
        step.rows.append(row)
    step.records += end - item.start_offset
    return end


def _link(search: Search, place: tuple[int, int] | None, counted: Mapping[str, int]) -> str:
    """The address of the next step; empty at the end. Times are those of the first step."""
    if place is None:
        return ""
    places = {"from": search.begin, "to": search.end}
    times = {name: f"@{each.timestamp}" for name, each in places.items() if isinstance(each, AtTime)}
    given = {**search.asked.view.request.query_params, **times, **counted, "next": place[0], "offset": place[1]}
    return "?" + urlencode(given)


def _command(search: Search) -> str:
    """The command that prints the same, searched by grep."""
    asked, view = search.asked, search.asked.view
    rest: list[str] = []
    for option, name, place in (("--from", "from", search.begin), ("--until", "to", search.end)):
        if view.text(name) and not isinstance(place, Mapping):
            rest += [option, view.text(name)]
    command = consume_command(asked, asked.partition, *rest, "--offsets", "--keys", "--headers")
    if view.text("hex"):
        pattern = "".join(f"\\x{byte:02x}" for byte in asked.needle)
        return f"{command} | LC_ALL=C grep -aP '{pattern}'"
    return f"{command} | grep -aF -e {shell_text([view.text('find')])}"
