"""The state machine of one transactional id: who its producer is, what its transaction covers, and how that ends.

Pure, as all of them. Two effects follow from its decisions, in their order, when the records are durable: partitions
are told to expect the transaction (``Expectation``), and markers are written (``Ending``), after which the service
calls ``complete``. Either may come more than once.

A decision that could not be written is decided once more a second later, or with the next request: until a record says
so, nothing follows from it. Versions are Kafka's transaction versions: by version 2 (KIP-890) the epoch rises with the
end of every transaction, so that nothing sent before it can be taken for part of the next one. The answer to that end
names the next epoch, or the next producer id, before the markers are written. Whoever asks meanwhile is told to try
again, and is fenced only afterwards (KAFKA-18464). Source: Kafka's TransactionMetadata and TransactionCoordinator.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from seglog_broker.coordinators.state_machine import Now, Outbox, ProducerIdAndEpoch, Record, StateMachine
from seglog_broker.coordinators.transactions.facts import (
    NO_TIME,
    Partition,
    TransactionFacts,
    TransactionState,
    by_topic,
    facts_of,
    record_of,
    tombstone,
)
from seglog_protocol import errors
from seglog_protocol.kafka.messages import TransactionLogValue
from seglog_protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from seglog_protocol.steps import Steps, finished

EPOCH_MAX: Final = 32_767
"""Only markers have this epoch: so the coordinator can always fence the producer that has the one before."""

EPOCH_BUMPING_VERSION: Final = 2
"""The first transaction version by which each end of a transaction raises the epoch."""

RETRY_MS: Final = 1_000
"""After so long a decision that could not be written is written again."""

PARTITIONS_MAX: Final = 10_000
"""The most partitions in one transaction: as many as one request may name. Each addition writes them all again."""

ID_BYTES: Final = 1_500
"""Bytes that a transactional id takes, without its name and partitions."""
TOPIC_BYTES: Final = 500
"""Bytes of a topic in a transaction."""
PARTITION_BYTES: Final = 320
"""Bytes of a partition in it, and of what is expected there."""


class Expectation(NamedTuple):
    """Partitions that may take batches of a producer's transaction, of this transaction version, from now on."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    version: int
    partitions: Mapping[str, frozenset[int]]


class Ending(NamedTuple):
    """A transaction that is to get its markers; ``producer`` is what these say. ``number`` tells it from others.

    ``is_timeout`` is whether it is aborted because it lasted too long; after a restart that is not known any more.
    """

    transactional_id: str
    number: int
    producer: ProducerIdAndEpoch
    version: int
    is_commit: bool
    partitions: Mapping[str, frozenset[int]]
    is_timeout: bool = False


Effect = Expectation | Ending


class TransactionalId(StateMachine):
    """One transactional id."""

    def __init__(self, key: str, outbox: Outbox) -> None:
        super().__init__(key, outbox)
        self.facts = TransactionFacts()
        self.last_epoch = NO_PRODUCER_EPOCH
        """The epoch before the present one, if it is the same producer that has both: a retry names it.

        No record carries it, as in Kafka: after a restart such a producer is fenced.
        """
        self._deadline_ms: int | None = None  # of the open transaction
        self._retry_ms: int | None = None  # when to write again what could not be written
        self._size = 0
        self._endings = 0  # decided so far
        self._is_timeout = False  # why the last of them was decided
        self.had_committed = False
        """True if it was forgotten with its last transaction committed: its client may not know yet that it is."""

    # --- As every state machine ---------------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """When the open transaction times out, or what could not be written is written again."""
        if self._retry_ms is None or self._deadline_ms is None:
            return self._deadline_ms if self._retry_ms is None else self._retry_ms
        return min(self._retry_ms, self._deadline_ms)

    @property
    def size(self) -> int:
        """As ``StateMachine.size``."""
        return self._size

    @property
    def is_unused(self) -> bool:
        """As ``StateMachine.is_unused``."""
        return self.facts.epoch == NO_PRODUCER_EPOCH

    def replay(self, record: Record) -> Steps[None]:
        """As ``StateMachine.replay``."""
        if isinstance(record.value, TransactionLogValue):
            self.facts = facts_of(record.value)
            self._size = size_of(self.key, self.facts.partitions)
        yield from ()

    def restored(self, now: Now) -> None:
        """As ``StateMachine.restored``: what follows from its state follows once more."""
        facts = self.facts
        if facts.state is TransactionState.ONGOING:
            left_ms = min(facts.timeout_ms, max(0, facts.start_ms + facts.timeout_ms - now.wall_ms))
            self._deadline_ms = now.monotonic_ms + left_ms
        self._follow()

    def advance(self, now: Now) -> None:
        """Abort a transaction that has lasted too long; write again what could not be written."""
        if self._deadline_ms is not None and now.monotonic_ms >= self._deadline_ms:
            self.abort(now, is_timeout=True)
        elif self._retry_ms is not None and now.monotonic_ms >= self._retry_ms:
            self.write_again()

    def write_failed(self, now: Now) -> None:
        """Have the state written again, later: what cannot be written now would fail at once for ever."""
        self._retry_ms = now.monotonic_ms + RETRY_MS

    def write_again(self) -> None:
        """Write what could not be written, before a reply goes out that relies on it."""
        if self._retry_ms is not None:
            self._retry_ms = None
            self.outbox.records.append(tombstone(self.key) if self.is_unused else record_of(self.key, self.facts))
            self._follow()

    def delete(self) -> None:
        """As ``StateMachine.delete``."""
        self.outbox.records.append(tombstone(self.key))

    def _follow(self) -> None:
        """Let happen what follows from the state, once it is durable."""
        facts = self.facts
        if facts.state is TransactionState.ONGOING:
            self.outbox.effects.append(Expectation(self.key, facts.producer, facts.version, facts.partitions))
        elif facts.state.is_ending:
            is_commit = facts.state is TransactionState.PREPARE_COMMIT
            ending = Ending(
                self.key, self._endings, facts.producer, facts.version, is_commit, facts.partitions, self._is_timeout
            )
            self.outbox.effects.append(ending)

    def _decide(self, facts: TransactionFacts, last_epoch: int) -> None:
        facts = facts._replace(previous_producer_id=self.facts.producer_id)
        record = record_of(self.key, facts)
        self.outbox.records.append(record)
        finished(self.replay(record))
        self.last_epoch = last_epoch
        self._retry_ms = None  # this record has all

    # --- The producer -------------------------------------------------------------------------------------------------

    def needs_producer_id(self) -> bool:
        """Whether the next request may need a producer id that was never used: there is none, or no more epochs."""
        return self.facts.epoch == NO_PRODUCER_EPOCH or self.facts.epoch >= EPOCH_MAX - 1

    def init_producer(
        self, timeout_ms: int, expected: ProducerIdAndEpoch | None, new_id: int | None, now: Now
    ) -> ProducerIdAndEpoch | None:
        """The id and epoch of a producer that begins, or goes on as ``expected``; all before it are fenced.

        None: the open transaction is aborted first, ask again. ``new_id`` is given where ``needs_producer_id``.
        Raises ProducerFencedError, ConcurrentTransactionsError.
        """
        self.write_again()
        facts = self.facts
        if facts.state.is_ending:
            raise self.being_ended()
        is_retry = False
        if expected is not None and facts.epoch != NO_PRODUCER_EPOCH:
            is_retry = self._is_repeated(expected)
            if not is_retry and expected != facts.producer:
                raise self._fenced(expected.epoch)
        if is_retry:
            self._decide(
                facts._replace(
                    timeout_ms=timeout_ms, state=TransactionState.EMPTY, partitions={}, start_ms=NO_TIME,
                    updated_ms=now.wall_ms,
                ),
                self.last_epoch,
            )  # fmt: skip
            return self.facts.producer
        if facts.state is TransactionState.ONGOING:
            self.abort(now)
            return None
        if self.needs_producer_id():
            assert new_id is not None
            producer = ProducerIdAndEpoch(new_id, 0)
        else:
            producer = ProducerIdAndEpoch(facts.producer_id, facts.epoch + 1)
        self._decide(
            TransactionFacts(
                producer_id=producer.producer_id,
                epoch=producer.epoch,
                timeout_ms=timeout_ms,
                updated_ms=now.wall_ms,
                version=facts.version,
            ),
            NO_PRODUCER_EPOCH if expected is None else facts.epoch,
        )
        return producer

    def _is_repeated(self, expected: ProducerIdAndEpoch) -> bool:
        """Whether the producer asks again, because it never got its present epoch: the answer was lost."""
        facts = self.facts
        if expected.epoch != self.last_epoch or facts.state is TransactionState.ONGOING:
            return False
        if expected.producer_id == facts.producer_id:
            return facts.epoch < EPOCH_MAX
        return expected.producer_id == facts.previous_producer_id and expected.epoch >= EPOCH_MAX - 1

    # --- The transaction ----------------------------------------------------------------------------------------------

    def has(self, producer: ProducerIdAndEpoch, partitions: Iterable[Partition]) -> bool:
        """Whether the producer's open transaction has these partitions, for all that is known to be durable."""
        facts = self.facts
        if facts.state is not TransactionState.ONGOING or facts.producer != producer or self._retry_ms is not None:
            return False
        return all(number in facts.partitions.get(topic, ()) for topic, number in partitions)

    def add_partitions(
        self, producer: ProducerIdAndEpoch, partitions: Iterable[Partition], version: int, now: Now
    ) -> None:
        """Add partitions to the open transaction; the first ones begin it.

        Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError, and
        TransactionAbortableError for too many.
        """
        self.write_again()
        facts = self.facts
        if facts.state.is_ending:
            raise self.being_ended()
        self.check_producer(producer)
        is_open = facts.state is TransactionState.ONGOING
        known = facts.partitions if is_open else {}
        added = {
            topic: new for topic, numbers in by_topic(partitions).items() if (new := numbers - known.get(topic, set()))
        }
        if is_open and not added:
            return
        if sum(map(len, known.values())) + sum(map(len, added.values())) > PARTITIONS_MAX:
            raise errors.TransactionAbortableError(
                f"a transaction has at most {PARTITIONS_MAX:,} partitions, and this one would have more: abort it, and "
                "commit more often",
                transactional_id=self.key,
            )
        changed = {topic: known.get(topic, frozenset()) | numbers for topic, numbers in added.items()}
        self._decide(
            facts._replace(
                state=TransactionState.ONGOING,
                partitions={**known, **changed},
                start_ms=facts.start_ms if is_open else now.wall_ms,
                updated_ms=now.wall_ms,
                version=version,
            ),
            self.last_epoch,
        )
        if not is_open:
            self._deadline_ms = now.monotonic_ms + facts.timeout_ms
        self.outbox.effects.append(Expectation(self.key, producer, version, added))

    def end(
        self, producer: ProducerIdAndEpoch, *, is_commit: bool, version: int, new_id: int | None, now: Now
    ) -> ProducerIdAndEpoch:
        """Decide how the open transaction ends; by version 2 with the id and epoch to go on with.

        ``new_id`` is given where ``needs_producer_id``. Raises InvalidProducerIdMappingError, ProducerFencedError,
        ConcurrentTransactionsError, InvalidTransactionStateError.
        """
        self.write_again()
        facts, state = self.facts, self.facts.state
        is_bumping = version >= EPOCH_BUMPING_VERSION
        if state.is_ending and (is_bumping or producer in {facts.producer, self._next_producer}):
            raise self.being_ended()
        is_retry = is_bumping and self._has_ended(producer)
        if not is_retry:
            self.check_producer(producer)
        if state.is_complete and (is_retry or not is_bumping):
            if is_commit != (state is TransactionState.COMPLETE_COMMIT):
                raise self._contradiction(is_commit, is_retry)
            if facts.epoch >= EPOCH_MAX:
                raise self._fenced(producer.epoch)
            return facts.producer
        if state is not TransactionState.ONGOING and (is_commit or not is_bumping):
            what = "commit" if is_commit else "abort"
            raise errors.InvalidTransactionStateError(
                f"there is nothing to {what}: {self.key} has no open transaction", producer_id=producer.producer_id
            )
        epoch, last_epoch, next_id = facts.epoch, self.last_epoch, NO_PRODUCER_ID
        if is_bumping:
            epoch, last_epoch = facts.epoch + 1, facts.epoch
            if epoch == EPOCH_MAX:
                assert new_id is not None
                next_id = new_id
        self._prepare(
            is_commit=is_commit, epoch=epoch, last_epoch=last_epoch, version=version, now=now, next_id=next_id
        )
        return self.facts.producer if self.facts.next_producer_id == NO_PRODUCER_ID else self._next_producer

    @property
    def _next_producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.facts.next_producer_id, 0)

    def _has_ended(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether the producer has ended its transaction already, by version 2, and asks again."""
        facts = self.facts
        if facts.version < EPOCH_BUMPING_VERSION or not facts.state.is_complete:
            return False
        if producer.producer_id == facts.producer_id:
            return producer.epoch + 1 == facts.epoch
        return producer == (facts.previous_producer_id, EPOCH_MAX - 1) and facts.epoch == 0

    def abort(self, now: Now, *, is_timeout: bool = False) -> None:
        """Abort the open transaction without its producer, which is fenced."""
        facts = self.facts
        # By version 2 as by an end of the producer's own: the epoch rises once. Whoever asks for the outcome of an end
        # that was lost finds an abort either way.
        self._prepare(
            is_commit=False,
            epoch=min(facts.epoch + 1, EPOCH_MAX),
            last_epoch=facts.epoch,  # its producer may go on, if no other one has begun by then
            version=facts.version,
            now=now,
            is_timeout=is_timeout,
        )

    def _prepare(
        self, *, is_commit: bool, epoch: int, last_epoch: int, version: int, now: Now,
        next_id: int = NO_PRODUCER_ID, is_timeout: bool = False,
    ) -> None:  # fmt: skip
        facts = self.facts
        is_open = facts.state is TransactionState.ONGOING
        self._decide(
            facts._replace(
                epoch=epoch,
                next_producer_id=next_id,
                state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
                partitions=facts.partitions if is_open else {},
                start_ms=facts.start_ms if is_open else now.wall_ms,
                updated_ms=now.wall_ms,
                version=version,
            ),
            last_epoch,
        )
        self._deadline_ms = None
        self._endings += 1
        self._is_timeout = is_timeout
        self._follow()

    def awaits(self, ending: Ending) -> bool:
        """Whether the markers of a transaction are still to be written: an ending may come twice."""
        return self.facts.state.is_ending and ending.number == self._endings

    def complete(self, ending: Ending, now: Now) -> None:
        """All partitions of a transaction have their markers. Nothing happens where it does not await them."""
        facts = self.facts
        if not self.awaits(ending):
            return
        is_new = facts.next_producer_id != NO_PRODUCER_ID
        self._decide(
            facts._replace(
                producer_id=facts.next_producer_id if is_new else facts.producer_id,
                next_producer_id=NO_PRODUCER_ID,
                epoch=0 if is_new else facts.epoch,
                state=TransactionState.COMPLETE_COMMIT if ending.is_commit else TransactionState.COMPLETE_ABORT,
                partitions={},
                updated_ms=now.wall_ms,
            ),
            self.last_epoch,
        )

    def forget(self) -> None:
        """Begin anew, as if nobody had ever used the id: its next producer gets a producer id that was never used."""
        self.had_committed = self.facts.state is TransactionState.COMPLETE_COMMIT
        self.facts, self.last_epoch = TransactionFacts(), NO_PRODUCER_EPOCH
        self._size = size_of(self.key, {})
        self._retry_ms = None
        self.delete()

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or being ended."""
        return self.facts.state is not TransactionState.ONGOING and not self.facts.state.is_ending

    # --- Errors -------------------------------------------------------------------------------------------------------

    def check_producer(self, producer: ProducerIdAndEpoch) -> None:
        """Whether it is the present one. Raises InvalidProducerIdMappingError, ProducerFencedError."""
        facts = self.facts
        if producer.producer_id != facts.producer_id:
            raise errors.InvalidProducerIdMappingError(
                f"{self.key} has producer id {facts.producer_id}, not {producer.producer_id}: make a new producer",
                transactional_id=self.key,
            )
        if producer.epoch != facts.epoch or facts.epoch >= EPOCH_MAX:  # no producer is given that one
            raise self._fenced(producer.epoch)

    def _fenced(self, epoch: int) -> errors.ProducerFencedError:
        return errors.ProducerFencedError(
            f"the producer of {self.key} has epoch {epoch}, and {self.facts.epoch} is in force: a newer producer has "
            "taken the id over, or the transaction lasted longer than its timeout and was aborted; make a new producer",
            transactional_id=self.key,
        )

    def being_ended(self) -> errors.ConcurrentTransactionsError:
        """The error of a request that is to come again, when the last transaction has ended."""
        return errors.ConcurrentTransactionsError(
            f"the last transaction of {self.key[:100]} is being ended: try again", transactional_id=self.key
        )

    def _contradiction(
        self, is_commit: bool, is_retry: bool
    ) -> errors.InvalidTransactionStateError | errors.ProducerFencedError:
        """What was asked for is not what was decided. A commit may have come too late: after the timeout."""
        if is_commit and is_retry:
            return self._fenced(self.facts.epoch - 1)
        wanted, decided = ("commit", "aborted") if is_commit else ("abort", "committed")
        return errors.InvalidTransactionStateError(
            f"there is nothing to {wanted}: the last transaction of {self.key} was {decided}",
            producer_id=self.facts.producer_id,
        )


def size_of(transactional_id: str, partitions: Mapping[str, frozenset[int]]) -> int:
    """Bytes that a transactional id takes, about."""
    return (
        ID_BYTES
        + len(transactional_id)
        + sum(TOPIC_BYTES + PARTITION_BYTES * len(numbers) for numbers in partitions.values())
    )
