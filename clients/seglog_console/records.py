"""Records of a topic, page by page, followed live, and one by itself, with the command that prints the same."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlencode

from seglog.core.moments import AtOffset, Edge, Moment, parse_moment
from seglog.core.records import FetchedBatch, Record
from seglog.core.topics import describe_topic
from seglog_console.commands import options_of, shell_text
from seglog_console.pages import BadInputError, View
from seglog_console.reading import STEP_SECONDS, Absent, Extent, Place, damage, extents, read
from seglog_console.values import KINDS, Shown, shown
from seglog_protocol.compression import Codec
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.isolation import ISOLATIONS, READ_UNCOMMITTED, Isolation
from seglog_protocol.record_batch import BatchHeader

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
_VALUE, _KEY, _HEADERS = 700, 150, 200
"""Bytes of HTML in one row: fifty rows are less than 100 kB."""
_VALUE_ALONE, _KEY_ALONE, _HEADER_ALONE, _HEADERS_ALONE = 48_000, 8_000, 300, 60
_PLACES: Final = re.compile(r"\d{1,10}:\d{1,19}(,\d{1,10}:\d{1,19})*")


class Row(NamedTuple):
    """A record, or offsets from ``offset`` to ``end`` without one and ``why``."""

    partition: int
    offset: int
    end: int
    timestamp: int
    record: Record | None
    header: BatchHeader | None
    why: str = ""
    is_damage: bool = False


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

    def link(self, **changed: object) -> str:
        """The address with other parameters; None leaves one out."""
        query = self.view.request.query_params
        given = {name: value for name, value in query.items() if name not in _PLACE_NAMES} | changed
        chosen = urlencode({name: value for name, value in given.items() if value not in {None, ""}})
        return f"/topics/{self.topic}/records?{chosen}"

    def to(self, places: Mapping[int, int], order: str) -> str:
        """The address of the records from these offsets on, or before them."""
        if len(places) == 1:
            text = str(next(iter(places.values())))
        else:
            text = ",".join(f"{partition}:{offset}" for partition, offset in places.items())
        return self.link(at=text, order=order)


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
    chosen = view.number("partition", -1)
    partitions = [chosen] if chosen >= 0 else range(count if count <= PARTITIONS_MAX else 1)
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


# --- A page of records ------------------------------------------------------------------------------------------------


async def context(view: View) -> dict[str, Any]:
    """Some records before or from a place on, or the newest, which are followed if asked for."""
    asked = await asked_of(view)
    found = await extents(view.client, asked.topic, asked.partitions, asked.place, asked.isolation)
    seen = getattr(view.request.state, "seen", None)
    if seen is not None and seen[0] == found:
        return dict(seen[1])
    rows = await _some(asked, found)
    shown_rows = [shown_row(row, asked) for row in rows]
    view.request.state.seen = (found, result := _page(asked, found, rows) | {"rows": shown_rows})
    return dict(result)


def _page(asked: Asked, found: Sequence[Extent], rows: Sequence[Row]) -> dict[str, Any]:
    low, high = {each.partition: each.place for each in found}, {each.partition: each.place for each in found}
    for row in rows:
        low[row.partition] = min(low[row.partition], row.offset)
        high[row.partition] = max(high[row.partition], row.end)
    view = asked.view
    return {
        "asked": asked,
        "topic": asked.topic,
        "kinds": KINDS,
        "following": "follow" in view.request.query_params,
        "missing": [_missing(each, asked) for each in found if each.place != each.at],
        "older": asked.to(low, "older") if any(low[each.partition] > each.earliest for each in found) else "",
        "newer": asked.to(high, "newer") if any(high[each.partition] < each.end for each in found) else "",
        "command": _command(asked, found, rows, low),
    }


def _missing(extent: Extent, asked: Asked) -> tuple[str, str, str]:
    """A sentence about what there is in place of an offset that there is not, and links to it."""
    name = f"{asked.topic}-{extent.partition}"
    where = "expired, was deleted or compacted" if extent.at < extent.earliest else "is not written yet"
    has = f"offsets {extent.earliest:,} to {extent.end - 1:,}" if extent.end > extent.earliest else "no records"
    first, last = (
        asked.to({extent.partition: extent.earliest}, "newer"),
        asked.to({extent.partition: extent.end}, "older"),
    )
    return f"Offset {extent.at:,} {where}: {name} has {has}.", first, last


async def _some(asked: Asked, found: Sequence[Extent]) -> list[Row]:
    """About ROWS rows on one side of the places, by time where partitions are several."""
    span, growing = ROWS, True
    while True:
        if asked.backwards:
            ranges = {each.partition: (max(each.earliest, each.place - span), each.place) for each in found}
            is_all = all(ranges[each.partition][0] == each.earliest for each in found)
        else:
            ranges = {each.partition: (each.place, min(each.end, each.place + span)) for each in found}
            is_all = all(ranges[each.partition][1] == each.end for each in found)
        rows, is_cut = await rows_of(asked, ranges)
        if is_cut and asked.backwards and span > 1:
            span, growing = max(1, span // 8), False  # large records: what lies just before the place comes first
            continue
        count = sum(row.record is not None for some in rows.values() for row in some)
        if is_cut or is_all or not growing or count >= ROWS or span >= _SPAN_MAX:
            break
        span *= 20
    lists = [reversed(some) if asked.backwards else iter(some) for some in rows.values()]
    return list(islice(merge(*lists, key=lambda row: row.timestamp, reverse=asked.backwards), ROWS))


async def rows_of(asked: Asked, ranges: Mapping[int, tuple[int, int]]) -> tuple[dict[int, list[Row]], bool]:
    """The rows of ranges of offsets, and whether they end early because that is enough to read."""
    rows: dict[int, list[Row]] = {partition: [] for partition in ranges}
    left, deadline = PAGE_BYTES, time.monotonic() + STEP_SECONDS
    async with aclosing(read(asked.view.client, asked.topic, ranges, asked.isolation, _FETCH_BYTES)) as items:
        async for item in items:
            if isinstance(item, Absent):
                rows[item.partition].append(row_of(item, rows[item.partition]))
                continue
            some = rows[item.partition]
            for row in _rows_of_batch(item, some):
                some.append(row)
                record = row.record
                left -= 64 + (0 if record is None else len(record.key or b"") + len(record.value or b""))
            if left < 0 or time.monotonic() > deadline:
                return rows, any(not some or some[-1].end < ranges[number][1] for number, some in rows.items())
    return rows, False


def row_of(absent: Absent, before: Sequence[Row]) -> Row:
    """A row in place of records, at the time of the one before it."""
    timestamp = before[-1].timestamp if before else -1
    return Row(absent.partition, absent.start, absent.end, timestamp, None, None, absent.why, absent.is_damage)


def _rows_of_batch(batch: FetchedBatch, before: Sequence[Row]) -> Iterable[Row]:
    """Its records, the offsets between them that compaction has emptied, and the damage that ends it."""
    expected = batch.start_offset
    try:
        for record in batch.records():
            if record.offset > expected:
                yield row_of(Absent(batch.partition, expected, record.offset, "compacted"), before)
            expected = record.offset + 1
            yield Row(batch.partition, record.offset, expected, record.timestamp, record, batch.header)
    except CorruptRecordError as error:
        yield row_of(damage(error)._replace(start=expected), before)
        return
    if expected < batch.end_offset:
        yield row_of(Absent(batch.partition, expected, batch.end_offset, "compacted"), before)


def shown_row(row: Row, asked: Asked, needle: bytes = b"") -> dict[str, Any]:
    """A row for the template; of a long value the part around ``needle``."""
    base = {"partition": row.partition, "offset": row.offset, "end": row.end, "timestamp": row.timestamp}
    if row.record is None or row.header is None:
        return base | {"record": False, "why": row.why, "is_damage": row.is_damage}
    is_long, value = asked.kind != "auto", row.record.value
    headers = ", ".join(
        f"{name}={shown(content, 'auto', _HEADERS // 3, is_long=False).text}"
        for name, content in row.record.headers[:9]
    )
    return base | {
        "record": True,
        "key": shown(row.record.key, "auto", _KEY, is_long=False),
        "value": _around(value, needle, asked.kind) or shown(value, asked.kind, _VALUE, is_long=is_long),
        "headers": shown(headers.encode(errors="replace"), "text", _HEADERS, is_long=False),
        "headers_count": len(row.record.headers),
        "batch": _batch_text(row.header),
    }


def _around(value: bytes | None, needle: bytes, kind: str) -> Shown | None:
    """The part of a value around ``needle``, if that is not in the beginning."""
    at = value.find(needle) if value is not None and needle else -1
    if value is None or at < _VALUE // 4:
        return None
    begin = at - _VALUE // 8
    part = shown(value[begin : begin + _VALUE], "hex" if kind == "hex" else "text", _VALUE, is_long=False)
    return part._replace(note=f"from byte {begin:,}:", size=len(value), is_cut=True)


def _batch_text(header: BatchHeader) -> str:
    codec = "uncompressed" if header.codec is Codec.NONE else header.codec.name.lower()
    return codec + (", transaction" if header.is_transactional else "")


# --- One record -------------------------------------------------------------------------------------------------------


async def record_context(view: View) -> dict[str, Any]:
    """One record with all that belongs to it, or what there is in its place."""
    asked = await asked_of(view)
    partition, offset = view.number("partition", 0), view.number("offset", 0)
    found = await extents(view.client, asked.topic, [partition], AtOffset(offset), asked.isolation)
    rows, _ = await rows_of(asked, {partition: (offset, min(offset + 1, found[0].end))})
    row = rows[partition][0] if rows[partition] else Row(partition, offset, offset + 1, -1, None, None)
    shown_record = None if row.record is None or row.header is None else _alone(row.record, row.header, asked.kind)
    return {
        "asked": asked,
        "topic": asked.topic,
        "partition": partition,
        "offset": offset,
        "row": row,
        "kinds": KINDS,
        "record": shown_record,
        "missing": [_missing(each, asked) for each in found if not each.earliest <= offset < each.end],
        "end": found[0].end,
        "command": f"{consume_command(asked, partition)} --from {offset} --count 1 --format json",
    }


def _alone(record: Record, header: BatchHeader, kind: str) -> dict[str, Any]:
    headers = [
        (shown(name.encode(errors="replace"), "text", _HEADER_ALONE, is_long=False).text, content)
        for name, content in record.headers[:_HEADERS_ALONE]
    ]
    facts = [
        (
            "Batch",
            f"offsets {header.base_offset:,} to {header.last_offset:,}, {header.size:,} bytes, {_batch_text(header)}",
        ),
        ("Timestamp", "of the append" if header.is_log_append_time else "of the producer"),
        ("Leader epoch", str(header.leader_epoch)),
    ]
    if header.producer_id >= 0:
        producer = f"{header.producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence} of the batch"
        facts.append(("Producer", producer))
    return {
        "timestamp": record.timestamp,
        "facts": facts,
        "key": shown(record.key, "auto", _KEY_ALONE, is_long=True),
        "value": shown(record.value, kind, _VALUE_ALONE, is_long=True),
        "headers": [(name, shown(content, "auto", _HEADER_ALONE, is_long=False)) for name, content in headers],
        "headers_count": len(record.headers),
    }


# --- Commands ---------------------------------------------------------------------------------------------------------


def consume_command(asked: Asked, partition: int | None) -> str:
    """``seglog consume`` of one partition, or of all."""
    view = asked.view
    options = options_of(view.console.server, view.session.account, view.console.security)
    parts = ["seglog", *options, "consume", asked.topic]
    if partition is not None and asked.partitions_in_all > 1:
        parts.append(f"--partition={partition}")
    if asked.isolation != READ_UNCOMMITTED:
        parts.append(f"--isolation={asked.isolation}")
    return shell_text(parts)


def _command(asked: Asked, found: Sequence[Extent], rows: Sequence[Row], low: Mapping[int, int]) -> str:
    """The command that prints the same; of several partitions together the records of that time."""
    count = sum(row.record is not None for row in rows)
    if "follow" in asked.view.request.query_params:
        rest = "--follow"
    elif len(found) == 1:
        rest = f"--from {low[found[0].partition]} --count {count}"
    elif not asked.backwards and not isinstance(asked.place, Mapping):
        rest = f"--from {shell_text([asked.at])} --count {count}"
    else:
        times = [row.timestamp for row in rows if row.timestamp >= 0]
        rest = f"--from @{min(times)} --until @{max(times) + 1}" if times else "--from latest"
    one = asked.partitions[0] if len(asked.partitions) == 1 else None
    return f"{consume_command(asked, one)} {rest} --offsets --keys --headers"
