"""The native request ``samples``: pages of families, each made in turns."""

from typing import Final

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.answer import PAGE_BYTES, answer_samples
from seglog_broker.api.monitoring.families import FAMILIES
from seglog_broker.api.monitoring.samples import Sample
from seglog_broker.api.monitoring.service import Monitoring
from seglog_protocol.messages import MetricFamily, SamplesRequest, decode_samples
from tests.broker.brokers import open_broker

NAMES: Final = [family.name for family in FAMILIES]


async def test_a_page_ends_with_the_family_that_makes_it_large() -> None:
    many = [Sample((str(number), "x" * 200), number) for number in range(10_000)]
    monitoring = Monitoring({name: lambda: many for name in NAMES[:3]})
    turns: list[None] = []

    async def turn() -> None:
        turns.append(None)

    after, found = "", list[str]()
    for _ in range(3):
        reply, payload = await answer_samples(monitoring, SamplesRequest(after=after), turn)
        assert PAGE_BYTES < len(payload) < 4 * PAGE_BYTES
        parts = decode_samples(payload)
        assert {part.name for part in parts} == {parts[0].name}
        assert sum(len(part.samples) for part in parts) == 10_000
        found.append(after := parts[-1].name)
        if not reply.more:
            break
    reply, payload = await answer_samples(monitoring, SamplesRequest(after=after), turn)
    assert not reply.more
    assert found == NAMES[:3]
    assert len(turns) >= 60, "500 samples in each"


async def read(broker: Broker, request: SamplesRequest) -> list[MetricFamily]:
    reply, payload = await answer_samples(broker.monitoring, request, broker.turn)
    assert not reply.more
    return decode_samples(payload)


async def test_every_family_is_there_once_also_without_samples() -> None:
    broker = open_broker()
    found = [family.name for family in await read(broker, SamplesRequest())]
    assert found == NAMES
    assert [family.name for family in await read(broker, SamplesRequest(after=NAMES[-2]))] == NAMES[-1:]
    assert await read(broker, SamplesRequest(after="unknown")) == []
    broker.close()
