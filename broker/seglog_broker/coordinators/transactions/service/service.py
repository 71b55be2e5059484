"""The transaction coordinator: the requests that listeners serve about transactions, and the tasks behind them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

import trio

from seglog_broker.coordinators.client_patterns import ClientPattern
from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.groups.service.service import GroupService
from seglog_broker.coordinators.loader import StateLoader
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.topic import StateTopic, TopicSettings
from seglog_broker.coordinators.topic_writer import TopicWriter
from seglog_broker.coordinators.transactions.facts import (
    Partition,
    TransactionFacts,
    TransactionReplay,
    TransactionState,
)
from seglog_broker.coordinators.transactions.machine import (
    PARTITION_BYTES,
    TOPIC_BYTES,
    Effect,
    Ending,
    Expectation,
    TransactionalId,
    size_of,
)
from seglog_broker.coordinators.transactions.service.fencing import Fencing
from seglog_broker.coordinators.transactions.service.idle_ids import IdExpiry, TransactionMemory
from seglog_broker.coordinators.transactions.service.markers import MarkerWriter
from seglog_broker.coordinators.transactions.service.open_transactions import Expectations, Hanging, OpenTransactions
from seglog_broker.engine.append import AppendService
from seglog_broker.engine.topics import TopicService
from seglog_broker.logger import get_logger
from seglog_broker.partitions.idle_writers import IdleWriters
from seglog_broker.partitions.scheduler import Common
from seglog_broker.runtime import budget
from seglog_broker.runtime.begun import by_task
from seglog_broker.runtime.live_config import LiveConfig
from seglog_protocol import errors
from seglog_protocol.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, is_internal
from seglog_protocol.messages import InitProducerReply

ID_BYTES_MAX: Final = 32_767
"""The limit of a transactional id: that of a string in Kafka's records."""

ENDED_SECONDS: Final = 0.1
"""How long a request waits for the markers of the last transaction, before its client is told to try again."""

LISTED_COST: Final = 4
"""Microseconds to look at a transactional id for a list."""

log = get_logger()


def transactions_topic_settings(live: LiveConfig) -> TopicSettings:
    """``__transaction_state`` as it is created."""
    config = live.current
    return TopicSettings(
        TRANSACTIONS_TOPIC,
        "transactional id",
        config.transaction_state_log_num_partitions,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        },
    )


class TransactionDescription(NamedTuple):
    """A transactional id as it is described; ``held_up`` says why markers could not be written at the last try."""

    transactional_id: str
    facts: TransactionFacts
    held_up: str | None = None


class TransactionFilter(NamedTuple):
    """Which transactional ids are listed; an empty collection, or None, is for all."""

    states: Collection[TransactionState] = ()
    producer_ids: Collection[int] = ()
    duration_ms_min: int | None = None

    def takes(self, facts: TransactionFacts, now_ms: int) -> bool:
        """Whether one is listed."""
        if self.states and facts.state not in self.states:
            return False
        if self.producer_ids and facts.producer_id not in self.producer_ids:
            return False
        return self.duration_ms_min is None or now_ms - facts.start_ms > self.duration_ms_min


class TransactionService:
    """All transactions of a broker.

    Every method may raise InvalidRequestError for an id that cannot be one, CoordinatorLoadingError while the state of
    the id is loaded, and CoordinatorNotAvailableError where it cannot be written. What one decides is durable when it
    returns. ``version`` is the transaction version that the client speaks: by version 2 partitions are added by the
    batches themselves, and the end of a transaction gives the epoch for the next one.
    """

    def __init__(
        self,
        common: Common,
        appends: AppendService,
        topics: TopicService,
        groups: GroupService,
        new_producer_id: Callable[[], Awaitable[InitProducerReply]],
        idle_writers: IdleWriters,
    ) -> None:
        self._groups = groups
        self._new_producer_id = new_producer_id
        self._table = table = common.table
        self._config = config = common.config
        self._clock, self._scheduler = common.clock, common.scheduler
        settings = partial(transactions_topic_settings, config)
        self._topic = StateTopic(common.config, common.clock, common.table, settings, appends.append)
        self._writer = TopicWriter(self._topic, common.scheduler, topics.create)
        self.memory = TransactionMemory(lambda: config.current.seglog_transactions_memory_bytes)
        self._runtime: CoordinatorRuntime[TransactionalId] = CoordinatorRuntime(
            self._topic, common.clock, common.scheduler, carry_out=self._follow, note_size=self.memory.note
        )
        self.expiry = IdExpiry(*common, self._runtime, self.memory)
        self._fencing = Fencing(*common, self._runtime)
        self._loader = StateLoader(*common, self._topic, TransactionReplay, self._keep)
        self._expectations = Expectations(table)
        self.open = OpenTransactions(table)
        self.markers = MarkerWriter(*common, idle_writers, groups)
        self._commits_held: trio.Event | None = None
        """Set when commits are decided again; None if they are."""
        self._ended: dict[str, trio.Event] = {}  # by transactional id: set when the transaction that ends has ended

    async def run(self) -> None:
        """Load transactions, then write, end and forget them, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._writer.run)
            nursery.start_soon(self._runtime.run_timers)
            nursery.start_soon(self._end_transactions)
            seconds = await self._loader.run()
            if seconds is not None:
                log.info(
                    "transactions_loaded",
                    transactional_ids=len(self._runtime.machines),
                    seconds=seconds,
                )
            nursery.start_soon(self.expiry.run)
            if self._loader.is_complete:
                await self._fencing.finish(self.ended)

    async def _keep(self, replay: TransactionReplay) -> None:
        """Take over the transactional ids of a partition that was read: what is decided is carried out."""
        for transactional_id, record in replay.records.items():
            machine = self._machine(transactional_id)
            await self._runtime.restore(machine, [record])
            self._fencing.begin(machine)
            self._runtime.carry_out(transactional_id)
            await self._scheduler.turn()

    def _machine(self, transactional_id: str) -> TransactionalId:
        return TransactionalId(transactional_id, self._runtime.outbox)

    # --- What follows from decisions, when they are durable -----------------------------------------------------------

    def _follow(self, effect: Effect) -> None:
        transactional_id, producer_id = effect.transactional_id, effect.producer.producer_id
        if isinstance(effect, Expectation):
            self.open.note_open(transactional_id, producer_id)
            self._expectations.expect(effect)
        elif (machine := self._runtime.machines.get(transactional_id)) is not None and machine.awaits(effect):
            self.open.note_open(transactional_id, producer_id)
            self._expectations.forget(producer_id, effect.partitions)
            partition = self._table.find_readable(self._topic.name, self._topic.partition_of(transactional_id))
            # The epoch of the coordinator is, as in Kafka, the leader epoch of the partition that has the id.
            self.markers.add(effect, 0 if partition is None else partition.log.leader_epoch)

    async def _end_transactions(self) -> None:
        """Write the markers of ends that are decided, until cancelled; the rest is written after the next start."""
        while True:
            await self.markers.next_due()
            async with self.markers.rounds:
                for ending in await self.markers.round():
                    self._complete(ending)

    def _complete(self, ending: Ending) -> None:
        self.open.note_ended(ending)
        machine = self._runtime.machines.get(ending.transactional_id)
        if machine is not None:
            machine.complete(ending, self._runtime.now())
            self._fencing.go_on(machine)
            self._runtime.carry_out(ending.transactional_id, is_urgent=False)  # lost, the markers are written again
        ended = self._ended.pop(ending.transactional_id, None)
        if ended is not None:
            ended.set()

    def write_decided(self, *, at_once: bool) -> None:
        """As ``StateTopic.write_wanted``; ``at_once`` also the markers of a transaction that ends."""
        self._topic.write_wanted(at_once=at_once)
        if at_once:
            for ending in self.markers.round_at_once():
                self._complete(ending)

    # --- Requests of producers ----------------------------------------------------------------------------------------

    def check(self, transactional_id: str) -> None:
        """Raise the error of any request about ``transactional_id`` at the moment."""
        if not transactional_id:
            raise errors.InvalidRequestError(
                "the transactional id is empty: give the producer one", field="transactional_id"
            )
        if len(transactional_id) * 3 > ID_BYTES_MAX and len(transactional_id.encode()) > ID_BYTES_MAX:
            raise errors.InvalidRequestError(
                f"the transactional id is longer than {ID_BYTES_MAX:,} bytes: give the producer a shorter one",
                field="transactional_id",
            )
        if self._loader.is_unloaded(transactional_id):
            raise errors.CoordinatorLoadingError(
                "the broker has just started and still reads which transactions there are: ask again about "
                f"{transactional_id[:100]}"
            )
        if transactional_id in self._fencing.ids:
            raise errors.CoordinatorLoadingError(
                f"the last transaction of {transactional_id[:100]} is being ended after a restore: ask again"
            )
        failure = self._loader.failure(transactional_id)
        if failure is not None:
            raise errors.CoordinatorNotAvailableError(
                f"what the transactions of {transactional_id[:100]} were cannot be read: {failure}"
            )

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> ProducerIdAndEpoch:
        """The id and epoch of a producer that begins, or goes on as ``expected``; all before it are fenced.

        Raises InvalidTransactionTimeoutError, ProducerFencedError, and ConcurrentTransactionsError, after which it may
        be asked again: the transaction that was open is being aborted.
        """
        self.check(transactional_id)
        limit = self._config.current.transaction_max_timeout_ms
        if not 0 < timeout_ms <= limit:
            raise errors.InvalidTransactionTimeoutError(
                f"a transaction may take 1 to {limit:,} ms (transaction.max.timeout.ms), and the producer asks for "
                f"{timeout_ms:,}: set a transaction timeout within that",
                transactional_id=transactional_id,
                limit=limit,
            )
        machine = await self._when_ended(transactional_id)
        new_id = await self._id_if_needed(machine)
        machine = self._runtime.machines.get(transactional_id)
        if machine is None:
            self.memory.check(transactional_id, size_of(transactional_id, {}))
            machine = self._runtime.machines[transactional_id] = self._machine(transactional_id)
        if machine.needs_producer_id() and new_id is None:
            raise machine.being_ended()  # it has changed meanwhile
        init = partial(machine.init_producer, timeout_ms, expected, new_id, self._runtime.now())
        producer = await self._runtime.decided(transactional_id, init)
        if producer is None:
            raise machine.being_ended()
        return producer

    async def _id_if_needed(self, machine: TransactionalId | None) -> int | None:
        """A producer id for the next request, where it may need one."""
        if machine is None or machine.needs_producer_id():
            await by_task()
            return (await self._new_producer_id()).producer_id
        return None

    async def _when_ended(self, transactional_id: str) -> TransactionalId | None:
        """What there is of an id, None if it is not known; for a moment this waits for a transaction to be ended."""
        machine = self._runtime.machines.get(transactional_id)
        if machine is not None and machine.facts.state.is_ending:
            await by_task()
            with trio.move_on_after(ENDED_SECONDS):
                await self._ended.setdefault(transactional_id, trio.Event()).wait()
            machine = self._runtime.machines.get(transactional_id)
        return machine

    async def ended(self, transactional_id: str) -> None:
        """Wait until the markers of the last transaction are written, if it is being ended."""
        while True:
            machine = self._runtime.machines.get(transactional_id)
            if machine is None or not machine.facts.state.is_ending:
                return
            await self._ended.setdefault(transactional_id, trio.Event()).wait()

    def has_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[Partition]
    ) -> bool:
        """Whether the open transaction durably has all these partitions, so that they need not be added."""
        machine = self._runtime.machines.get(transactional_id)
        return machine is not None and machine.has(producer, partitions) and self._runtime.is_durable(transactional_id)

    def check_producer(self, transactional_id: str, producer: ProducerIdAndEpoch) -> None:
        """Whether it is the present producer of an id. Raises InvalidProducerIdMappingError, ProducerFencedError."""
        self.check(transactional_id)
        _known(transactional_id, self._runtime.machines.get(transactional_id)).check_producer(producer)

    async def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Sequence[Partition], *, version: int
    ) -> None:
        """Add partitions to the open transaction; the first ones begin it. They take its batches afterwards.

        Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError, InvalidTopicError for a
        topic of the broker's own, and TransactionAbortableError for too many partitions.
        """
        internal = next((topic for topic, _ in partitions if is_internal(topic)), None)
        if internal is not None:
            raise errors.InvalidTopicError(
                f"topic {internal} is the broker's own: it alone writes to it", topic=internal
            )
        await self._add_partitions(transactional_id, producer, partitions, version=version)

    async def _add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Sequence[Partition], *, version: int
    ) -> None:
        self.check(transactional_id)
        machine = _known(transactional_id, await self._when_ended(transactional_id))
        topics = len({topic for topic, _ in partitions})
        self.memory.check(transactional_id, TOPIC_BYTES * topics + PARTITION_BYTES * len(partitions))
        add = partial(machine.add_partitions, producer, partitions, version, self._runtime.now())
        await self._runtime.decided(transactional_id, add)

    async def add_offsets(
        self, transactional_id: str, producer: ProducerIdAndEpoch, group: str, *, version: int
    ) -> None:
        """Add the partition of ``__consumer_offsets`` for a group. Raises as ``add_partitions``, or a GroupError."""
        self.check(transactional_id)
        number = await self._groups.prepare_partition(group)
        await self._add_partitions(transactional_id, producer, [(OFFSETS_TOPIC, number)], version=version)

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, is_commit: bool, version: int
    ) -> ProducerIdAndEpoch:
        """Decide how the open transaction ends; by version 2 with the id and epoch to go on with.

        1. All that a commit covers is made durable, whatever the ack of its batches was.
        2. ``TransactionalId.end`` decides: a record, and an ``Ending`` as its effect. The outcome stands when the
           record is durable, which is when this returns.
        3. ``_follow`` gives the Ending to the ``MarkerWriter``. Readers at "read_committed" see the outcome in each
           partition that has its marker.
        4. When all markers are durable, ``_complete`` decides that the transaction is over.

        Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError, also for a commit while
        a snapshot is made, and InvalidTransactionStateError.
        """
        self.check(transactional_id)
        machine = _known(transactional_id, await self._when_ended(transactional_id), is_commit=is_commit)
        if is_commit and self._commits_held is not None:
            await by_task()
            with trio.move_on_after(ENDED_SECONDS):
                await self._commits_held.wait()
        facts = machine.facts
        if is_commit and facts.state is TransactionState.ONGOING and facts.producer == producer:
            await self.markers.make_durable(
                (topic, number) for topic, numbers in facts.partitions.items() for number in numbers
            )
        new_id = await self._id_if_needed(machine)
        machine = _known(transactional_id, self._runtime.machines.get(transactional_id))
        if is_commit and self._commits_held is not None:
            raise errors.ConcurrentTransactionsError(
                f"a snapshot is being made, and {transactional_id[:100]} commits after it: try again",
                transactional_id=transactional_id,
            )
        if machine.needs_producer_id() and new_id is None:
            raise machine.being_ended()  # it has changed meanwhile
        now = self._runtime.now()
        end = partial(machine.end, producer, is_commit=is_commit, version=version, new_id=new_id, now=now)
        return await self._runtime.decided(transactional_id, end)

    # --- What operators look at ---------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Transactional ids that are known."""
        return len(self._runtime.machines)

    def oldest_seconds(self) -> float:
        """The age of the oldest transaction that is open or being ended; 0 without one."""
        machines = map(self._runtime.machines.get, self.open.ids)
        began = [machine.facts.start_ms for machine in machines if machine is not None]
        return max(0, self._clock.now_ms() - min(began)) / 1000 if began else 0.0

    def hanging(self) -> Iterator[Hanging | None]:
        """As ``OpenTransactions.hanging``; nothing while it is not known which transactional ids there are."""
        if self._loader.is_complete:
            yield from self.open.hanging()

    @asynccontextmanager
    async def commits_held(self) -> AsyncIterator[None]:
        """Decide no commit and write no marker meanwhile; all else goes on. One at a time.

        What is copied of partitions in here, one after the other, and of ``__transaction_state`` behind them, has each
        transaction as a whole, or open: a commit that was decided before is completed where the copy is served, and
        any other one is aborted.
        """
        async with self.markers.rounds:
            self._commits_held = trio.Event()
            try:
                yield
            finally:
                self._commits_held.set()
                self._commits_held = None

    # --- Requests of operators ----------------------------------------------------------------------------------------

    async def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of a producer, which is fenced.

        Raises UnknownTransactionalIdError, and InvalidTransactionStateError where none is open.
        """
        self.check(transactional_id)
        machine = self._runtime.machines.get(transactional_id)
        if machine is None:
            raise _unknown(transactional_id)
        if machine.facts.state is not TransactionState.ONGOING:
            raise errors.InvalidTransactionStateError(
                f"{transactional_id} has no open transaction: its state is {machine.facts.state.title}",
                producer_id=machine.facts.producer_id,
            )
        machine.abort(self._runtime.now())
        await self._runtime.written(transactional_id)

    async def abort_hanging(self, topic: str, partition: int, first_offset: int) -> None:
        """Abort the open transaction of a partition that begins at an offset, and that no transactional id will end.

        Raises InvalidTransactionStateError for one that is none of those, the errors of the partition, and
        CoordinatorNotAvailableError where it cannot be known which transactional ids there are.
        """
        failure = self._loader.any_failure
        if failure is not None:
            raise errors.CoordinatorNotAvailableError(f"which transactions hang is not known, because {failure}")
        if not self._loader.is_complete:
            raise errors.CoordinatorLoadingError("it is not known yet which transactions there are: ask again")
        found = self._table.readable(topic, partition).log.producers.open_at(first_offset)
        if found is None:
            raise errors.InvalidTransactionStateError(
                f"no open transaction begins at offset {first_offset} of {topic}-{partition}"
            )
        transactional_id = self.open.id_of(found.producer_id)
        if transactional_id is not None:
            raise errors.InvalidTransactionStateError(
                f"the transaction does not hang: it is that of {transactional_id[:100]}, and is to be aborted by its "
                "id",
                producer_id=found.producer_id,
            )
        failed = await self.markers.write(found.abort, [(topic, partition)])
        for error in failed.values():
            raise error
        log.warning(
            "hanging_transaction_aborted",
            topic=topic,
            partition=partition,
            first_offset=first_offset,
            producer_id=found.producer_id,
        )

    @property
    def missing(self) -> str | None:
        """Of which transactional ids it cannot be known what they do, and why; None where all are known."""
        failure = self._loader.any_failure
        if failure is None:
            return None
        names = ", ".join(f"{TRANSACTIONS_TOPIC}-{number}" for number in sorted(self._loader.failed))
        return f"transactional ids of {names} are missing, because {failure}"

    def describe(self, transactional_id: str) -> TransactionDescription:
        """What is known of an id. Raises UnknownTransactionalIdError."""
        self.check(transactional_id)
        machine = self._runtime.machines.get(transactional_id)
        if machine is None or machine.is_unused:
            raise _unknown(transactional_id)
        return self._described(machine)

    async def list_all(
        self, wanted: TransactionFilter, pattern: ClientPattern | None = None
    ) -> list[TransactionDescription]:
        """Those wanted whose id matches, by transactional id, in turns. Raises PatternError if matching takes long."""
        if self._loader.is_loading:
            raise errors.CoordinatorLoadingError(
                "the broker has just started and still reads which transactions there are: ask again"
            )
        now_ms = self._clock.now_ms()
        turns = budget.Turns(self._scheduler.turn)
        machines = self._runtime.machines
        names: list[str] = []
        for name in list(machines) if pattern is None else pattern.matching(list(machines)):
            if name is None:
                await self._scheduler.turn()
            else:
                names.append(name)
        found: list[TransactionDescription] = []
        for name in names:
            await turns.spend(LISTED_COST)
            machine = machines.get(name)
            if machine is not None and not machine.is_unused and wanted.takes(machine.facts, now_ms):
                found.append(self._described(machine))
        return sorted(found, key=lambda each: each.transactional_id)

    def _described(self, machine: TransactionalId) -> TransactionDescription:
        held_up = self.markers.held_up(machine.key)
        return TransactionDescription(machine.key, machine.facts, None if held_up is None else held_up.message)


def _known(transactional_id: str, machine: TransactionalId | None, *, is_commit: bool = False) -> TransactionalId:
    if machine is not None and not machine.is_unused:
        return machine
    if machine is not None and machine.had_committed and is_commit:
        raise errors.ProducerFencedError(  # by which no client takes the transaction for aborted, to do it again
            f"the broker was restored from a backup, in which the last transaction of {transactional_id[:100]} is "
            "committed, and cannot know whether it is this one: look at what was written, and make a new producer",
            transactional_id=transactional_id,
        )
    raise errors.InvalidProducerIdMappingError(
        f"there is no producer of {transactional_id[:100]}, or it was forgotten, because it was idle for long or the "
        "broker was restored from a backup: make a new producer",
        transactional_id=transactional_id,
    )


def _unknown(transactional_id: str) -> errors.UnknownTransactionalIdError:
    return errors.UnknownTransactionalIdError(
        f"there is no producer of {transactional_id[:100]}, or it has been idle for so long that it was forgotten",
        transactional_id=transactional_id,
    )
