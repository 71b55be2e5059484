"""Carries out what state machines decide: appends the records, and replies once those are durable."""

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import trio
from mypy_extensions import mypyc_attr

from seglog_broker.coordinators.deadlines import Deadlines
from seglog_broker.coordinators.state_machine import Now, Outbox, Record, StateMachine, encode_key
from seglog_broker.coordinators.topic import Encoded, StateTopic
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime.awaitables import result_after
from seglog_broker.runtime.begun import Signal
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.errors import CoordinatorNotAvailableError, SeglogError

ResultT = TypeVar("ResultT")
MachineT = TypeVar("MachineT", bound=StateMachine)


class Waiting(Generic[ResultT]):
    """Waits for the result of a request: an ``Answer``. Only the first result, or error, counts."""

    __slots__ = ("_result", "ended", "error")

    def __init__(self) -> None:
        self.ended = Signal()
        self.error: SeglogError | None = None
        """The error in place of a result."""
        self._result: ResultT | None = None

    def __call__(self, result: ResultT, /) -> None:
        """Answer with ``result``."""
        if not self.ended.is_set:
            self._result = result
            self.ended.set()

    def fail(self, error: SeglogError) -> None:
        """Let ``wait`` raise ``error``."""
        if not self.ended.is_set:
            self.error = error
            self.ended.set()

    def settle(self: "Waiting[None]", error: SeglogError | None) -> None:
        """Let ``wait`` return, or raise ``error``: as a write tells how it has ended."""
        if error is None:
            self(None)
        else:
            self.fail(error)

    def wait(self) -> Awaitable[ResultT]:
        """Wait for the result, from now on. Raises the error there is instead. May be cancelled."""
        return result_after(self.ended.wait(), self.result)

    def result(self) -> ResultT:
        """The result, once there is one. Raises the error there is instead."""
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]  # it is set before the signal


@mypyc_attr(allow_interpreted_subclasses=True)
class Decisions(Generic[MachineT]):
    """The state machines of a coordinator, and what they have decided: see ``CoordinatorRuntime``."""

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

    def end_waits(self) -> None:
        """Answer all requests that ``wait``, now and from now on: the broker stops."""
        self._is_stopping = True
        for waiting, key in list(self._waiting.items()):
            waiting.fail(stopping(key))

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


def stopping(key: str) -> CoordinatorNotAvailableError:
    """The error of requests about a key that wait while the broker stops."""
    return CoordinatorNotAvailableError("the broker is stopping: connect again", group=key)
