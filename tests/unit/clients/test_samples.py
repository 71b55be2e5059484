"""The broker's metrics as a program reads them, with either face of the client and from a real broker."""

import math
from typing import Any

import pytest

import seglog
import seglog.trio
from seglog.testing import Broker
from seglog_protocol import messages
from seglog_protocol.frames import encode_value
from tests.unit.clients.faces import Face
from tests.unit.clients.fake_broker import Answer


def part(name: str, *values: float) -> dict[str, Any]:
    samples = [[[str(number)], value] for number, value in enumerate(values)]
    return {"name": name, "kind": "gauge", "help": "An example.", "labels": ["n"], "samples": samples}


async def test_families_come_in_pages_and_in_parts(face: Face) -> None:
    pages = {"": [part("a", 1), part("a", math.inf), part("b")], "b": [part("c", 2.5)]}

    def script(request: messages.Request, _payload: memoryview) -> Answer:
        assert isinstance(request, messages.SamplesRequest)
        assert request.families == ["a", "b", "c"]
        return messages.SamplesReply(more=not request.after), encode_value(pages[request.after])

    async with face() as (broker, client):
        broker.script = script
        found = await client.samples(["a", "b", "c"])
        assert [family.name for family in found] == ["a", "b", "c"]
        assert [[sample.value for sample in family.samples] for family in found] == [[1, math.inf], [], [2.5]]
        assert broker.asked(messages.SamplesRequest) == 2


async def test_the_plain_numbers_warn_on_every_face() -> None:
    with Broker() as broker, seglog.connect(broker.server) as client:
        with pytest.warns(DeprecationWarning, match="samples"):
            assert client.metrics()["topics"] == 0
        async with seglog.trio.connect(broker.server) as of_trio:
            with pytest.warns(DeprecationWarning, match="samples"):
                assert (await of_trio.metrics())["topics"] == 0
