"""Groups that change their protocol: what they were is deleted with what they are."""

from collections.abc import Sequence
from itertools import takewhile
from typing import cast

from seglog_broker.config import load_config
from seglog_broker.coordinators.groups.classic import ClassicGroup
from seglog_broker.coordinators.groups.classic_members import tombstone
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.coordinators.groups.service.machines import GroupMachines
from seglog_broker.coordinators.records import encode_record
from seglog_broker.coordinators.topic import Encoded, StateTopic
from seglog_broker.partitions.scheduler import Common
from seglog_broker.runtime.live_config import LiveConfig
from seglog_protocol.steps import finished
from tests.logs import ManualClock
from tests.unit.broker.coordinators.groups.consumer_coordinator import Topics
from tests.unit.broker.coordinators.held_topic import FAILED, HeldTopic


def without_groups() -> tuple[GroupMachines, HeldTopic]:
    topic = HeldTopic()
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    common = cast("Common", (LiveConfig(config), None, ManualClock(0), *[None] * 7))
    machines = GroupMachines(*common, cast("StateTopic", topic), Topics())
    return machines, topic


CLASSIC_KEY = finished(encode_record(tombstone("g")))[0]


def deletes(records: Sequence[Encoded]) -> bool:
    """Whether these delete what a classic group had, before they say anything else."""
    tombstones = list(takewhile(lambda record: record[1] is None, records))
    return (CLASSIC_KEY, None) in tombstones


async def test_what_a_group_was_is_deleted_with_what_it_is_until_that_is_durable() -> None:
    machines, topic = without_groups()
    runtime = machines.runtime
    runtime.machines["g"] = machines.classic("g")
    runtime.carry_out("g")
    known = runtime.machines["g"]
    assert isinstance(known, ClassicGroup)
    finished(machines.upgrade(known))
    assert deletes(topic.records[-1])
    topic.end(FAILED)
    group = runtime.machines["g"]
    assert isinstance(group, ConsumerGroup)
    joins = ConsumerHeartbeat("m", 0, rebalance_timeout_ms=20_000, topics=["t"], owned={})
    finished(group.heartbeat(joins, runtime.now()))
    runtime.carry_out("g")
    assert deletes(topic.records[-1])
    topic.end(FAILED)
    finished(group.heartbeat(joins, runtime.now()))
    runtime.carry_out("g")
    assert deletes(topic.records[-1])
    topic.end()
    finished(group.heartbeat(ConsumerHeartbeat("m", -1), runtime.now()))
    runtime.carry_out("g")
    assert not deletes(topic.records[-1])
    topic.end()
    back = machines.downgrade(group)
    runtime.carry_out("g")
    written = dict(topic.records[-1])
    assert written[CLASSIC_KEY] is not None
    assert {value for key, value in written.items() if key != CLASSIC_KEY} == {None}
    topic.end(FAILED)
    runtime.remove("g")
    assert {key for key, value in topic.records[-1] if value is None} == set(written)
    assert back.generation == group.generation


def join_alone(machines: GroupMachines, host: str) -> None:
    """Have the member m join the group g, which is made where there is none, from ``host``."""
    runtime = machines.runtime
    group = runtime.machines.setdefault("g", machines.consumer("g"))
    assert isinstance(group, ConsumerGroup)
    joins = ConsumerHeartbeat("m", 0, rebalance_timeout_ms=20_000, topics=["t"], owned={}, client_host=host)
    finished(group.heartbeat(joins, runtime.now()))
    runtime.carry_out("g")


async def test_what_a_group_has_written_is_not_deleted_with_its_predecessor() -> None:
    machines, topic = without_groups()
    join_alone(machines, "/1.1.1.1")
    topic.end()
    machines.runtime.remove("g")
    deleted = {key for key, value in topic.records[-1] if value is None}
    join_alone(machines, "/2.2.2.2")
    written = {key for key, value in topic.records[-1] if value is not None}
    assert written & deleted
    join_alone(machines, "/3.3.3.3")
    assert 0 < sum(value is not None for _, value in topic.records[-1]) < len(written)
    assert not written & {key for key, value in topic.records[-1] if value is None}
    topic.end(FAILED)
    while topic.writes:
        topic.end()
    assert not machines.runtime.owed
