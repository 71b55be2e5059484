"""Programs on asyncio that do not ask for records for long, and those that are interrupted by Ctrl-C."""

import asyncio
import signal
import subprocess
import sys
from typing import Final

import pytest

import seglog
import seglog.asyncio
from seglog.testing import Broker
from seglog_protocol.errors import UnknownMemberError
from seglog_protocol.messages import FetchRequest
from tests.processes import clean_environment
from tests.unit.clients.asyncio.conftest import Run
from tests.unit.clients.asyncio.test_client import arrived
from tests.unit.clients.fake_broker import FakeBroker, fake_broker

pytestmark = pytest.mark.filterwarnings("error")

_PROGRAM: Final = """
import asyncio
import sys

import uvloop

import seglog.asyncio


async def main() -> None:
    async with (
        seglog.asyncio.connect(sys.argv[1]) as client,
        client.producer("out", linger_ms=3_600_000) as producer,
        client.consumer("in", group="g") as consumer,
    ):
        async for record in consumer:
            await producer.send(record.value)
            print(record.offset, flush=True)


{"asyncio": asyncio, "uvloop": uvloop}[sys.argv[2]].run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_ctrl_c_leaves_the_group_and_says_what_was_not_sent(loop: str) -> None:
    with Broker() as broker, seglog.connect(broker.address) as client:
        for topic in ("in", "out"):
            client.create_topic(topic)
        with client.producer("in") as producer:
            for number in range(3):
                producer.send(str(number))
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", _PROGRAM, broker.address, loop]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
        ) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT
        assert errors.splitlines()[-1] == "KeyboardInterrupt"
        assert "not acknowledged: 3 records to out" in errors
        assert "never retrieved" not in errors
        assert "Warning" not in errors
        assert client.describe_group("g").members == []
        assert [found.offset for found in client.group_offsets("g")] in ([2], [3])
        assert client.offsets("out")[0].latest == 0


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
