"""A coordinator of registers, each a number with a name: as small as a state machine can be, and no group.

Its records are those of transactional ids, since the topic that Kafka has for these is free: the number is the timeout.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.decisions import Waiting
from seglog_broker.coordinators.groups.service.cleanup import Sweep
from seglog_broker.coordinators.loader import StateLoader
from seglog_broker.coordinators.state_machine import Answer, Now, Record, RecordKind, Replay, StateMachine
from seglog_broker.coordinators.topic import StateTopic, TopicSettings
from seglog_broker.coordinators.topic_writer import TopicWriter
from seglog_broker.runtime.offload import Offload
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.internal_topics import TRANSACTIONS_TOPIC
from seglog_protocol.kafka.messages import TransactionLogKey, TransactionLogValue
from seglog_protocol.steps import Steps, finished
from tests.logs import ManualClock

LIFE_MS: Final = 60_000
"""After so long without a request a register becomes 0."""


class Register(StateMachine):
    """A number. It becomes 0 when nobody asks for it for a minute; 0 may be swept."""

    value = 0
    _deadline_ms: int | None = None  # no record carries it

    @property
    def deadline_ms(self) -> int | None:
        return self._deadline_ms

    @property
    def is_unused(self) -> bool:
        return self.value == 0

    def add(self, number: int, answer: Answer, now: Now) -> None:
        """Add to the number; ``answer`` gets the sum."""
        self._set(self.value + number)
        self._deadline_ms = now.monotonic_ms + LIFE_MS
        self.outbox.replies.append((answer, self.value))

    def _set(self, value: int) -> None:
        written = TransactionLogValue(transaction_timeout_ms=value)
        record = Record(TransactionLogKey(transactional_id=self.key), 0, written, 1)
        self.outbox.records.append(record)
        finished(self.replay(record))

    def replay(self, record: Record) -> Steps[None]:
        self.value = record.value.transaction_timeout_ms if isinstance(record.value, TransactionLogValue) else 0
        yield

    def restored(self, now: Now) -> None:
        self._deadline_ms = now.monotonic_ms + LIFE_MS

    def advance(self, now: Now) -> None:
        self._deadline_ms = None
        self._set(0)

    def write_failed(self, now: Now) -> None:
        self._set(self.value)  # again

    def delete(self) -> None:
        self.outbox.records.append(Record(TransactionLogKey(transactional_id=self.key), 0, None))


class RegisterReplay(Replay):
    """The last record of each register."""

    def __init__(self) -> None:
        super().__init__({0: RecordKind("TransactionLogKey", "TransactionLogValue", 1)})
        self.records: dict[str, Record] = {}

    def apply(self, record: Record) -> None:
        assert isinstance(record.key, TransactionLogKey)
        self.records[record.key.transactional_id] = record


class Registers:
    """The coordinator: all that it adds to the runtime."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        offload: Offload = InlineOffload()
        common = broker.common._replace(clock=clock, offload=offload)
        settings = TopicSettings(TRANSACTIONS_TOPIC, "register", 2, {"cleanup.policy": "compact"})
        self.topic = StateTopic(common.config, clock, common.table, lambda: settings, broker.append)
        self.writer = TopicWriter(self.topic, broker.scheduler, broker.create_topic)
        self.runtime: CoordinatorRuntime[Register] = CoordinatorRuntime(self.topic, clock, broker.scheduler)
        self.loader = StateLoader(*common, self.topic, RegisterReplay, self._keep)
        self.sweep = Sweep(lambda: self.runtime.machines, self._drop_zero, broker.scheduler)

    async def _keep(self, replay: RegisterReplay) -> None:
        for name, record in replay.records.items():
            if record.value is not None:
                await self.runtime.restore(Register(name, self.runtime.outbox), [record])

    async def _drop_zero(self, name: str) -> None:
        if self.runtime.machines[name].is_unused:
            await self.runtime.remove(name).wait()

    async def add(self, name: str, number: int) -> int:
        """Add to a register, which is made where there is none. The sum, once it is durable."""
        register = self.runtime.machines.get(name)
        if register is None:
            register = self.runtime.machines[name] = Register(name, self.runtime.outbox)
        waiting: Waiting[int] = Waiting()
        register.add(number, waiting, self.runtime.now())
        self.runtime.carry_out(name)
        return await self.runtime.wait(name, waiting)

    def values(self) -> dict[str, int]:
        return {name: register.value for name, register in self.runtime.machines.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Its tasks; what there was before is loaded."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.writer.run)
            nursery.start_soon(self.runtime.run_timers)
            await self.loader.run()
            yield
            nursery.cancel_scope.cancel()
