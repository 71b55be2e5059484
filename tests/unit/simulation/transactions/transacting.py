"""Requests that are made until they are answered, and a producer with a transactional id: a ledger has the answers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.transactions.facts import Partition
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    DiskFullError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    SeglogError,
    TopicExistsError,
    UnknownTopicError,
)
from seglog_protocol.messages import Ack, AppendResult, CreateTopicRequest
from tests.appends import append_batch
from tests.unit.simulation.transactions.ledger import Attempt, Place
from tests.unit.simulation.transactions.world import CrashedError, World

LATER: Final = (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    DiskFullError,
)
"""Errors of requests that are made again a little later."""

KEPT: Final = "kept"
DELETED: Final = "deleted"
"""A topic that is deleted now and then, and made again."""
INPUT: Final = "input"
"""A topic with records, for whose offsets groups commit."""
SHARED: Final = "shared"
"""A topic whose partitions the members of a group share."""
PARTITIONS: Final = {KEPT: 3, DELETED: 2, INPUT: 1, SHARED: 3}
INPUT_RECORDS: Final = 200
SHARED_RECORDS: Final = 400
RECORDS_A_BATCH: Final = 100


async def patiently(world: World, request: Callable[[Broker], Awaitable[object]]) -> None:
    """Make a request until it is answered, also by later brokers. Raises other errors."""
    while True:
        try:
            await world.call(request)
        except CrashedError:
            continue
        except LATER:
            await trio.sleep(0.02)
        else:
            return


def append_of(topic: str, partition: int, batch: bytes, ack: Ack) -> Callable[[Broker], Awaitable[AppendResult]]:
    """The request for one append."""

    async def append(broker: Broker) -> AppendResult:
        return (await append_batch(broker, batch, topic, partition, ack=ack).wait()).partitions[0]

    return append


async def make_topics(world: World) -> None:
    """Of a broker that does not crash: the topics, and the records whose offsets are committed."""
    for topic in PARTITIONS:
        await make_topic(world, topic)
    batch = encode_batch([(1_000, None, b"v", ()) for _ in range(RECORDS_A_BATCH)])
    for topic, count in (INPUT, INPUT_RECORDS), (SHARED, SHARED_RECORDS):
        for partition in range(PARTITIONS[topic]):
            for _ in range(count // RECORDS_A_BATCH):
                result = await world.call(append_of(topic, partition, batch, "disk"))
                assert result.error is None


async def make_topic(world: World, topic: str) -> None:
    request = CreateTopicRequest(topic, PARTITIONS[topic])
    try:
        await patiently(world, lambda broker: broker.create_topic(request))
    except TopicExistsError:
        return


TIMEOUTS_MS: Final = 400, 2_000, 30_000

NOBODY: Final = Committer()
"""Who commits offsets of a group without members."""


class AbandonedError(Exception):
    """The client has lost track, or is not the producer any more: it begins anew."""


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


class Transacting:
    """Transactions of one transactional id. Each method raises AbandonedError where the client gives up."""

    def __init__(self, world: World, transactional_id: str, dice: Random) -> None:
        self._world: Final = world
        self._id: Final = transactional_id
        self._dice: Final = dice

    async def begin_session(self) -> Session:
        """Be the producer."""
        timeout_ms = self._dice.choice(TIMEOUTS_MS)
        made: list[ProducerIdAndEpoch] = []

        async def init(broker: Broker) -> None:
            made.append(await broker.transactions.init_producer(self._id, timeout_ms))

        await patiently(self._world, init)
        return Session(made[-1], self._dice.choice((1, 2)))

    def begin(self, session: Session) -> Open:
        """The next transaction."""
        return Open(self._world.ledger.begin(self._id), session)

    async def add(self, transaction: Open, partition: Partition) -> None:
        """Have a partition be part of the transaction."""
        if partition in transaction.added:
            return
        session = transaction.session

        async def add(broker: Broker) -> None:
            await broker.transactions.add_partitions(self._id, session.producer, [partition], version=session.version)

        await self._or_abandon(add)
        transaction.added.add(partition)

    def batch(self, transaction: Open, partition: Partition, texts: list[str]) -> bytes:
        """The next batch for a partition: a record for each text."""
        session = transaction.session
        sequence = session.sequences.get(partition, 0)
        session.sequences[partition] = sequence + len(texts)
        producer_id, epoch = session.producer
        records = [(self._dice.randrange(1_000), None, text.encode(), ()) for text in texts]
        return encode_batch(
            records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )

    async def send(self, transaction: Open, partition: Partition, texts: list[str]) -> None:
        """Send a batch until it is acknowledged."""
        await self.add(transaction, partition)
        ledger = self._world.ledger
        topic, number = partition
        place = Place(topic, ledger.incarnations[topic], number)
        batch = self.batch(transaction, partition, texts)
        ack: Ack = "os" if self._dice.random() < 0.4 else "disk"
        while True:
            life = self._world.lives
            try:
                result = await self._world.call(append_of(topic, number, batch, ack))
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

    async def commit_offsets(
        self, transaction: Open, group: str, offset: OffsetToCommit, committer: Committer = NOBODY
    ) -> None:
        """Commit an offset of a group in the transaction."""
        session = transaction.session

        async def add(broker: Broker) -> None:
            await broker.transactions.add_offsets(self._id, session.producer, group, version=session.version)

        async def commit(broker: Broker) -> None:
            (error,) = await broker.groups.commit(group, committer, [offset], session.producer)
            if error is not None:
                raise error

        await self._or_abandon(add)
        await self._or_abandon(commit)

    async def _or_abandon(self, request: Callable[[Broker], Awaitable[object]]) -> None:
        try:
            await patiently(self._world, request)
        except SeglogError as error:
            raise AbandonedError from error

    async def abort_nothing(self, session: Session) -> None:
        """Abort before anything was sent, at once after another end. As nobody else has begun, nobody is fenced."""
        try:
            await self.end(self.begin(session), commit=False)
        except AbandonedError as error:
            is_fenced = isinstance(error.__cause__, ProducerFencedError | InvalidProducerIdMappingError)
            if is_fenced:
                raise AssertionError(f"{session.producer} is fenced by its own end") from error

    async def end(self, transaction: Open, *, commit: bool) -> None:
        """Commit or abort."""
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
