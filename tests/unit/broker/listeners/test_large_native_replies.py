"""Long replies of the native protocol: their memory is that of all large responses together."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from seglog_broker.api.monitoring.families import FAMILIES
from seglog_broker.api.monitoring.samples import Sample
from seglog_broker.api.monitoring.service import Monitoring
from seglog_broker.runtime.response_memory import LARGE_MAX
from seglog_protocol.frames import FrameReader
from seglog_protocol.messages import (
    DeletedGroup,
    DeleteGroupsReply,
    DeleteGroupsRequest,
    Message,
    Request,
    SamplesRequest,
    TopicsReply,
    TopicsRequest,
    decode_samples,
)
from tests.unit.broker.listeners.fake_broker import FakeBroker, Peer, serving

FAMILY = FAMILIES[-1].name
SAMPLES = 10_000
LARGE = [Sample((f"group-{number}", "topic" * 40, "0"), number) for number in range(SAMPLES)]


class SamplesBroker(FakeBroker):
    """With one family, of a page of megabytes."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.monitoring = Monitoring({FAMILY: lambda: LARGE})


async def asked(peer: Peer) -> Peer:
    peer.reader = FrameReader(64 * 1024 * 1024)
    await peer.send(1, SamplesRequest())
    return peer


async def test_pages_of_metrics_that_nobody_reads_are_few_and_give_way_to_one_who_reads(
    mock_clock: MockClock,
) -> None:
    broker = SamplesBroker(socket_send_buffer_bytes=65_536)
    memory = broker.response_memory
    async with serving(broker) as served:
        for _ in range(2 * LARGE_MAX):
            await asked(await served.greeted())
        # Until those that have a place have made a mebibyte each. Time stands still: nobody is too slow.
        while memory.waiting < LARGE_MAX or memory.used <= LARGE_MAX * 1024 * 1024:
            await trio.lowlevel.checkpoint()
        mock_clock.autojump_threshold = 0.05
        reader = await asked(await served.greeted())
        reply = await reader.receive()
        assert sum(len(part.samples) for part in decode_samples(bytes(reply.payload))) == SAMPLES
        assert broker.metrics.connections_ended["slow_reader"] > 0
    assert memory.used == 0


class ListBroker(FakeBroker):
    """Whose replies to some requests have a mebibyte."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.answered = 0

    async def answer(self, request: Request, host: str = "", principal: str = "") -> tuple[Message, bytes]:
        self.answered += 1
        if isinstance(request, DeleteGroupsRequest):
            return DeleteGroupsReply([DeletedGroup(f"{group}{100 * chr(110)}") for group in request.groups]), b""
        return TopicsReply(), bytes(1024 * 1024)


@pytest.mark.parametrize("request_", [TopicsRequest(), DeleteGroupsRequest([f"group-{n}" for n in range(5_000)])])
async def test_lists_that_nobody_reads_are_few_and_the_others_are_not_made_yet(
    request_: Request, mock_clock: MockClock
) -> None:
    broker = ListBroker(socket_send_buffer_bytes=65_536)
    memory = broker.response_memory
    async with serving(broker) as served:
        for _ in range(3 * LARGE_MAX):
            await (await served.greeted()).send(1, request_)
        while memory.waiting < 2 * LARGE_MAX:  # time stands still: nobody is too slow
            await trio.lowlevel.checkpoint()
        assert broker.answered == LARGE_MAX
        mock_clock.autojump_threshold = 0.05
        reader = await served.greeted()
        await reader.send(1, request_)
        assert len((await reader.receive()).packed) > 0
        assert broker.metrics.connections_ended["slow_reader"] > 0
    assert memory.used == 0


async def test_a_request_for_little_needs_no_place(autojump_clock: MockClock) -> None:
    broker = ListBroker()
    broker.response_memory.large_max = 0
    async with serving(broker) as served:
        peer = await served.greeted()
        await peer.send(1, DeleteGroupsRequest(["a"]))
        await peer.receive()
    assert broker.response_memory.waiting == 0
