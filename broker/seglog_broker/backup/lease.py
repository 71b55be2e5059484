"""The lease of a place: which broker may acknowledge, decided by files that are created once each.

    lease/<number>.json   sealed JSON: holder, directory_id, epoch, host, duration_ms, state

The highest number is the lease; the next one is created by its holder, who renews it, or by a broker that takes it
over. Two that create the same number find out by the destination's condition. No file holds a time, and no clock of one
machine is compared with that of another. At most one holds it at any moment, because:

- A holder may act until ``duration`` less a tenth has passed since a moment of its own clock *before* it asked for the
  number that it has created, and after that it has listed the numbers and found its own the highest. So whoever takes
  over has created its number later than that moment.
- Who takes over waits, from when it knows that it has created its number, for ``duration`` and a tenth by its own
  clock. The two tenths are for clocks of different speed. A start after a release does not wait.
- Numbers KEPT behind the highest are deleted. So one that slept may create a number that was used before; the list,
  which comes after each creation, tells it. Nothing is assumed about how long anything takes.
- Who takes over from one that was still waiting waits for the first one, too: ``duration_ms`` says how long.

The clock is CLOCK_BOOTTIME in nanoseconds: it goes on while the machine is suspended, and nobody sets it.

Steps are generators: they give what is to be asked of the destination, and are sent the answer, or DestinationError
where there is none. ``run`` asks; tests put anything in between.
"""

import re
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import msgspec

from seglog_broker.backup.destination import Destination, DestinationError, MissingFileError
from seglog_broker.storage.io.small_files import seal, unseal

LEASES: Final = "lease/"
"""How the names of its files begin."""

KEPT: Final = 20
"""So many files are kept, to be looked at."""

DURATION_MS_MIN: Final = 3_000
DURATION_MS_MAX: Final = 600_000
"""Of a lease; the longest is what one is taken for whose file is damaged."""

_NAME: Final = re.compile(rf"{LEASES}(\d{{12}})\.json")
_RETRIES: Final = 20
"""After an error the destination is asked again after this part of the duration."""


class LeaseLostError(Exception):
    """The lease is another broker's, or must not be taken; the message is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The content of a file of the lease."""

    holder: str
    """The incarnation of a broker: a name that no other process has ever had."""
    directory_id: str
    epoch: int
    """Of the place, which rises with each directory that it becomes the backup of."""
    host: str
    duration_ms: int
    """For how long a successor waits, less the margin."""
    state: Literal["waiting", "held", "released"] = "held"

    def encode(self) -> bytes:
        """The content of the file."""
        return seal(asdict(self))


_DAMAGED: Final = Terms("", "", -1, "a host that is not known, as its file is damaged", DURATION_MS_MAX)
"""Of a file that cannot be read: the longest lease that there may be."""


class Create(NamedTuple):
    """Create a number; the answer is False if it is there already."""

    number: int
    terms: Terms


class Read(NamedTuple):
    """Read a number; the answer is its bytes, None if it is not there."""

    number: int


class Numbers(NamedTuple):
    """List the numbers; the answer is these, ascending."""


class Delete(NamedTuple):
    """Delete a number."""

    number: int


class Pause(NamedTuple):
    """Do nothing until the clock is there, or a little earlier."""

    until_ns: int


Step = Create | Read | Numbers | Delete | Pause
Steps = Generator[Step, Any, None]


class Lease:
    """The lease as one incarnation of a broker sees it. One user at a time.

    Its owner takes the steps of ``keep``, and at the end those of ``release``.
    """

    def __init__(self, own: Terms, now: Callable[[], int]) -> None:
        """``own`` is what its files will say; ``now`` reads CLOCK_BOOTTIME in nanoseconds."""
        self.own = own
        self.now = now
        self.until_ns = 0
        """When it must stop to acknowledge; 0 where it does not hold the lease."""
        self.renew_at_ns = 0
        self.waits_for = ""
        """The reason why it does not hold the lease yet, where it waits."""
        self.problem = ""
        """Why the destination gave no answer the last time; empty if it did."""
        self._number = 0  # the latest of its own

    def acquire(self, *, take_over: bool = False) -> Steps:
        """Take the lease, wait until its last holder has lost it, and hold it.

        With ``take_over`` also where it is another directory's. Raises LeaseLostError.
        """
        number, old = yield from self._latest()
        while True:
            wait_ms = self._wait_ms(old, take_over=take_over)
            state: Literal["waiting", "held"] = "waiting" if wait_ms else "held"
            terms = replace(self.own, state=state, duration_ms=max(self.own.duration_ms, wait_ms))
            if (yield from self._create(number + 1, terms)) is not None:
                break
            before, (number, old) = old, (yield from self._latest())
            if old is None or before is None or old.holder != before.holder:  # not its holder's next renewal
                raise self._lost(old)
        if wait_ms and old is not None:
            self.waits_for = f"the lease of {old.host}, which was not released, to end"
        ready = self.now() + self._wait_ns(wait_ms)
        while wait_ms and self.now() < ready:
            yield Pause(ready)
        yield from self.renew()
        self.waits_for = ""

    def keep(self, held: Callable[[int], None]) -> Steps:
        """Take the lease and renew it, three times in its duration, until it is lost.

        ``held`` gets each new moment until which it is. Raises LeaseLostError.
        """
        yield from self.acquire()
        while True:
            held(self.until_ns)
            while self.now() < self.renew_at_ns:
                yield Pause(self.renew_at_ns)
            yield from self.renew()

    def renew(self) -> Steps:
        """Create the next number, and hold the lease from a moment before that. Raises LeaseLostError."""
        asked_at = self.now()
        if (yield from self._create(self._number + 1, self.own)) is None:
            _, found = yield from self._latest()
            raise self._lost(found)
        self.until_ns, self.renew_at_ns = self._until(asked_at), asked_at + self.own.duration_ms * 1_000_000 // 3

    def release(self) -> Steps:
        """Give up what it holds, so that the next start need not wait. Nothing must be acknowledged any more.

        Does nothing where it has never held it: who waits must not say that there is nothing to wait for.
        """
        if not self.until_ns:
            return
        self.until_ns = 0
        terms, found = replace(self.own, state="released"), self.own
        while found.state != "released":  # the next number may be that of a renewal that was given up
            created = yield from self._create(self._number + 1, terms)
            if created is None:
                return  # it is another's
            found = created

    def _wait_ms(self, old: Terms | None, *, take_over: bool) -> int:
        """The duration of the lease whose end is to be waited for; 0 where there is none. Raises LeaseLostError."""
        if old is None or (old.holder == self.own.holder and old.state == "held"):
            return 0  # the first of all; or its own, which another process of the same broker has kept until now
        if not take_over and old.directory_id != self.own.directory_id and old.epoch >= self.own.epoch:
            raise self._lost(old)
        return 0 if old.state == "released" else old.duration_ms

    def _until(self, asked_at: int) -> int:
        """When a lease ends that was asked for at this moment."""
        return asked_at + self.own.duration_ms * 900_000

    def _wait_ns(self, duration_ms: int) -> int:
        """How long to wait for the end of another's lease."""
        return duration_ms * 1_100_000

    def _create(self, number: int, terms: Terms) -> Generator[Step, Any, Terms | None]:
        """Create a number, and see that it is the highest: what it says; None if it is another's, or others are ahead.

        One whose answer was lost is there when it is tried again, or it is not.
        """
        found: Terms | None = terms
        if not (yield from self._ask(Create(number, terms))):
            found = yield from self._read(number)
        if found is None or found.holder != self.own.holder or not (yield from self._is_highest(number)):
            return None
        self._number = number
        return found

    def _is_highest(self, number: int) -> Generator[Step, Any, bool]:
        """True if a number is the highest; then those far behind are deleted."""
        numbers: list[int] = yield from self._ask(Numbers())
        if numbers[-1:] != [number]:
            return False
        for old in numbers:
            if old <= number - KEPT:
                with suppress(DestinationError):  # the next renewal tries again
                    yield Delete(old)
        return True

    def _latest(self) -> Generator[Step, Any, tuple[int, Terms | None]]:
        """The highest number and what it says; 0 and None where there is none."""
        while True:
            numbers: list[int] = yield from self._ask(Numbers())
            if not numbers:
                return 0, None
            found = yield from self._read(numbers[-1])
            if found is not None:
                return numbers[-1], found

    def _read(self, number: int) -> Generator[Step, Any, Terms | None]:
        """The content of a number; None if it is not there any more."""
        content: bytes | None = yield from self._ask(Read(number))
        if content is None:
            return None
        try:
            return msgspec.convert(unseal(content, ()), Terms)
        except ValueError:
            return _DAMAGED

    def _ask(self, step: Step) -> Generator[Step, Any, Any]:
        """The answer of the destination, which is asked until there is one."""
        while True:
            try:
                answer = yield step
            except DestinationError as error:
                self.problem = str(error)
                yield Pause(self.now() + self.own.duration_ms * 1_000_000 // _RETRIES)
            else:
                self.problem = ""
                return answer

    def _lost(self, found: Terms | None) -> LeaseLostError:
        """Why it is lost for ever."""
        self.until_ns = 0
        if found is None or found.directory_id == self.own.directory_id:
            return LeaseLostError(
                "another broker has taken the lease of this log directory's backup: two serve copies of one directory, "
                f"the other one on {found.host if found is not None else 'a host that is not known'}; keep one of them"
            )
        return LeaseLostError(
            f"the backup was taken over by the log directory {found.directory_id} on {found.host}, which serves now. "
            "Let this machine follow it (seglogd --standby --from PLACE, with an empty directory), or make it the "
            "first again from the backup (seglogd restore PLACE --to DIR --take-over)"
        )


def forget_leases(destination: Destination) -> None:
    """Remove what a broker with a lease has left, for one without: no promotion must take it for the end of that.

    Raises DestinationError.
    """
    for file in list(destination.names(LEASES)):
        destination.delete(file.name)


def run(steps: Steps, destination: Destination, pause: Callable[[int], None]) -> None:
    """Take steps to their end: ask ``destination``, and ``pause`` until a moment. Raises what the steps raise."""
    try:
        step = next(steps)
        while True:
            try:
                answer = _answer(destination, step, pause)
            except DestinationError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration:
        return


def _answer(destination: Destination, step: Step, pause: Callable[[int], None]) -> Any:
    match step:
        case Pause(until_ns):
            pause(until_ns)
        case Create(number, terms):
            return destination.put_new(_name(number), [terms.encode()])
        case Read(number):
            try:
                return b"".join(destination.read(_name(number)))
            except MissingFileError:
                return None
        case Numbers():
            return sorted(int(found[1]) for file in destination.names(LEASES) if (found := _NAME.fullmatch(file.name)))
        case Delete(number):
            destination.delete(_name(number))
    return None


def _name(number: int) -> str:
    return f"{LEASES}{number:012d}.json"
