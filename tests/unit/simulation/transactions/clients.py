"""Clients of the simulation: producers with transactions and their zombies, readers, and who deletes topics."""

from contextlib import suppress
from random import Random
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committed, OffsetToCommit
from seglog_broker.coordinators.transactions.facts import Partition
from seglog_broker.server import snapshot_maker_of
from seglog_broker.storage.directory.snapshot import NoSnapshotError
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.errors import CoordinatorLoadingError, SeglogError, UnknownTopicError
from seglog_protocol.messages import DeleteTopicRequest
from tests.cuts import Copier
from tests.snapshots import copied
from tests.unit.simulation.transactions.ledger import Reading
from tests.unit.simulation.transactions.transacting import (
    DELETED,
    INPUT,
    INPUT_RECORDS,
    KEPT,
    PARTITIONS,
    AbandonedError,
    Open,
    Session,
    Transacting,
    append_of,
    make_topic,
    patiently,
)
from tests.unit.simulation.transactions.world import CrashedError, World

COPIES: Final = 3


def group_of(transactional_id: str) -> str:
    """The group for which a producer commits offsets."""
    return f"group of {transactional_id}"


async def committed_name(world: World, transactional_id: str) -> str:
    """What a producer that begins finds committed for its group, when no open transaction may change it."""

    async def look_up(broker: Broker) -> Committed:
        return broker.groups.committed(group_of(transactional_id), [(INPUT, 0)])[0]

    while True:
        try:
            found = await world.call(look_up)
        except (CrashedError, CoordinatorLoadingError):
            await trio.sleep(0.01)
            continue
        if not found.is_unstable:
            return found.metadata
        await trio.sleep(0.02)


# --- Producers --------------------------------------------------------------------------------------------------------


class Producer:
    """Uses one transactional id, with one session after the other; those before may go on as zombies."""

    def __init__(self, world: World, nursery: trio.Nursery, transactional_id: str, seed: int) -> None:
        self._world = world
        self._id = transactional_id
        self._dice = Random(seed)
        self._zombies = nursery
        self._own = Transacting(world, transactional_id, self._dice)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                await self._work()
            except AbandonedError:
                await self._pause(0.3)

    async def finish(self) -> None:
        """One more transaction, which is committed."""
        transaction = self._own.begin(await self._begin())
        await self._send(transaction, (KEPT, 0))
        await self._commit_offset(transaction)
        await self._own.end(transaction, commit=True)

    async def _pause(self, seconds: float) -> None:
        await trio.sleep(self._dice.random() * seconds)

    async def _work(self) -> None:
        session = await self._begin()
        for _ in range(self._dice.randrange(1, 8)):
            transaction = self._own.begin(session)
            await self._send(transaction, (KEPT, self._dice.randrange(PARTITIONS[KEPT])))
            for _ in range(self._dice.randrange(5)):
                await self._step(transaction)
            if self._dice.random() < 0.15:
                self._zombies.start_soon(self._go_on_as_zombie, transaction)
                return
            if self._dice.random() < 0.1:
                return  # and leaves it open
            await self._own.end(transaction, commit=self._dice.random() < 0.7)
            if session.version == 2 and self._dice.random() < 0.3:
                await self._own.abort_nothing(session)

    async def _begin(self) -> Session:
        attempts = len(self._world.ledger.attempts.get(self._id, ()))
        session = await self._own.begin_session()
        name = await committed_name(self._world, self._id)
        self._world.ledger.readings.append(Reading(self._id, attempts, name))
        return session

    async def _step(self, transaction: Open) -> None:
        match self._dice.choice(("send", "send", "send", "offset", "pause", "dawdle", "late")):
            case "send":
                await self._send(transaction, self._any_partition())
            case "offset":
                await self._commit_offset(transaction)
            case "pause":
                await self._pause(0.1)
            case "dawdle" if self._dice.random() < 0.2:
                await self._pause(3)
            case "late" if self._dice.random() < 0.3:
                partition = self._any_partition()
                await self._own.add(transaction, partition)
                self._zombies.start_soon(self._send_late, transaction, partition)
                raise AbandonedError

    def _any_partition(self) -> Partition:
        topic = self._dice.choice((KEPT, KEPT, KEPT, DELETED))
        return topic, self._dice.randrange(PARTITIONS[topic])

    def _texts(self, transaction: Open) -> list[str]:
        return [transaction.attempt.next_record() for _ in range(self._dice.randrange(1, 4))]

    async def _send(self, transaction: Open, partition: Partition) -> None:
        await self._own.send(transaction, partition, self._texts(transaction))

    async def _send_late(self, transaction: Open, partition: Partition) -> None:
        """A batch that comes when its producer has long begun anew."""
        batch = self._own.batch(transaction, partition, self._texts(transaction))
        await self._pause(1)
        try:
            await self._world.call(append_of(*partition, batch, "disk"))
        except (CrashedError, SeglogError):
            return

    async def _commit_offset(self, transaction: Open) -> None:
        attempt = transaction.attempt
        offset = OffsetToCommit(INPUT, 0, attempt.number % INPUT_RECORDS, metadata=attempt.name)
        await self._own.commit_offsets(transaction, group_of(self._id), offset)
        attempt.committed_offset = True

    async def _go_on_as_zombie(self, transaction: Open) -> None:
        try:
            await self._pause(0.5)
            await self._step(transaction)
            await self._send(transaction, (KEPT, 0))
            await self._own.end(transaction, commit=True)
        except AbandonedError:
            return


# --- Others -----------------------------------------------------------------------------------------------------------


class Reader:
    """Reads partitions at read_committed, and committed offsets, over and over."""

    def __init__(self, transactional_ids: list[str], seed: int) -> None:
        self._ids = transactional_ids
        self._dice = Random(seed)

    async def run(self, world: World, _: trio.Nursery) -> None:
        """Read until cancelled."""
        while True:
            await trio.sleep(self._dice.random() * 0.05)
            try:
                if self._dice.random() < 0.2:
                    name = await self._committed(world, self._dice.choice(self._ids))
                    if name:
                        world.ledger.see_offset(name)
                    continue
                topic = self._dice.choice((KEPT, KEPT, DELETED))
                place, found = await world.read(topic, self._dice.randrange(PARTITIONS[topic]))
            except (CrashedError, SeglogError):
                continue
            if place.incarnation == world.ledger.incarnations[topic]:
                for one in found:
                    world.ledger.see(place, one)

    @staticmethod
    async def _committed(world: World, transactional_id: str) -> str:
        async def look_up(broker: Broker) -> str:
            return broker.groups.committed(group_of(transactional_id), [(INPUT, 0)])[0].metadata

        return await world.call(look_up)


async def delete_now_and_then(world: World, _: trio.Nursery) -> None:
    """Delete a topic and make it again, until cancelled."""
    dice = Random(world.dice.random())
    while True:
        await trio.sleep(dice.random() * 10)
        world.ledger.incarnations[DELETED] += 1
        with suppress(UnknownTopicError):
            await patiently(world, lambda broker: broker.delete_topic(DeleteTopicRequest(DELETED)))
        world.ledger.incarnations[DELETED] += 1
        await make_topic(world, DELETED)


async def back_up_now_and_then(world: World, _: trio.Nursery) -> None:
    """Make snapshots and copies of them, or copies by cuts, until there are some."""
    dice = Random(world.dice.random())

    async def back_up(broker: Broker) -> ForgetfulFileSystem:
        maker = snapshot_maker_of(broker)
        writer = maker.writer()
        try:
            await maker.make(writer)
            return copied(world.fs, writer.path)
        finally:
            await maker.remove(writer)

    async def follow(broker: Broker) -> ForgetfulFileSystem | None:
        copier = Copier(broker)
        for _ in range(dice.randrange(1, 4)):
            await copier.cut()
            await trio.sleep(dice.random() / 10)
        return copier.copy()

    while len(world.copies) < COPIES:
        await trio.sleep(dice.random() * 2)
        with suppress(CrashedError, NoSnapshotError, OSError):  # the disk may be full
            copy = await world.call(dice.choice((back_up, follow, follow)))
            if copy is not None:
                world.copies.append(copy)
