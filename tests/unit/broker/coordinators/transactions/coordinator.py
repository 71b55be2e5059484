"""A coordinator of one transactional id in virtual time, whose records are durable when a test says so."""

from typing import Final

from seglog_broker.coordinators.state_machine import Now, Outbox, ProducerIdAndEpoch, Record
from seglog_broker.coordinators.transactions.facts import TransactionState
from seglog_broker.coordinators.transactions.machine import Ending, Expectation, TransactionalId
from seglog_protocol.steps import finished

WALL_MS: Final = 1_700_000_000_000
"""The wall clock when the virtual time begins."""

TIMEOUT_MS: Final = 60_000
KEY: Final = "pay"


class Coordinator:
    """The state machine, the records that are durable, and what followed from them."""

    def __init__(self, first_id: int = 100) -> None:
        self.outbox = Outbox()
        self.records: list[Record] = []
        self.expected: list[Expectation] = []
        self.endings: list[Ending] = []
        self.ms = 0
        self._next_id = first_id
        self.machine = TransactionalId(KEY, self.outbox)

    @property
    def now(self) -> Now:
        return Now(self.ms, WALL_MS + self.ms)

    def is_in(self, state: TransactionState) -> bool:
        return self.machine.facts.state is state

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return self.machine.facts.producer

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def settle(self) -> None:
        """Make all durable that is decided."""
        decided = self.outbox.take()
        self.records += decided.records
        for effect in decided.effects:
            if isinstance(effect, Expectation):
                self.expected.append(effect)
            else:
                self.endings.append(effect)
        assert not decided.replies

    def fail(self) -> None:
        """What is decided could not be written."""
        self.outbox.take()
        self.machine.write_failed(self.now)

    def init(self, expected: ProducerIdAndEpoch | None = None, timeout_ms: int = TIMEOUT_MS) -> ProducerIdAndEpoch:
        new_id = self.new_id() if self.machine.needs_producer_id() else None
        producer = self.machine.init_producer(timeout_ms, expected, new_id, self.now)
        self.settle()
        assert producer is not None
        return producer

    def init_aborts(self) -> bool:
        """Whether an InitProducerId aborts what is open, and is to be repeated."""
        producer = self.machine.init_producer(TIMEOUT_MS, None, self.new_id(), self.now)
        self.settle()
        return producer is None

    def add(self, producer: ProducerIdAndEpoch, *partitions: tuple[str, int], version: int = 1) -> None:
        self.machine.add_partitions(producer, partitions or [("orders", 0)], version, self.now)
        self.settle()

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 1) -> ProducerIdAndEpoch:
        new_id = self.new_id() if self.machine.needs_producer_id() else None
        ended = self.machine.end(producer, is_commit=commit, version=version, new_id=new_id, now=self.now)
        self.settle()
        return ended

    def complete(self) -> None:
        """The markers of the last transaction are durable."""
        self.machine.complete(self.endings[-1], self.now)
        self.settle()

    def pass_ms(self, ms: int) -> None:
        """Let time pass, with a call at each deadline."""
        end = self.ms + ms
        while (deadline := self.machine.deadline_ms) is not None and deadline <= end:
            self.ms = max(self.ms, deadline)
            self.machine.advance(self.now)
            self.settle()
        self.ms = end

    def restart(self) -> None:
        """Go on with what is durable."""
        machine = TransactionalId(KEY, self.outbox)
        self.outbox.take()
        for record in self.records[-1:]:
            finished(machine.replay(record))
        self.machine = machine
        machine.restored(self.now)
        self.settle()
