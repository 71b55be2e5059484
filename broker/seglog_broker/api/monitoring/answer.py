"""The native request ``samples``: families of metrics as pages of msgpack, made in turns."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from seglog_broker.api.monitoring.families import FAMILIES, Family
from seglog_broker.api.monitoring.samples import Slice
from seglog_broker.api.monitoring.service import Monitoring
from seglog_protocol.messages import SamplesReply, SamplesRequest, page_of

PAGE_BYTES: Final = 1024 * 1024
"""A page ends with the family that takes it beyond this; families are bounded by the numbers of their samples."""


async def answer_samples(
    monitoring: Monitoring, request: SamplesRequest, turn: Callable[[], Awaitable[None]]
) -> tuple[SamplesReply, bytes]:
    """The reply and its payload, a msgpack list with one item or more for each family; a ``turn`` between slices."""
    wanted = set(request.families)
    names = [family.name for family in FAMILIES if not wanted or family.name in wanted]
    if request.after:
        names = names[names.index(request.after) + 1 :] if request.after in names else []
    page: list[bytes] = []
    size = 0
    for number, name in enumerate(names, start=1):
        began = len(page)
        last: Slice | None = None
        for last in monitoring.slices([name]):
            if last.samples:
                page.append(_encode(last))
                size += len(page[-1])
            await turn()
        if last is not None and len(page) == began:
            page.append(_encode(last))
        if size > PAGE_BYTES and number < len(names):
            return SamplesReply(more=True), page_of(page)
    return SamplesReply(), page_of(page)


def _encode(piece: Slice) -> bytes:
    family: Family = piece.family
    return msgspec.msgpack.encode(
        {
            "name": family.name,
            "kind": family.kind.value,
            "help": family.help,
            "labels": family.labels,
            "samples": piece.samples,
        }
    )
