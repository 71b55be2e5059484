"""A broker on the forgetful disk with the state of share groups, without listeners, and what it is asked in tests."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.share.in_flight import ACCEPT, Acknowledgement, Acquired
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.partitions.partition import Partition
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.logs import ManualClock
from tests.unit.broker.coordinators.groups.service.running import NOW, open_broker, with_topic

GROUP: Final = "workers"
MEMBER: Final = "m1"
STATE_TOPIC: Final = "__share_group_state"


@asynccontextmanager
async def sharing(
    fs: ForgetfulFileSystem,
    *flags: str,
    closes: bool = True,
    clock: ManualClock | None = None,
    of_group: Mapping[str, str] | None = None,
    **fields: Any,
) -> AsyncIterator[Broker]:
    """A broker whose state of share groups is loaded; ``of_group`` are settings of GROUP."""
    broker = open_broker(fs, clock or ManualClock(NOW), *flags, **fields)
    if of_group is not None:
        broker.reconfigure(broker.live_config.static, DynamicConfig(groups={GROUP: dict(of_group)}))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.share.run)
        await trio.testing.wait_all_tasks_blocked()
        yield broker
        nursery.cancel_scope.cancel()
    if closes:
        broker.close()


def key_of(broker: Broker, number: int = 0, group: str = GROUP, topic: str = "t") -> PartitionKey:
    return PartitionKey(group, id_bytes(broker.directory.registry.topics[topic].id), number)


async def begun(broker: Broker, *numbers: int, offset: int = 0, group: str = GROUP) -> list[SharePartition]:
    """Partitions of ``t``, which is made where it is not there, that a group reads from ``offset`` on."""
    if "t" not in broker.directory.registry.topics:
        await with_topic(broker, partitions=3)
    keys = [key_of(broker, number, group) for number in numbers or (0,)]
    await broker.share.initialize(group, keys[0].topic_id, {key.partition: offset for key in keys}, 1)
    return [known(broker, key) for key in keys]


def known(broker: Broker, key: PartitionKey | None = None) -> SharePartition:
    machine = broker.share.find(key or key_of(broker))
    assert machine is not None
    return machine


def taken(broker: Broker, machine: SharePartition, count: int = 10) -> Sequence[Acquired]:
    """Records that MEMBER acquires."""
    first = machine.next_offset()
    assert first is not None
    batches = [(first, first + count - 1)]
    return machine.acquire(MEMBER, batches, first, count, 500, is_record_limit=True, now=broker.share.runtime.now())


async def acknowledged(broker: Broker, machine: SharePartition, first: int, last: int, kind: int = ACCEPT) -> None:
    machine.acknowledge(MEMBER, [Acknowledgement(first, last, [kind])], broker.share.runtime.now())
    await broker.share.runtime.written(machine.key)


def log_of(broker: Broker, number: int = 0, topic: str = "t") -> Partition:
    return broker.partitions.partition(topic, number)
