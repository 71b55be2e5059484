"""The lease against true time: machines that are slow, stopped, suspended, killed, with clocks of different speed.

Each request is delayed before it reaches the store and after, for up to dozens of lease durations; its answer may be
lost, and it may land long after its sender gave up. No two machines may hold the lease at one moment of true time.
"""

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest

from seglog_broker.backup.destination import DestinationError
from seglog_broker.backup.lease import (
    KEPT,
    Create,
    Delete,
    Lease,
    LeaseLostError,
    Numbers,
    Pause,
    Read,
    Step,
    Steps,
    Terms,
)
from tests.support import each_case, examples

MS = 1_000_000
SEEDS = 20_000
"""In a full soak; each is a second or so of three machines' life, which takes some milliseconds."""


class TwoHoldersError(AssertionError):
    """Two machines hold the lease at one moment."""


class Machine:
    """A machine that runs one incarnation of a broker after the other."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.dice, self.name = world, world.dice, name
        self.speed = self.dice.choice([0.905, 1.0, 1.095])  # ticks of its clock in one of true time
        self.offset = self.dice.randrange(10**15)
        self.suspended = 0  # of true time, in which CLOCK_MONOTONIC stands still
        self.incarnation = 0
        self.life = 0  # rises whenever what it does is given up
        self.holds_until = 0  # true time
        self.begin()

    def boot_time(self) -> int:
        return self.offset + int(self.world.now * self.speed)

    def begin(self, *, is_new: bool = True) -> None:
        """Start a broker, or anew the process of one that has the lease."""
        if is_new:
            self.incarnation += 1
            self.duration_ms = self.dice.choice([3_000, 3_000, 10_000])
        terms = Terms(f"{self.name} {self.incarnation}", self.name, self.incarnation, self.name, self.duration_ms)
        self.lease = self.world.kind(terms, self.world.clock(self))
        self.run(self.live())

    def live(self) -> Steps:
        yield from self.lease.acquire(take_over=True)
        while True:
            self.world.note_held(self)
            while self.lease.now() < self.lease.renew_at_ns:
                yield Pause(self.lease.renew_at_ns)
            yield from self.lease.renew()

    def run(self, steps: Steps) -> None:
        self.life += 1
        self.steps = steps
        self.go_on(self.life, lambda: next(steps))

    def go_on(self, life: int, resume: Callable[[], Step]) -> None:
        """Take the next step, unless the machine has given up since."""
        if life != self.life:
            return
        if self.dice.random() < 0.02:
            self.end_somehow()
            return
        try:
            step = resume()
        except LeaseLostError:
            self.world.seen["lost"] += 1
            self.die()
        except StopIteration:  # released
            self.die()
        else:
            self.ask(step)

    def ask(self, step: Step) -> None:
        world, life, steps = self.world, self.life, self.steps
        if isinstance(step, Pause):
            length = int(max(0, step.until_ns - self.lease.now()) / self.speed)
            if self.dice.random() < (0.02 if self.lease.until_ns else 0.3):
                world.at(self.dice.randrange(length + 1), lambda: self.end_somehow() if life == self.life else None)
            world.at(length + self.nap(), lambda: self.go_on(life, lambda: steps.send(None)))
            return
        fate, before, after = self.dice.random(), self.nap(), self.nap()
        if fate < 0.9:

            def arrive() -> None:
                answer = world.effect(step)
                world.at(after, lambda: self.go_on(life, lambda: steps.send(answer)))

            world.at(before, arrive)
            return
        world.seen["answer lost"] += 1
        if fate < 0.97:  # it lands all the same, now or whenever
            world.at(self.nap(), lambda: world.effect(step))
        error = DestinationError("no answer")
        world.at(after, lambda: self.go_on(life, lambda: steps.throw(error)))

    def nap(self) -> int:
        """Of true time: mostly a little, sometimes as long as leases last, or much longer. It may be suspended."""
        seconds = self.dice.choices([0.01, 0.5, 5, 200], [80, 12, 6, 2])[0]
        length = int(self.dice.random() * seconds * 1000) * MS
        if self.dice.random() < 0.3:
            self.suspended += length
        return length

    def end_somehow(self) -> None:
        """Be killed, stopped cleanly, or lose the process that keeps the lease, whose broker lives on."""
        what = self.dice.choice(["killed", "released", "agent"])
        self.world.seen[what] += 1
        if what == "agent":
            self.begin(is_new=False)
            return
        if what == "released":
            self.holds_until = 0
            self.run(self.lease.release())
        else:
            self.die()

    def die(self) -> None:
        """End, and start anew later. What it was told to hold is not given back: nothing may depend on that."""
        self.life += 1
        self.world.at(self.nap() + self.nap(), self.begin)


def monotonic(machine: Machine) -> int:
    return machine.boot_time() - int(machine.suspended * machine.speed)


class World:
    """The store, true time, and what is to happen."""

    def __init__(
        self,
        seed: int,
        kind: type[Lease] = Lease,
        read_clock: Callable[[Machine], int] = Machine.boot_time,
    ) -> None:
        self.dice, self.kind, self.read_clock = Random(seed), kind, read_clock
        self.now = 0
        self.files: dict[int, Terms | None] = {}
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.seen: Counter[str] = Counter()
        self.machines: list[Machine] = []
        for name in "abc"[: self.dice.choice([2, 3])]:
            self.machines.append(Machine(self, name))

    def clock(self, machine: Machine) -> Callable[[], int]:
        return lambda: self.read_clock(machine)

    def at(self, delay: int, what: Callable[[], None]) -> None:
        self.seen["events"] += 1
        heappush(self.queue, (self.now + delay, self.seen["events"], what))

    def run(self, events: int = 600) -> "World":
        for _ in range(events):
            self.now, _, what = heappop(self.queue)
            what()
        return self

    def effect(self, step: Step) -> Any:
        """What the store does, at once and whole."""
        match step:
            case Create(number, terms):
                if number in self.files:
                    return False
                self.files[number] = None if self.dice.random() < 0.005 else terms  # None: it is damaged
                return True
            case Read(number):
                if number not in self.files:
                    return None
                found = self.files[number]
                return b"{" if found is None else found.encode()
            case Numbers():
                return sorted(self.files)
            case Delete(number):
                self.files.pop(number, None)
        return None

    def note_held(self, machine: Machine) -> None:
        """A machine may acknowledge until its clock is there."""
        left = machine.lease.until_ns - machine.boot_time()
        if self.read_clock is monotonic:
            left = machine.lease.until_ns - monotonic(machine)
        if left <= 0:
            return
        machine.holds_until = self.now + int(left / machine.speed)
        self.seen["held"] += 1
        for other in self.machines:
            if other is not machine and other.holds_until > self.now:
                raise TwoHoldersError(f"{machine.name} and {other.name} at {self.now}")


def run_all(world: Callable[[int], World], seeds: int = SEEDS) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(seeds):
        seen += world(seed).run().seen
    return seen


def test_no_two_machines_hold_it_at_one_moment() -> None:
    seen = run_all(World, examples(SEEDS))
    assert min(seen[what] for what in ("held", "lost", "answer lost", "killed", "released", "agent")) > 100


# --- What the model finds -------------------------------------------------------------------------------------------


class MeasuresFromTheAnswer(Lease):
    def renew(self) -> Steps:
        yield from super().renew()
        self.until_ns = self._until(self.now())


class ListsNothing(Lease):
    def _is_highest(self, number: int) -> Generator[Step, Any, bool]:
        yield from self._ask(Delete(number - KEPT))
        return True


class ListsNotAtRenewals(ListsNothing):
    def acquire(self, *, take_over: bool = False) -> Steps:
        yield from super().acquire(take_over=take_over)
        if (yield from self._ask(Numbers()))[-1] != self._number:
            raise self._lost(None)


class WaitsWithoutMargin(Lease):
    def _wait_ns(self, duration_ms: int) -> int:
        return duration_ms * MS


class HoldsWithoutMargin(Lease):
    def _until(self, asked_at: int) -> int:
        return asked_at + self.own.duration_ms * MS


class ForgetsTheFirstHolder(Lease):
    def _create(self, number: int, terms: Terms) -> Generator[Step, Any, Terms | None]:
        return (yield from super()._create(number, replace(terms, duration_ms=self.own.duration_ms)))


class ReleasesWhileItWaits(Lease):
    def release(self) -> Steps:
        self.until_ns = 1
        yield from super().release()


class TakesWaitingForHeld(Lease):
    def _create(self, number: int, terms: Terms) -> Generator[Step, Any, Terms | None]:
        return (yield from super()._create(number, replace(terms, state="held")))


class BelievesWhatIsThere(Lease):
    def _create(self, number: int, terms: Terms) -> Generator[Step, Any, Terms | None]:
        yield from self._ask(Create(number, terms))
        self._number = number
        return terms if (yield from self._is_highest(number)) else None


class TakesDamagedForNothing(Lease):
    def _wait_ms(self, old: Terms | None, *, take_over: bool) -> int:
        return 0 if old is not None and not old.holder else super()._wait_ms(old, take_over=take_over)


@pytest.mark.soak
@each_case(
    "kind",
    [
        MeasuresFromTheAnswer,
        ListsNothing,
        ListsNotAtRenewals,
        WaitsWithoutMargin,
        HoldsWithoutMargin,
        ForgetsTheFirstHolder,
        ReleasesWhileItWaits,
        TakesWaitingForHeld,
        BelievesWhatIsThere,
        TakesDamagedForNothing,
    ],
)
def test_a_mistake_is_found(kind: type[Lease]) -> None:
    with pytest.raises(TwoHoldersError):
        run_all(partial(World, kind=kind))


def test_a_clock_that_stands_still_in_suspend_is_found() -> None:
    with pytest.raises(TwoHoldersError):
        run_all(partial(World, read_clock=monotonic))
