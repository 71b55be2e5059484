"""Drives the state machines of a coordinator: appends the records that they decide, and replies once those are durable.

A runtime knows no coordinator: it is given the topic, and state machines of one class.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final

import trio

from seglog_broker.coordinators.decisions import Decisions, MachineT, ResultT, Waiting, stopping
from seglog_broker.coordinators.state_machine import Record
from seglog_broker.runtime import budget
from seglog_protocol.steps import Steps, in_turns_of

DEADLINES_A_TURN: Final = budget.items_of(cost=40)
"""State machines that are called at their deadlines before other tasks run."""


class CoordinatorRuntime(Decisions[MachineT]):
    """The state machines of a coordinator by coordinator key: the id of a group, for example."""

    async def restore(self, machine: MachineT, records: Iterable[Record]) -> None:
        """Add a state machine when all its records are replayed, in turns with other tasks."""
        for record in records:
            await self._scheduler.in_turns(machine.replay(record))
        machine.restored(self.now())
        self.machines[machine.key] = machine
        self.schedule(machine.key)

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
            raise stopping(key)
        self._waiting[waiting] = key
        try:
            return await waiting.wait()
        finally:
            del self._waiting[waiting]

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
            self._sleeps_until_ms = math.inf if earliest_ms is None else float(earliest_ms)
            with trio.move_on_at((self._sleeps_until_ms + 1) / 1000):  # a moment is rounded down to its millisecond
                await self._sooner.wait()
