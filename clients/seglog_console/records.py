"""Records of a topic, page by page, followed live, and one by itself, with the command that prints the same."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from typing import Any, Final, cast
from urllib.parse import urlencode

from seglog.core.moments import AtOffset, Edge, Moment, parse_moment
from seglog.core.records import Record
from seglog.core.topics import describe_topic
from seglog_console.commands import options_of, shell_text, words_of
from seglog_console.pages import BadInputError, View
from seglog_console.reading import STEP_SECONDS, Extent, Place, Row, extents, read, rows_of_batch
from seglog_console.values import KINDS, Shown, shown
from seglog_protocol.isolation import ISOLATIONS, READ_UNCOMMITTED, Isolation

ROWS: Final = 50
INTERVAL_SECONDS: Final = 1.0
"""Between two looks at the end of a topic that is followed."""
PARTITIONS_MAX: Final = 32
"""Partitions of which one page shows records together; with more it begins with the first."""
PAGE_BYTES: Final = 8 << 20
"""About the bytes of records, uncompressed, that are read for one page, beside the batch that is the last."""
_FETCH_BYTES: Final = 64 << 10
_SPAN_MAX: Final = 100_000
"""Offsets in which a page looks for its records, where compaction has left few of them."""
VALUE: Final = 600
"""Bytes of HTML of a value in a row: fifty rows are less than 100 kB."""
_PLACES: Final = re.compile(r"\d{1,10}:\d{1,19}(,\d{1,10}:\d{1,19})*")


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of an address: which records, and how they are shown."""

    view: View
    topic: str
    partitions: Sequence[int]
    partition: int | None
    """The one that was chosen."""
    partitions_in_all: int
    isolation: Isolation
    kind: str
    at: str
    place: Place
    backwards: bool
    needle: bytes = b""

    def link(self, **changed: object) -> str:
        """The address of records, with these parameters."""
        query = self.view.request.query_params
        given = {name: value for name, value in query.items() if name not in _PLACE_NAMES} | changed
        return f"/topics/{self.topic}/records?{urlencode({name: value for name, value in given.items() if value})}"

    def to(self, places: Mapping[int, int], order: str) -> str:
        """The address of the records from these offsets on, or before them."""
        return self.link(at=",".join([f"{partition}:{offset}" for partition, offset in places.items()]), order=order)

    def shown(self) -> dict[str, Any]:
        """What each page of records shows."""
        return {"asked": self, "topic": self.topic, "kinds": KINDS, "shown": shown, "value_of": self.value_of}

    def value_of(self, record: Record) -> Shown:
        """The value of a record in a row; of a long one the part around what is searched."""
        value, needle = record.value, self.needle
        at = value.find(needle) if value is not None and needle else -1
        if value is None or at < VALUE // 4:
            return shown(value, self.kind, VALUE, is_long=self.kind != "auto")
        begin = at - VALUE // 8
        part = shown(value[begin : begin + VALUE], "hex" if self.kind == "hex" else "text", VALUE, is_long=False)
        return part._replace(note=f"from byte {begin:,}:", size=len(value), is_cut=True)


_PLACE_NAMES: Final = {"at", "order", "live", "follow"}


async def asked_of(view: View) -> Asked:
    """The request of the address. Raises BadInputError, UnknownTopicError, UnknownPartitionError."""
    topic = view.request.path_params["topic"]
    isolation, kind = view.text("isolation", READ_UNCOMMITTED), view.text("as", "auto")
    order, at = view.text("order"), view.text("at")
    for name, value, known in (("isolation", isolation, ISOLATIONS), ("as", kind, KINDS)):
        if value not in known:
            raise BadInputError(f"{name} is {value!r}; it is one of {', '.join(known)}")
    count = (await view.client.converse(describe_topic(topic, config=False))).partitions
    chosen = view.number("partition", -1, most=count - 1)
    partitions: Sequence[int] = [chosen] if chosen >= 0 else range(count if count <= PARTITIONS_MAX else 1)
    place = place_of(view, at, Edge.LATEST)
    backwards = order == "older" or (order != "newer" and place is Edge.LATEST)
    one = chosen if chosen >= 0 else None
    return Asked(view, topic, partitions, one, count, cast(Isolation, isolation), kind, at, place, backwards)


def place_of(view: View, text: str, default: Moment) -> Place:
    """An offset, a time, or places by partition, as links of ours have them. Raises BadInputError."""
    if not text.strip():
        return default
    if _PLACES.fullmatch(text):
        return {int(partition): int(offset) for partition, _, offset in (one.partition(":") for one in text.split(","))}
    try:
        return parse_moment(text, now_ms=time.time_ns() // 1_000_000, zone=view.zone)
    except ValueError as error:
        raise BadInputError(str(error)) from error


# --- Pages ------------------------------------------------------------------------------------------------------------


async def context(view: View) -> dict[str, Any]:
    """Some records before or from a place on, or the newest, which are followed if asked for."""
    asked = await asked_of(view)
    found = await extents(view.client, asked.topic, asked.partitions, asked.place, asked.isolation)
    seen = getattr(view.request.state, "seen", None)
    if seen is None:
        rows = await _some(asked, found)
    elif seen[0] == found:
        return dict(seen[1])
    else:  # of a stream: what has come since stands above, whatever its time
        ends = {each.partition: each.end for each in seen[0]}
        ranges = {each.partition: (max(ends.get(each.partition, 0), each.end - ROWS), each.end) for each in found}
        fresh, _ = await _rows_of(asked, ranges)
        rows = [*sorted(chain(*fresh.values()), key=_time_of, reverse=True), *seen[1]["rows"]][:ROWS]
    low, high = {each.partition: each.place for each in found}, {each.partition: each.place for each in found}
    for row in rows:
        low[row.partition] = min(low[row.partition], row.start_offset)
        high[row.partition] = max(high[row.partition], row.end_offset)
    result = asked.shown() | {
        "rows": rows,
        "following": "follow" in view.request.query_params,
        "missing": [each for each in found if each.place != each.at],
        "older": asked.to(low, "older") if any(low[each.partition] > each.earliest for each in found) else "",
        "newer": asked.to(high, "newer") if any(high[each.partition] < each.end for each in found) else "",
        "command": _command(asked, rows, low),
    }
    view.request.state.seen = (found, result)
    return dict(result)


async def record_context(view: View) -> dict[str, Any]:
    """One record with all that belongs to it, or what there is in its place."""
    asked = await asked_of(view)
    extent, row = await row_at(asked, view.number("offset", 0))
    command = consume_command(asked, extent.partition, "--from", str(extent.at), "--count", "1", "--format", "json")
    missing = [] if extent.earliest <= extent.at < extent.end else [extent]
    return asked.shown() | {"extent": extent, "row": row, "missing": missing, "command": command}


async def row_at(asked: Asked, offset: int) -> tuple[Extent, Row | None]:
    """The extent of the partition that was chosen, and the row of an offset; None for an offset that there is not."""
    [extent] = await extents(asked.view.client, asked.topic, asked.partitions[:1], AtOffset(offset), asked.isolation)
    rows, _ = await _rows_of(asked, {extent.partition: (extent.place, min(offset + 1, extent.end))})
    return extent, next((row for row in rows[extent.partition] if row.start_offset <= offset < row.end_offset), None)


async def _some(asked: Asked, found: Sequence[Extent]) -> list[Row]:
    """About ROWS rows on one side of the places, by time where partitions are several."""
    span, is_growing = ROWS, True
    while True:
        if asked.backwards:
            ranges = {each.partition: (max(each.earliest, each.place - span), each.place) for each in found}
        else:
            ranges = {each.partition: (each.place, min(each.end, each.place + span)) for each in found}
        rows, is_cut = await _rows_of(asked, ranges)
        if is_cut and asked.backwards and span > 1:
            span, is_growing = max(1, span // 8), False  # large records: what lies just before the place comes first
            continue
        count = sum(row.record is not None for some in rows.values() for row in some)
        is_all = all(end - start < span for start, end in ranges.values())
        if is_cut or is_all or not is_growing or count >= ROWS or span >= _SPAN_MAX:
            break
        span *= 20
    lists = [reversed(some) if asked.backwards else iter(some) for some in rows.values()]
    return list(islice(merge(*lists, key=_time_of, reverse=asked.backwards), ROWS))


def _time_of(row: Row) -> int:
    return -1 if row.record is None else row.record.timestamp


async def _rows_of(asked: Asked, ranges: Mapping[int, tuple[int, int]]) -> tuple[dict[int, list[Row]], bool]:
    """The rows of ranges of offsets, and whether they end early because that is enough to read."""
    rows: dict[int, list[Row]] = {partition: [] for partition in ranges}
    left, deadline = PAGE_BYTES, time.monotonic() + STEP_SECONDS
    items = read(asked.view.client, asked.topic, ranges, asked.isolation, _FETCH_BYTES)
    async with asked.view.console.readings, aclosing(items):
        async for item in items:
            found = [item] if isinstance(item, Row) else await asyncio.to_thread(list, rows_of_batch(item))
            for row in found:
                rows[row.partition].append(row)
                left -= 64 if row.record is None else 64 + len(row.record.key or b"") + len(row.record.value or b"")
            if left < 0 or time.monotonic() > deadline:
                read_to = {number: some[-1].end_offset for number, some in rows.items() if some}
                return rows, any(read_to.get(number, start) < end for number, (start, end) in ranges.items())
    return rows, False


# --- Commands ---------------------------------------------------------------------------------------------------------


def front_of(view: View) -> list[str]:
    """The beginning of each command: ``seglog``, which broker, and how to come to it."""
    return ["seglog", *options_of(view.console.server, view.session.account, view.console.security)]


def consume_command(asked: Asked, partition: int | None, *rest: str) -> str:
    """``seglog consume`` of one partition, or of all, with the ``rest`` of its options."""
    options = []
    if partition is not None and asked.partitions_in_all > 1:
        options.append(f"--partition={partition}")
    if asked.isolation != READ_UNCOMMITTED:
        options.append(f"--isolation={asked.isolation}")
    return shell_text([*front_of(asked.view), *words_of(["consume"], [asked.topic], [*options, *rest])])


def _command(asked: Asked, rows: Sequence[Row], low: Mapping[int, int]) -> str:
    """The command that prints the same; of several partitions together the records of that time."""
    records = [row.record for row in rows if row.record is not None]
    one = asked.partitions[0] if len(asked.partitions) == 1 else None
    if "follow" in asked.view.request.query_params:
        rest = ["--follow"]
    elif one is not None:
        rest = ["--from", str(low[one]), "--count", str(len(records))]
    elif not asked.backwards and not isinstance(asked.place, Mapping):
        rest = ["--from", asked.at, "--count", str(len(records))]
    else:
        times = [record.timestamp for record in records if record.timestamp >= 0]
        rest = ["--from", f"@{min(times)}", "--until", f"@{max(times) + 1}"] if times else ["--from", "latest"]
    return consume_command(asked, one, *rest, "--offsets", "--keys", "--headers")
