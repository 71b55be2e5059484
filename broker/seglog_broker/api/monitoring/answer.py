"""The native request ``samples``: families of metrics as pages of msgpack, made in turns."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from seglog_broker.api.monitoring.samples import Slice, in_turns
from seglog_broker.api.monitoring.service import Monitoring
from seglog_broker.runtime.response_memory import Room
from seglog_protocol.errors import LocalProtocolError
from seglog_protocol.messages import SamplesReply, SamplesRequest, page_of

PAGE_BYTES: Final = 1024 * 1024
"""A page ends with the family that takes it beyond this; families are bounded by the numbers of their samples."""


async def answer_samples(
    monitoring: Monitoring, request: SamplesRequest, turn: Callable[[], Awaitable[None]], room: Room
) -> tuple[SamplesReply, bytes]:
    """The reply and its payload, a msgpack list with one item or more for each family; a ``turn`` between slices.

    Its memory is counted in ``room``, of which there are few that are large: it may wait for one. Raises
    LocalProtocolError where it is larger than any response may be.
    """
    wanted = set(request.families)
    families = [family for family in monitoring.families if not wanted or family.name in wanted]
    if request.after:
        behind = [number for number, family in enumerate(families, start=1) if family.name == request.after]
        families = families[behind[0] :] if behind else []
    page: list[bytes] = []
    size = 0
    for number, family in enumerate(families, start=1):
        began = len(page)
        for parts in in_turns(monitoring.slices([family.name]), _encode):
            page += parts
            made = sum(map(len, parts))
            size += made
            if not room.add(made):
                raise LocalProtocolError(f"the samples of {family.name} are larger than a reply may be")
            await room.wait_after(turn)
        if len(page) == began:
            page.append(_encode(Slice.of(family, [])))
        if size > PAGE_BYTES and number < len(families):
            return SamplesReply(more=True), page_of(page)
    return SamplesReply(), page_of(page)


def _encode(piece: Slice) -> bytes:
    family = piece.family
    return msgspec.msgpack.encode(
        {
            "name": family.name,
            "kind": family.kind.value,
            "help": family.help,
            "labels": family.labels,
            "samples": piece.samples,
        }
    )
