"""A whole run: clients through some lives of a broker, and what must hold in the end."""

from typing import Final

import trio
import trio.testing
from trio._core import _run as _run_of_trio

from seglog_broker.api.broker import Broker
from seglog_broker.testing.forgetful import POWER_LOSS
from seglog_protocol.errors import UnknownTopicError
from tests.unit.simulation.transactions.clients import (
    Producer,
    Reader,
    back_up_now_and_then,
    committed_name,
    delete_now_and_then,
)
from tests.unit.simulation.transactions.ledger import Found, Place
from tests.unit.simulation.transactions.members import ClassicMember, ConsumerMember, group_offsets
from tests.unit.simulation.transactions.transacting import DELETED, KEPT, PARTITIONS, make_topics
from tests.unit.simulation.transactions.world import Life, World

IDS: Final = ["a", "b", "c"]
MEMBERS: Final = ["m", "n"]
STUCK_SECONDS: Final = 120.0
"""With nobody working every transaction has ended by then."""


def simulate(seed: int, lives: int = 4) -> World:
    """Run with this seed. AssertionError for a promise that was broken."""
    world = World(seed)
    _run_of_trio._r.seed(seed)
    trio.run(_run, world, lives, clock=trio.testing.MockClock(autojump_threshold=0))
    return world


async def _run(world: World, lives: int) -> None:
    async with world.served(Life()):
        await make_topics(world)
    make_member = world.dice.choice((ClassicMember, ConsumerMember))
    async with trio.open_nursery() as clients:
        for transactional_id in IDS:
            clients.start_soon(Producer(world, clients, transactional_id, world.dice.randrange(1 << 30)).run)
        for name in MEMBERS:
            clients.start_soon(make_member(world, name, world.dice.randrange(1 << 30)).run)
        clients.start_soon(Reader(IDS, world.dice.randrange(1 << 30)).run, world, clients)
        clients.start_soon(delete_now_and_then, world, clients)
        clients.start_soon(back_up_now_and_then, world, clients)
        for _ in range(lives):
            await world.live()
        clients.cancel_scope.cancel()
    async with world.served(Life(), closes=False) as broker:
        await _wait_until_all_has_ended(broker)
        await _judge(world)
        with trio.fail_after(STUCK_SECONDS):
            await _go_on(world, make_member)
        await _wait_until_all_has_ended(broker)
        await _judge(world)
    world.fs = world.fs.found_after(POWER_LOSS)
    async with world.served(Life()) as broker:  # what is over stays as it is
        await _wait_until_all_has_ended(broker)
        await _judge(world)
    for copy in world.copies:
        world.fs = copy
        async with world.served(Life()) as broker:
            await _wait_until_all_has_ended(broker)
            records = dict([await world.read(KEPT, number) for number in range(PARTITIONS[KEPT])])
            world.ledger.judge_copy(records, await _committed_names(world))
            world.ledger.judge_members(records, await group_offsets(world))


async def _go_on(world: World, make_member: type[ClassicMember | ConsumerMember]) -> None:
    """Each transactional id commits once more, those of members too."""
    async with trio.open_nursery() as nursery:
        for at, transactional_id in enumerate(IDS):
            nursery.start_soon(Producer(world, nursery, transactional_id, at).finish)
        for at, name in enumerate(MEMBERS):
            nursery.start_soon(make_member(world, name, at).finish)


async def _wait_until_all_has_ended(broker: Broker) -> None:
    """Timeouts come; then no partition is held back by a transaction."""
    with trio.move_on_after(STUCK_SECONDS) as waited:
        while held := _held_back(broker):  # noqa: ASYNC110 - of a broker that tells nobody
            await trio.sleep(1)
    assert not waited.cancelled_caught, f"stuck: {held}"


def _held_back(broker: Broker) -> list[str]:
    machines = broker.transactions._runtime.machines.values()
    held = [f"{each.key} is {each.facts.state.title}" for each in machines if not each.is_idle]
    for partition in broker.partitions.values():
        log = partition.log
        if log.last_stable_offset != log.log_end_offset:
            held.append(f"{partition.topic}-{partition.number}: {log.last_stable_offset} of {log.log_end_offset}")
    return held


async def _judge(world: World) -> None:
    records: dict[Place, list[Found]] = {}
    for topic in KEPT, DELETED:
        for number in range(PARTITIONS[topic]):
            try:
                place, found = await world.read(topic, number)
            except UnknownTopicError:
                continue
            records[place] = found
    world.ledger.judge(records, await _committed_names(world))
    world.ledger.judge_members(records, await group_offsets(world))


async def _committed_names(world: World) -> dict[str, str]:
    with trio.fail_after(STUCK_SECONDS):  # else an offset waits for ever for the end of a transaction
        return {name: await committed_name(world, name) for name in world.ledger.attempts}
