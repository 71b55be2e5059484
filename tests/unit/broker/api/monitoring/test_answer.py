"""The native request ``samples``: pages of families, each made in turns."""

from itertools import groupby
from typing import Final

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.families import FAMILIES
from seglog_broker.api.monitoring.samples import Sample
from seglog_broker.api.monitoring.service import PAGE_BYTES, Monitoring, answer_samples
from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX, ResponseMemory
from seglog_protocol.errors import LocalProtocolError
from seglog_protocol.messages import SamplesRequest, decode_samples

NAMES: Final = [family.name for family in FAMILIES]


async def test_a_page_ends_with_the_family_that_makes_it_large() -> None:
    many = [Sample((str(number), "x" * 200), number) for number in range(10_000)]
    monitoring = Monitoring({name: lambda: many for name in NAMES[:3]})
    turns: list[None] = []
    room = ResponseMemory().room()

    async def turn() -> None:
        turns.append(None)

    after, found = "", list[str]()
    for _ in range(3):
        reply, payload = await answer_samples(monitoring, SamplesRequest(after=after), turn, room)
        assert PAGE_BYTES < len(payload) < 4 * PAGE_BYTES
        assert 0 <= len(payload) - room.used < 10, "counted, but for the head of the list"
        room.close()
        parts = decode_samples(payload)
        assert {part.name for part in parts} == {parts[0].name}
        assert sum(len(part.samples) for part in parts) == 10_000
        found.append(after := parts[-1].name)
        if not reply.more:
            break
    reply, payload = await answer_samples(monitoring, SamplesRequest(after=after), turn, room)
    assert not reply.more
    assert found == NAMES[:3]
    assert len(turns) >= 60, "500 samples in each"


async def test_a_family_that_is_larger_than_a_reply_is_an_error() -> None:
    many = [Sample((str(number), "x" * 200), number) for number in range(1_000)]
    memory = ResponseMemory()
    memory.response_bytes_max = 100_000
    assert memory.response_bytes_max < RESPONSE_BYTES_MAX
    with pytest.raises(LocalProtocolError, match=f"{NAMES[0]} are larger"):
        await answer_samples(
            Monitoring({NAMES[0]: lambda: many}), SamplesRequest(), trio.lowlevel.checkpoint, memory.room()
        )


async def names(broker: Broker, request: SamplesRequest) -> list[str]:
    """The names of the families of a reply; a family whose samples took long to make has several items there."""
    reply, payload = await answer_samples(broker.monitoring, request, broker.turn, broker.response_memory.room())
    assert not reply.more
    return [name for name, _ in groupby(family.name for family in decode_samples(payload))]


async def test_every_family_is_there_once_also_without_samples(broker: Broker) -> None:
    assert await names(broker, SamplesRequest()) == NAMES
    assert await names(broker, SamplesRequest(after=NAMES[-2])) == NAMES[-1:]
    assert await names(broker, SamplesRequest(after="unknown")) == []
