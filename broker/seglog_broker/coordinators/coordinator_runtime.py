"""Drives the state machines of a coordinator: appends the records that they decide, and replies once those are durable.

A runtime knows no coordinator: it is given the topic, and state machines of one class.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import trio

from seglog_broker.coordinators.deadlines import Deadlines
from seglog_broker.coordinators.state_machine import Now, Outbox, Record, StateMachine, encode_key
from seglog_broker.coordinators.topic import Encoded, StateTopic
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime import budget
from seglog_broker.runtime.begun import Signal
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.errors import CoordinatorNotAvailableError, SeglogError
from seglog_protocol.steps import Steps, in_turns_of

DEADLINES_A_TURN: Final = budget.items_of(cost=40)
"""State machines that are called at their deadlines before other tasks run."""

ResultT = TypeVar("ResultT")
MachineT = TypeVar("MachineT", bound=StateMachine)


class Waiting(Generic[ResultT]):
    """Waits for the result of a request: an ``Answer``. Only the first result, or error, counts."""

    __slots__ = ("_answered", "_error", "_result")

    def __init__(self) -> None:
        self._answered = Signal()
        self._result: ResultT | None = None
        self._error: SeglogError | None = None

    def __call__(self, result: ResultT, /) -> None:
        """Answer with ``result``."""
        if not self._answered.is_set:
            self._result = result
            self._answered.set()

    def fail(self, error: SeglogError) -> None:
        """Let ``wait`` raise ``error``."""
        if not self._answered.is_set:
            self._error = error
            self._answered.set()

    def settle(self: "Waiting[None]", error: SeglogError | None) -> None:
        """Let ``wait`` return, or raise ``error``: as a write tells how it has ended."""
        if error is None:
            self(None)
        else:
            self.fail(error)

    async def wait(self) -> ResultT:
        """The result, once there is one. Raises the error there is instead. May be cancelled."""
        await self._answered.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is set before the event


class CoordinatorRuntime(Generic[MachineT]):
    """The state machines of a coordinator by coordinator key: the id of a group, for example."""

    def __init__(
        self,
        topic: StateTopic,
        clock: Clock,
        scheduler: Scheduler,
        *,
        carry_out: Callable[[Any], None] = lambda _effect: None,
        note_size: Callable[[str, int], None] = lambda _key, _size: None,
        successor: Callable[[MachineT], Callable[[], MachineT] | None] = lambda _machine: None,
    ) -> None:
        """``carry_out`` gets each effect when the records that were decided before it, or with it, are durable.

        ``note_size`` gets the bytes that a key takes, 0 when it is gone.

        ``successor`` is asked after each call of a state machine: it returns None, or what makes the one to replace it.
        """
        self.machines: dict[str, MachineT] = {}
        self.outbox = Outbox()
        """Shared by all state machines."""
        self._topic = topic
        self._clock = clock
        self._scheduler = scheduler
        self._carry_out = carry_out
        self._note_size = note_size
        self._successor = successor
        self._unwritten: dict[str, int] = {}  # key -> writes that are not durable yet
        self._owed: dict[str, dict[bytes, int]] = {}
        """By coordinator key: the keys of records of state machines that were replaced or removed; which one it was.

        Their tombstones are added to the next records, until they are durable or another record has such a key.
        """
        self._removals = 0
        self._after_failure: dict[str, int] = {}  # key -> how many of these were queued before an earlier one failed
        self._waiting: dict[Waiting[Any], str] = {}  # unanswered requests, and their keys
        self._deadlines = Deadlines()
        self._sleeps_until_ms: float = math.inf
        self._sooner = trio.Event()
        self._is_stopping = False

    def now(self) -> Now:
        """This moment."""
        return Now(int(trio.current_time() * 1000), self._clock.now_ms())

    @property
    def owed(self) -> Collection[str]:
        """The keys of state machines that were replaced or removed, and whose tombstones are not durable yet."""
        return self._owed.keys()

    # --- State machines that come and go ------------------------------------------------------------------------------

    async def restore(self, machine: MachineT, records: Iterable[Record]) -> None:
        """Add a state machine when all its records are replayed, in turns with other tasks."""
        for record in records:
            await self._scheduler.in_turns(machine.replay(record))
        machine.restored(self.now())
        self.machines[machine.key] = machine
        self.schedule(machine.key)

    def replace(self, key: str, make: Callable[[], MachineT]) -> MachineT:
        """Put what ``make`` returns in the place of a state machine, whose tombstones are written with its records."""
        records = self.outbox.records
        count = len(records)
        made = make()
        of_made = records[count:]
        del records[count:]
        self.machines[key].delete()
        self.machines[key] = made
        self._owe(key, records[count:])
        records += of_made
        return made

    def remove(self, key: str) -> Waiting[None]:
        """Remove a state machine, if there is one, and append all tombstones that are owed. Wait for what is returned.

        What the next one of this key writes comes behind them. Where they cannot be written, they stay owed.
        """
        machine = self.machines.pop(key, None)
        if machine is not None:
            machine.delete()
            self._owe(key, self.outbox.take().records)  # its replies and effects are of what is gone
            self.schedule(key)
        removed: Waiting[None] = Waiting()
        self._append(key, self._with_owed(key, ()), Outbox(replies=[(removed, None)]))
        return removed

    def _owe(self, key: str, tombstones: Iterable[Record]) -> None:
        self._removals += 1
        self._owed.setdefault(key, {}).update((encode_key(record), self._removals) for record in tombstones)

    def drop_if_unused(self, key: str) -> None:
        """Remove a state machine about which nothing was ever decided, and which waits for nothing."""
        machine = self.machines[key]
        if machine.is_unused and machine.deadline_ms is None and key not in self._unwritten:
            del self.machines[key]
            self.schedule(key)

    # --- What they decide ---------------------------------------------------------------------------------------------

    async def in_steps(self, key: str, steps: Steps[ResultT]) -> ResultT:
        """The result of a request that takes long, with other tasks in between. ``carry_out`` comes after it.

        Where it raises, what was decided before is carried out here.
        """

        async def turn() -> None:
            self.schedule(key)  # the size and the deadline are up to date after each step
            await self._scheduler.turn()

        try:
            return await in_turns_of(steps, turn)
        except BaseException:
            steps.close()
            if key in self.machines:
                self.carry_out(key)
                self.drop_if_unused(key)
            raise

    def carry_out(self, key: str, *, is_urgent: bool = True) -> None:
        """Append the records that were decided, send the replies when they are durable, and schedule the next call.

        It follows each call of a state machine. What nothing waits for is not urgent: as in ``StateTopic.append``.
        """
        machine = self.machines.get(key)
        make_successor = None if machine is None else self._successor(machine)
        if make_successor is not None:
            self.replace(key, make_successor)
        self.append_decided(key, is_urgent=is_urgent)

    def append_decided(self, key: str, *, is_urgent: bool = True) -> None:
        """As ``carry_out``, without a look for a successor."""
        self.schedule(key)
        if not self.outbox:
            return
        decided = self.outbox.take()
        if decided.records or decided.encoded or key in self._unwritten:
            has_records = decided.records or decided.encoded
            records = self._with_owed(key, decided.records, decided.encoded) if has_records else ()
            self._append(key, records, decided, is_urgent=is_urgent)
        else:
            self._follow(decided)

    def _follow(self, decided: Outbox) -> None:
        """Let happen what follows from records that are durable; a reply may rely on the effects."""
        for effect in decided.effects:
            self._carry_out(effect)
        for answer, result in decided.replies:
            answer(result)

    def _append(
        self, key: str, records: Sequence[Encoded | Record], decided: Outbox, *, is_urgent: bool = True
    ) -> None:
        """Append records, those of ``_with_owed``; when they are durable, what was decided with them follows."""
        self._unwritten[key] = self._unwritten.get(key, 0) + 1
        owed = dict(self._owed.get(key, ())) if records else {}
        self._topic.append(key, records, partial(self._note_written, key, decided, owed), is_urgent=is_urgent)

    def _with_owed(
        self, key: str, records: Sequence[Record], encoded: Sequence[Encoded] = ()
    ) -> Sequence[Encoded | Record]:
        """``records`` and ``encoded``, after the tombstones that are owed and do not stand among them."""
        owed = self._owed.get(key)
        if owed is None:
            return [*records, *encoded] if records else encoded
        last = {encode_key(record): record.value is not None for record in records}
        last.update((of_record, value is not None) for of_record, value in encoded)
        for of_record, has_value in last.items():
            if has_value:
                owed.pop(of_record, None)  # a tombstone must not come behind it
        if not owed:
            del self._owed[key]
        return [*((deleted, None) for deleted in owed if deleted not in last), *records, *encoded]

    def is_durable(self, key: str) -> bool:
        """Whether all that a state machine has decided so far is durable."""
        return key not in self._unwritten

    def begin_write(self, key: str) -> Waiting[None]:
        """Carry out what was decided. What is returned waits until it is durable, or raises why it is not."""
        waiting: Waiting[None] = Waiting()
        self.outbox.replies.append((waiting, None))
        self.carry_out(key)
        return waiting

    async def written(self, key: str) -> None:
        """Carry out what was decided, and return when it is durable. Raises CoordinatorNotAvailableError."""
        await self.begin_write(key).wait()

    async def decided(self, key: str, decide: Callable[[], ResultT]) -> ResultT:
        """What ``decide``, a call of a state machine, returns, when its records are durable.

        Where it raises, what it has decided before that is carried out, and not waited for.
        """
        try:
            result = decide()
        except BaseException:
            self.carry_out(key)
            raise
        await self.written(key)
        return result

    async def wait(self, key: str, waiting: Waiting[ResultT]) -> ResultT:
        """The reply to a request. Raises CoordinatorNotAvailableError, also where the broker stops first."""
        if self._is_stopping:
            raise _stopping(key)
        self._waiting[waiting] = key
        try:
            return await waiting.wait()
        finally:
            del self._waiting[waiting]

    def end_waits(self) -> None:
        """Answer all requests that ``wait``, now and from now on: the broker stops."""
        self._is_stopping = True
        for waiting, key in list(self._waiting.items()):
            waiting.fail(_stopping(key))

    def _note_written(self, key: str, decided: Outbox, deleted: Mapping[bytes, int], error: SeglogError | None) -> None:
        """Let ``decided`` follow from a write that has ended, of which the tombstones ``deleted`` were part."""
        if deleted and error is None and (owed := self._owed.get(key)) is not None:
            for of_record, removal in deleted.items():
                if owed.get(of_record) == removal:
                    del owed[of_record]
            if not owed:
                del self._owed[key]
        left = self._unwritten[key] - 1
        if left:
            self._unwritten[key] = left
        else:
            del self._unwritten[key]
        failed = error is not None
        if (suspect := self._after_failure.pop(key, 0)) > 1:
            self._after_failure[key] = suspect - 1
        if suspect and error is None:
            # Its replies may tell of what was to be written earlier, and is not.
            error = CoordinatorNotAvailableError(f"what {key} decided before was not written; try again")
        if error is None:
            self._follow(decided)
        else:
            for answer, _ in decided.replies:
                if isinstance(answer, Waiting):
                    answer.fail(error)
        if failed and left:
            self._after_failure[key] = left
        if failed and (machine := self.machines.get(key)) is not None:
            machine.write_failed(self.now())
            self.carry_out(key)

    # --- Time ---------------------------------------------------------------------------------------------------------

    def schedule(self, key: str) -> None:
        """Note how much a state machine takes, and when it is to be called."""
        machine = self.machines.get(key)
        self._note_size(key, 0 if machine is None else machine.size)
        deadline_ms = None if machine is None else machine.deadline_ms
        if deadline_ms is None:
            self._deadlines.discard(key)
        else:
            self._deadlines.set(key, deadline_ms)
            if deadline_ms < self._sleeps_until_ms:
                self._sooner.set()

    async def run_timers(self) -> None:
        """Call state machines at their deadlines, until cancelled."""
        while True:
            self._sooner = trio.Event()
            called = 0
            while (key := self._deadlines.pop_due(self.now().monotonic_ms)) is not None:
                machine = self.machines.get(key)
                if machine is not None:
                    machine.advance(self.now())
                    self.carry_out(key)
                called += 1
                if called % DEADLINES_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
            earliest_ms = self._deadlines.earliest()
            self._sleeps_until_ms = math.inf if earliest_ms is None else earliest_ms
            with trio.move_on_at((self._sleeps_until_ms + 1) / 1000):  # a moment is rounded down to its millisecond
                await self._sooner.wait()


def _stopping(key: str) -> CoordinatorNotAvailableError:
    return CoordinatorNotAvailableError("the broker is stopping: connect again", group=key)
