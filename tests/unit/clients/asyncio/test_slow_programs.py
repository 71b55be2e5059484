"""Programs on asyncio that do not ask for records for long, and those that are interrupted by Ctrl-C."""

import asyncio

import pytest

import seglog
import seglog.asyncio
from seglog.testing import Broker
from seglog_protocol.errors import UnknownMemberError
from seglog_protocol.messages import FetchRequest
from tests.unit.clients.asyncio.conftest import Run
from tests.unit.clients.asyncio.test_client import arrived
from tests.unit.clients.fake_broker import FakeBroker, fake_broker

pytestmark = pytest.mark.filterwarnings("error")


def test_a_consumer_that_does_not_read_for_long_has_one_answer_in_memory_and_loses_nothing(run: Run) -> None:
    async def main(broker: FakeBroker) -> None:
        async with (
            seglog.asyncio.connect(broker.address) as client,
            client.consumer("t", start=0, partition_bytes=500_000, fetch_bytes=500_000) as consumer,
        ):
            seen = []
            async for record in consumer:
                seen.append(record.value)
                break
            await arrived(broker, FetchRequest, 2)  # its answer lies in the client, unread
            for _ in range(50):
                await client.topics()  # by another connection
            assert broker.asked(FetchRequest) == 2
            broker.drop_connections()
            seen += [record.value async for record in consumer]
            assert seen == [b"%02d" % number * 100_000 for number in range(30)]

    with fake_broker() as broker:
        with seglog.connect(broker.address) as client, client.producer("t", linger_ms=0) as producer:
            for number in range(30):
                producer.send(b"%02d" % number * 100_000)
        run(main(broker))


@pytest.mark.soak
def test_a_member_that_is_too_slow_hears_so_and_goes_on_where_the_group_was(run: Run) -> None:
    async def main(address: str) -> None:
        async with seglog.asyncio.connect(address) as client:
            await client.create_topic("t", 2)
            async with client.producer("t") as producer:
                for number in range(20):
                    await producer.send(str(number), partition=number % 2)
            lost: list[tuple[list[int], bool]] = []
            async with client.consumer(
                "t",
                group="g",
                auto_commit=False,
                session_timeout=6,
                max_poll_interval=0.5,
                on_revoked=lambda partitions, is_lost: lost.append((partitions, is_lost)),
            ) as consumer:
                async for _ in consumer:
                    break
                while (await client.describe_group("g")).members:  # noqa: ASYNC110 - the broker's state
                    await asyncio.sleep(0.05)
                with pytest.raises(UnknownMemberError, match="it joins when records are asked for"):
                    await consumer.commit()
                seen = []
                async for record in consumer:
                    seen.append(int(record.value or b""))
                    if len(seen) == 20:
                        break
                assert lost == [([0, 1], True)]
                assert sorted(seen) == list(range(20))
                await consumer.commit()
            assert [found.offset for found in await client.group_offsets("g")] == [10, 10]

    with Broker() as broker:
        run(main(broker.address))
