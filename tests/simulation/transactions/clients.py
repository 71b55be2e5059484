"""Clients of the simulation: producers with transactions and their zombies, readers, and who deletes topics."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committed, Committer, OffsetToCommit
from seglog_broker.coordinators.records import ProducerIdAndEpoch
from seglog_broker.coordinators.transactions.facts import Partition
from seglog_broker.server import snapshot_maker_of
from seglog_broker.storage.directory.snapshot import NoSnapshotError
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    SeglogError,
    TopicExistsError,
    UnknownTopicError,
)
from seglog_protocol.messages import (
    Ack,
    AppendPartition,
    AppendRequest,
    AppendResult,
    CreateTopicRequest,
    DeleteTopicRequest,
)
from tests.appends import append_request
from tests.simulation.transactions.ledger import Attempt, Place, Reading
from tests.simulation.transactions.world import CrashedError, World
from tests.snapshots import copied

KEPT: Final = "kept"
DELETED: Final = "deleted"
"""A topic that is deleted now and then, and made again."""
INPUT: Final = "input"
"""A topic with records, for whose offsets groups commit."""
PARTITIONS: Final = {KEPT: 3, DELETED: 2, INPUT: 1}
INPUT_RECORDS: Final = 200

COPIES: Final = 2

TIMEOUTS_MS: Final = 400, 2_000, 30_000


class AbandonedError(Exception):
    """The client has lost track, or is not the producer any more: it begins anew."""


# --- Requests ---------------------------------------------------------------------------------------------------------


async def _patiently(world: World, request: Callable[[Broker], Awaitable[object]]) -> None:
    """Make a request until it is answered, also by later brokers. Raises other errors."""
    while True:
        try:
            await world.call(request)
        except CrashedError:
            continue
        except (ConcurrentTransactionsError, CoordinatorLoadingError, CoordinatorNotAvailableError):
            await trio.sleep(0.02)
        else:
            return


def _append(topic: str, partition: int, batch: bytes, ack: Ack) -> Callable[[Broker], Awaitable[AppendResult]]:
    async def append(broker: Broker) -> AppendResult:
        request = AppendRequest([AppendPartition(topic, partition, len(batch))], ack)
        return (await append_request(broker, request, memoryview(bytearray(batch))).wait()).partitions[0]

    return append


async def make_topics(world: World) -> None:
    """The topics, and the records whose offsets are committed."""
    for topic in PARTITIONS:
        await make_topic(world, topic)
    batch = encode_batch([(1_000, None, b"v", ()) for _ in range(INPUT_RECORDS)])
    await _patiently(world, _append(INPUT, 0, batch, "disk"))


async def make_topic(world: World, topic: str) -> None:
    request = CreateTopicRequest(topic, PARTITIONS[topic])
    try:
        await _patiently(world, lambda broker: broker.create_topic(request))
    except TopicExistsError:
        return


def group_of(transactional_id: str) -> str:
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


@dataclass
class Session:
    """A producer from its InitProducerId on: ``sequences`` are those of its epoch, by partition."""

    producer: ProducerIdAndEpoch
    version: int
    sequences: dict[Partition, int] = field(default_factory=dict)


@dataclass
class Open:
    """A transaction that is under way.

    ``life`` is that of the broker in which something was acknowledged at "os", None without such: what comes after it
    may have lost that, as nobody promised otherwise, and so the client does not ask to commit it any more.
    """

    attempt: Attempt
    session: Session
    added: set[Partition] = field(default_factory=set)
    life: int | None = None


class Producer:
    """Uses one transactional id, with one session after the other; those before may go on as zombies."""

    def __init__(self, transactional_id: str, seed: int) -> None:
        self._id = transactional_id
        self._dice = Random(seed)
        self._world: World
        self._zombies: trio.Nursery

    async def run(self, world: World, nursery: trio.Nursery) -> None:
        """Work until cancelled."""
        self._world, self._zombies = world, nursery
        while True:
            try:
                await self._work()
            except AbandonedError:
                await self._pause(0.3)

    async def finish(self, world: World, nursery: trio.Nursery) -> Attempt:
        """One more transaction, which is committed."""
        self._world, self._zombies = world, nursery
        session = await self._begin()
        transaction = Open(world.ledger.begin(self._id), session)
        await self._send(transaction, (KEPT, 0))
        await self._commit_offset(transaction)
        await self._end(transaction, commit=True)
        return transaction.attempt

    async def _pause(self, seconds: float) -> None:
        await trio.sleep(self._dice.random() * seconds)

    async def _work(self) -> None:
        session = await self._begin()
        for _ in range(self._dice.randrange(1, 8)):
            transaction = Open(self._world.ledger.begin(self._id), session)
            await self._send(transaction, (KEPT, self._dice.randrange(PARTITIONS[KEPT])))
            for _ in range(self._dice.randrange(5)):
                await self._step(transaction)
            if self._dice.random() < 0.15:
                self._zombies.start_soon(self._go_on_as_zombie, transaction)
                return
            if self._dice.random() < 0.1:
                return  # and leaves it open
            await self._end(transaction, commit=self._dice.random() < 0.7)

    async def _begin(self) -> Session:
        timeout_ms = self._dice.choice(TIMEOUTS_MS)
        made: list[ProducerIdAndEpoch] = []

        async def init(broker: Broker) -> None:
            made.append(await broker.transactions.init_producer(self._id, timeout_ms))

        attempts = len(self._world.ledger.attempts.get(self._id, ()))
        await _patiently(self._world, init)
        name = await committed_name(self._world, self._id)
        self._world.ledger.readings.append(Reading(self._id, attempts, name))
        return Session(made[-1], self._dice.choice((1, 2)))

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
                await self._add(transaction, partition)
                self._zombies.start_soon(self._send_late, transaction, partition)
                raise AbandonedError

    def _any_partition(self) -> Partition:
        topic = self._dice.choice((KEPT, KEPT, KEPT, DELETED))
        return topic, self._dice.randrange(PARTITIONS[topic])

    async def _add(self, transaction: Open, partition: Partition) -> None:
        if partition in transaction.added:
            return
        session = transaction.session

        async def add(broker: Broker) -> None:
            await broker.transactions.add_partitions(self._id, session.producer, [partition], version=session.version)

        await self._or_abandon(add)
        transaction.added.add(partition)

    async def _or_abandon(self, request: Callable[[Broker], Awaitable[object]]) -> None:
        try:
            await _patiently(self._world, request)
        except SeglogError as error:
            raise AbandonedError from error

    def _batch(self, transaction: Open, partition: Partition) -> tuple[list[str], bytes]:
        session = transaction.session
        texts = [transaction.attempt.next_record() for _ in range(self._dice.randrange(1, 4))]
        sequence = session.sequences.get(partition, 0)
        session.sequences[partition] = sequence + len(texts)
        producer_id, epoch = session.producer
        records = [(self._dice.randrange(1_000), None, text.encode(), ()) for text in texts]
        return texts, encode_batch(
            records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )

    async def _send(self, transaction: Open, partition: Partition) -> None:
        """Send a batch until it is acknowledged."""
        await self._add(transaction, partition)
        ledger = self._world.ledger
        topic, number = partition
        place = Place(topic, ledger.incarnations[topic], number)
        texts, batch = self._batch(transaction, partition)
        ack: Ack = "os" if self._dice.random() < 0.4 else "disk"
        while True:
            life = self._world.lives
            try:
                result = await self._world.call(_append(topic, number, batch, ack))
            except CrashedError:
                if self._dice.random() < 0.3:
                    raise AbandonedError from None
                continue
            if result.error is not None and result.error.retriable:
                await trio.sleep(0.02)
                continue
            break
        if isinstance(result.error, UnknownTopicError):
            return  # nothing of it was taken
        if result.error is not None:
            raise AbandonedError from result.error
        if ack == "os" and transaction.life is None:
            transaction.life = life
        if topic == DELETED and ledger.incarnations[topic] != place.incarnation:
            return
        transaction.attempt.acked.update(dict.fromkeys(texts, place))

    async def _send_late(self, transaction: Open, partition: Partition) -> None:
        """A batch that comes when its producer has long begun anew."""
        _, batch = self._batch(transaction, partition)
        await self._pause(1)
        try:
            await self._world.call(_append(*partition, batch, "disk"))
        except (CrashedError, SeglogError):
            return

    async def _commit_offset(self, transaction: Open) -> None:
        session, attempt = transaction.session, transaction.attempt
        group = group_of(self._id)

        async def add(broker: Broker) -> None:
            await broker.transactions.add_offsets(self._id, session.producer, group, version=session.version)

        async def commit(broker: Broker) -> None:
            offset = OffsetToCommit(INPUT, 0, attempt.number % INPUT_RECORDS, metadata=attempt.name)
            (error,) = await broker.groups.commit(group, Committer(), [offset], session.producer)
            if error is not None:
                raise error

        await self._or_abandon(add)
        await self._or_abandon(commit)
        attempt.committed_offset = True

    async def _end(self, transaction: Open, *, commit: bool) -> None:
        session, attempt = transaction.session, transaction.attempt

        async def end(broker: Broker) -> ProducerIdAndEpoch:
            if commit and transaction.life not in {None, self._world.lives}:
                raise AbandonedError
            return await broker.transactions.end(self._id, session.producer, is_commit=commit, version=session.version)

        is_known = True  # what became of it
        following: ProducerIdAndEpoch | None = None
        while following is None:
            attempt.is_asked |= commit
            try:
                following = await self._world.call(end)
            except CrashedError:
                is_known = False
                if self._dice.random() < 0.6:
                    raise AbandonedError from None
            except (ConcurrentTransactionsError, CoordinatorLoadingError):
                await trio.sleep(0.02)
            except CoordinatorNotAvailableError:
                is_known = False
                await trio.sleep(0.02)
            except SeglogError as error:
                if is_known:
                    attempt.outcome = False
                raise AbandonedError from error
        attempt.outcome = commit
        if following != session.producer:
            session.producer, session.sequences = following, {}

    async def _go_on_as_zombie(self, transaction: Open) -> None:
        try:
            await self._pause(0.5)
            await self._step(transaction)
            await self._send(transaction, (KEPT, 0))
            await self._end(transaction, commit=True)
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
            await _patiently(world, lambda broker: broker.delete_topic(DeleteTopicRequest(DELETED)))
        world.ledger.incarnations[DELETED] += 1
        await make_topic(world, DELETED)


async def back_up_now_and_then(world: World, _: trio.Nursery) -> None:
    """Make snapshots and copies of them, until there are some."""
    dice = Random(world.dice.random())

    async def back_up(broker: Broker) -> ForgetfulFileSystem:
        maker = snapshot_maker_of(broker)
        writer = maker.writer()
        try:
            await maker.make(writer)
            return copied(world.fs, writer.path)
        finally:
            await maker.remove(writer)

    while len(world.copies) < COPIES:
        await trio.sleep(dice.random() * 2)
        with suppress(CrashedError, NoSnapshotError):
            world.copies.append(await world.call(back_up))
