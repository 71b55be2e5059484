"""One segment drawn: its index, its batches, how dense records lie, and their times; samples where it is large."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.exceptions import HTTPException

from seglog.cli.pictures.density import DAMAGED, Batch, Entry, density_picture
from seglog.cli.segment_table import facts_of
from seglog.core.errors import count_of
from seglog_console.pages import View
from seglog_console.reading import Row, read
from seglog_console.topic import address_of, drawn
from seglog_console.viewer import several
from seglog_protocol import messages
from seglog_protocol.compression import Codec
from seglog_protocol.errors import CorruptRecordError, OffsetOutOfRangeError
from seglog_protocol.isolation import READ_UNCOMMITTED
from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, parse_header

WHOLE_BYTES_MAX: Final = 4 << 20
"""Of a segment that is fetched as a whole."""
PLACES: Final = 48
"""Samples of a segment: seeks, whose answers name an entry of the index and a batch."""
SAMPLED_BYTES_MAX: Final = 8 << 20
"""Of batches that are fetched for their codecs and times, all together."""
SECONDS: Final = 10.0
"""The most that samples take; the page has those that came."""
KEPT_SECONDS: Final = 30.0
_STRIDE: Final = 4
"""Places are looked at in so many rounds, so that what was seen lies evenly, wherever they end."""
_CODECS: Final = {codec.value: codec.name.lower() for codec in Codec}
_SEGMENTS: Final = 20
"""Of one request that looks for one: those that wait to be deleted come first."""


class Samples(NamedTuple):
    """Samples of a segment, and sentences about how they came."""

    batches: Sequence[Batch]
    entries: Sequence[Entry]
    facts: Sequence[str]


async def context(view: View) -> dict[str, Any]:
    """The segment that begins at ``base``."""
    topic, number, base = view.request.path_params["topic"], view.number("partition", 0), view.number("base", 0)
    log, segment = await _find(view, topic, number, base)

    async def draw() -> dict[str, Any]:
        samples = await _sample(view, log, segment)
        if not samples.batches:
            return {"facts": samples.facts, "svg": None}
        title = f"{topic}-{number}, segment {base:,}: {count_of(segment.size, 'byte')}"
        return drawn(density_picture(title, segment.size, *samples, view.zone))

    picture: dict[str, Any] = {"facts": ("it has left the log, and nothing of it can be read any more",), "svg": None}
    if segment.state != "deleted":
        question = "segment", topic, number, base, segment.next_offset
        picture = await view.session.viewer.shared(question, draw, seconds=KEPT_SECONDS)
    return {
        "topic": topic,
        "number": number,
        "base": base,
        "address": address_of(topic),
        "segment": segment,
        "details": list(facts_of(segment, log, view.zone)),
        "picture": picture,
    }


async def _find(
    view: View, topic: str, number: int, base: int
) -> tuple[messages.ExplainSegmentsReply, messages.ExplainedSegment]:
    request = messages.ExplainSegmentsRequest(topic, number, after=base - 1 if base else None, limit=_SEGMENTS)
    reply, payload = await view.client.call(request, messages.ExplainSegmentsReply, is_repeatable=True)
    found = [segment for segment in messages.decode_segments(payload) if segment.base_offset == base]
    if not found:
        raise HTTPException(
            404, f"{topic}-{number} has no segment that begins at offset {base:,} now: it has left, or was replaced"
        )
    return reply, next((segment for segment in found if segment.state != "deleted"), found[0])


# --- Samples ----------------------------------------------------------------------------------------------------------


async def _sample(view: View, log: messages.ExplainSegmentsReply, segment: messages.ExplainedSegment) -> Samples:
    first = max(segment.base_offset, log.earliest)
    count = segment.next_offset - first
    if count <= 0:
        return Samples((), (), ("none of its records can be read",))
    offsets = sorted({first + count * place // PLACES for place in range(PLACES)})
    sought: list[messages.ExplainReply] = []
    headers: dict[int, BatchHeader] = {}
    is_whole = segment.size <= WHOLE_BYTES_MAX
    room = 0 if is_whole else SAMPLED_BYTES_MAX

    async def look(offset: int) -> None:
        nonlocal room
        try:
            reply = await view.client.explain.seek(log.topic, log.partition, offset)
            if reply.segment == segment.base_offset and reply.position is not None and reply.base_offset is not None:
                sought.append(reply)
                if reply.batch_size <= room:
                    room -= reply.batch_size
                    headers[reply.position] = await _header(view, log, offset)
        except (CorruptRecordError, OffsetOutOfRangeError):
            pass  # this place shows nothing

    facts = []
    try:
        async with asyncio.timeout(SECONDS):
            await several([partial(look, offset) for begin in range(_STRIDE) for offset in offsets[begin::_STRIDE]])
    except TimeoutError:
        facts.append(f"after {SECONDS:g} s {len(sought)} of {len(offsets)} places had answered")
    sought.sort(key=lambda reply: reply.position or 0)
    entries = {
        Entry(lookup.key, lookup.value)
        for reply in sought
        for lookup in reply.lookups
        if lookup.index == "offset" and lookup.key is not None and lookup.value is not None
    }
    said = next((lookup.entries for reply in sought for lookup in reply.lookups if lookup.index == "offset"), 0)
    facts.append(
        f"{len(entries):,} of {count_of(said, 'entry', many='entries')} of its index, to which {len(offsets)} seeks led"
    )
    if is_whole:
        batches, damaged = await _all(view, log, segment, first)
        facts.insert(0, f"all of its {count_of(len(batches) - len(damaged), 'batch', many='batches')}")
        facts += damaged
    else:
        batches = _between(sought, headers)
        facts.insert(0, f"sampled at {len(offsets)} places: {count_of(len(batches), 'batch', many='batches')}")
    return Samples(batches, sorted(entries), facts)


async def _header(view: View, log: messages.ExplainSegmentsReply, offset: int) -> BatchHeader:
    """The header of the batch with an offset. Raises OffsetOutOfRangeError and CorruptRecordError."""
    place = messages.FetchPartition(log.topic, log.partition, offset=offset, max_bytes=1)
    request = messages.FetchRequest([place], max_bytes=1, max_wait_ms=0)
    reply, payload = await view.client.call(request, messages.FetchReply, is_repeatable=True)
    if (error := reply.partitions[0].error) is not None:
        raise error
    if len(payload) < HEADER_SIZE:
        raise CorruptRecordError("there is no whole batch here", start_offset=offset)
    return parse_header(payload)


def _between(sought: Sequence[messages.ExplainReply], headers: dict[int, BatchHeader]) -> list[Batch]:
    """A batch for each position that seeks found; of one that was not fetched the codec is not known."""
    found: dict[int, Batch] = {}
    for reply in sought:
        if reply.position is None or reply.base_offset is None or reply.last_offset is None:
            continue
        if (header := headers.get(reply.position)) is not None:
            found[reply.position] = _batch(reply.position, header)
            continue
        first, behind = reply.base_offset, reply.last_offset + 1
        sizes = reply.position, reply.batch_size, first, behind, behind - first
        found[reply.position] = Batch(*sizes, reply.record_timestamp, "")
    return list(found.values())


async def _all(
    view: View, log: messages.ExplainSegmentsReply, segment: messages.ExplainedSegment, first: int
) -> tuple[list[Batch], list[str]]:
    """Every batch from offset ``first`` on, with one for each place that is damaged, of which there is a sentence."""
    batches: list[Batch] = []
    damaged: list[Row] = []
    position = None
    ranges = {log.partition: (first, segment.next_offset)}
    async with aclosing(read(view.client, log.topic, ranges, READ_UNCOMMITTED, segment.size)) as items:
        async for item in items:
            if isinstance(item, Row):
                damaged += [item] if item.is_damage else []
                position = None if item.is_damage else position
                continue
            if position is None:
                position = (await view.client.explain.seek(log.topic, log.partition, item.start_offset)).position or 0
                if damaged:
                    hurt, end = damaged[-1], batches[-1].position + batches[-1].size if batches else 0
                    batches.append(Batch(end, position - end, hurt.start_offset, hurt.end_offset, 0, None, DAMAGED))
            batches.append(_batch(position, item.header))
            position += item.header.size
    return batches, [row.why for row in damaged]


def _batch(position: int, header: BatchHeader) -> Batch:
    sizes = position, header.size, header.base_offset, header.next_offset, header.record_count
    return Batch(*sizes, header.max_timestamp, _CODECS.get(header.codec_id, "unknown"))
