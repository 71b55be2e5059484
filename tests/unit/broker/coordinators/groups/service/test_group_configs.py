"""Settings of single groups: their members of the consumer protocol get them, and those of other groups do not."""

from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config.kafka_configs import Alteration, Operation, ResourceType
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from tests.unit.broker.coordinators.groups.service.running import TogetherClock, running, with_topic

FLAGS: Final = ("group.consumer.min.session.timeout.ms=1000", "group.consumer.min.heartbeat.interval.ms=100")


async def alter(broker: Broker, group: str, **settings: str | None) -> None:
    """Set keys, with ``_`` for ``.``, or delete those that are None."""
    changes = [
        Alteration(key.replace("_", "."), Operation.DELETE if value is None else Operation.SET, value)
        for key, value in settings.items()
    ]
    await broker.configs.alter(ResourceType.GROUP, group, changes)


async def interval_of(broker: Broker, group: str, epoch: int = 0) -> int:
    """The heartbeat interval that the one member of a group is told."""
    request = ConsumerHeartbeat("m", epoch, client_id="app", client_host="/1.2.3.4")
    if not epoch:
        request = request._replace(rebalance_timeout_ms=20_000, topics=["t"], owned={})
    return (await broker.groups.consumer_heartbeat(group, request)).heartbeat_interval_ms


def members(broker: Broker, group: str) -> int:
    return len(broker.groups.describe_consumer(group).members)


async def test_members_are_told_the_interval_of_their_group_also_after_a_power_cut() -> None:
    fs = ForgetfulFileSystem()
    async with running(fs, None, *FLAGS, closes=False) as broker:
        await with_topic(broker)
        await alter(broker, "own", consumer_heartbeat_interval_ms="500")
        assert await interval_of(broker, "own") == 500
        assert await interval_of(broker, "other") == 5_000
        await alter(broker, "own", consumer_heartbeat_interval_ms="700")
        epoch = broker.groups.describe_consumer("own").members[0].epoch
        assert await interval_of(broker, "own", epoch) == 700
    async with running(fs.crash(POWER_LOSS), None, *FLAGS) as broker:
        assert await interval_of(broker, "own", epoch) == 700
        await alter(broker, "own", consumer_heartbeat_interval_ms=None)
        assert await interval_of(broker, "own", epoch) == 5_000


async def test_a_member_is_dead_after_the_session_timeout_of_its_group() -> None:
    async with running(ForgetfulFileSystem(), TogetherClock(), *FLAGS) as broker:
        await with_topic(broker)
        await alter(broker, "own", consumer_session_timeout_ms="2s", consumer_heartbeat_interval_ms="500")
        for group in ("own", "other"):
            await interval_of(broker, group)
        await trio.sleep(1.9)
        assert (members(broker, "own"), members(broker, "other")) == (1, 1)
        await trio.sleep(0.2)
        assert (members(broker, "own"), members(broker, "other")) == (0, 1)
        await trio.sleep(44)
        assert (members(broker, "own"), members(broker, "other")) == (0, 0)


async def test_a_longer_session_counts_from_the_next_heartbeat() -> None:
    async with running(ForgetfulFileSystem(), TogetherClock(), *FLAGS) as broker:
        await with_topic(broker)
        await interval_of(broker, "own")
        await alter(broker, "own", consumer_session_timeout_ms="60000")
        epoch = broker.groups.describe_consumer("own").members[0].epoch
        await interval_of(broker, "own", epoch)
        await trio.sleep(50)
        assert members(broker, "own") == 1
        await trio.sleep(11)
        assert members(broker, "own") == 0
