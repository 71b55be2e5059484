"""Consumers in groups against a real daemon: what the face on trio has of its own."""

import pytest
import trio

import seglog
import seglog.trio
from seglog.testing import Broker


@pytest.fixture(autouse=True)
def _quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seglog.core.group_membership.HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr("seglog.core.group_membership.METADATA_SECONDS", 0.1)


async def send(client: seglog.trio.Client, values: range, *, partitions: int = 4) -> None:
    await client.create_topic("t", partitions=partitions, exist_ok=True)
    async with client.producer("t") as producer:
        for value in values:
            await producer.send(str(value), partition=value % partitions)


async def offsets(client: seglog.trio.Client, group: str) -> dict[int, int | None]:
    return {found.partition: found.offset for found in await client.group_offsets(group)}


async def test_a_cancelled_block_still_commits_and_leaves(group_broker: Broker) -> None:
    async with seglog.trio.connect(group_broker.address) as client:
        await send(client, range(10), partitions=1)
        with trio.CancelScope() as scope:
            async with client.consumer("t", group="app") as consumer:
                async for record in consumer:
                    if record.offset == 7:
                        scope.cancel()
        assert scope.cancelled_caught
        assert await offsets(client, "app") == {0: 7}  # what was in hand then is not counted as done
        assert (await client.describe_group("app")).members == []
        with pytest.raises(seglog.ClientClosedError):
            await consumer.commit()


async def test_leaving_the_clients_block_leaves_the_group(group_broker: Broker) -> None:
    told: list[list[int]] = []

    async def assigned(partitions: list[int]) -> None:
        await trio.lowlevel.checkpoint()
        told.append(partitions)

    async with seglog.trio.connect(group_broker.address) as client:
        await send(client, range(10), partitions=1)
        consumer = await client.consumer("t", group="app", on_assigned=assigned)
        records = aiter(consumer)
        for _ in range(5):
            await anext(records)
    assert told == [[0]]
    async with seglog.trio.connect(group_broker.address) as client:
        assert (await client.describe_group("app")).members == []
        assert await offsets(client, "app") == {0: 4}


async def test_added_partitions_are_read_and_a_broker_that_was_killed_is_waited_for(group_broker: Broker) -> None:
    async with seglog.trio.connect(group_broker.address) as client:
        await send(client, range(2), partitions=1)
        async with client.consumer("t", group="app", auto_commit_interval=0.05) as consumer:
            records = aiter(consumer)
            assert [(await anext(records)).offset for _ in range(2)] == [0, 1]
            await client.alter_topic("t", partitions=3)
            async with client.producer("t") as producer:
                await producer.send("new", partition=2)
            assert (await anext(records))[:3] == ("t", 2, 0)
            await trio.to_thread.run_sync(group_broker.crash)
            await trio.to_thread.run_sync(group_broker.start)
            async with client.producer("t") as producer:
                await producer.send("newer", partition=2)
            assert (await anext(records))[:3] == ("t", 2, 1)
            await consumer.committed()  # connects to the broker that is back, which a close tries only once
        assert await offsets(client, "app") == {0: 2, 1: 0, 2: 1}
