"""The thread that keeps a lease: what it tells, and when it ends. Its leases are short: it waits for true time."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from seglog_broker.backup.agent_messages import LeaseAwaited, LeaseHeld, LeaseLost, Trouble
from seglog_broker.backup.destination import Destination, DestinationError
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.lease import Lease, Terms, run
from seglog_broker.backup.lease_thread import LeaseThread, Told
from seglog_broker.storage.io.clock import boottime_ns
from seglog_broker.storage.io.filesystem import PosixFileSystem

OWN = Terms("incarnation 1", "directory A", 0, "first.example", 150)


@pytest.fixture
def told() -> SimpleQueue[Told]:
    return SimpleQueue()


@pytest.fixture
def place(tmp_path: Path) -> Callable[[], Destination]:
    return lambda: DirectoryDestination(PosixFileSystem(), str(tmp_path / "place"))


@pytest.fixture
def thread(told: SimpleQueue[Told], place: Callable[[], Destination]) -> Iterator[LeaseThread]:
    thread = LeaseThread(place, told.put)
    yield thread
    thread.release()


def taken_over(place: Callable[[], Destination]) -> None:
    """Take the lease for another broker, by a clock that makes no wait long."""
    now = 0

    def pause(until_ns: int) -> None:
        nonlocal now
        now = until_ns

    lease = Lease(Terms("incarnation 2", "directory A", 0, "second.example", 3_000), lambda: now)
    run(lease.acquire(), place(), pause)


def test_it_renews_until_it_is_released(
    thread: LeaseThread, told: SimpleQueue[Told], place: Callable[[], Destination]
) -> None:
    began = boottime_ns()
    thread.start(OWN)
    moments = [told.get() for _ in range(3)]
    until = [moment.until_ns for moment in moments if isinstance(moment, LeaseHeld)]
    assert len(until) == 3
    assert began < until[0] < until[1] < until[2]
    thread.release()
    waited: list[int] = []
    run(Lease(Terms("incarnation 2", "directory A", 0, "host", 3_000), boottime_ns).acquire(), place(), waited.append)
    assert waited == []


def test_a_place_that_is_opened_again_has_the_same_thread(
    told: SimpleQueue[Told], place: Callable[[], Destination]
) -> None:
    opened: list[Destination] = []

    def opening() -> Destination:
        opened.append(place())
        return opened[-1]

    thread = LeaseThread(opening, told.put)
    thread.start(OWN)
    thread.start(OWN)
    assert isinstance(told.get(), LeaseHeld)
    thread.release()
    assert len(opened) == 1


def test_it_tells_that_it_was_lost_and_ends(
    thread: LeaseThread, told: SimpleQueue[Told], place: Callable[[], Destination]
) -> None:
    thread.start(OWN)
    assert isinstance(told.get(), LeaseHeld)
    taken_over(place)
    while isinstance(lost := told.get(), LeaseHeld):
        pass
    assert isinstance(lost, LeaseLost)
    assert "the other one on second.example" in lost.reason
    thread.release()


def test_it_tells_what_it_waits_for(
    thread: LeaseThread, told: SimpleQueue[Told], place: Callable[[], Destination]
) -> None:
    taken_over(place)
    thread.start(OWN)
    reason = "the lease of second.example, which was not released, to end"
    assert told.get() == LeaseAwaited(reason)
    thread.release()
    assert told.empty()


def test_a_place_that_is_away_is_tried_again(told: SimpleQueue[Told], place: Callable[[], Destination]) -> None:
    away = iter([DestinationError("it is away")])

    def opened() -> Destination:
        for error in away:
            raise error
        return place()

    thread = LeaseThread(opened, told.put)
    thread.start(OWN)
    assert told.get() == LeaseAwaited("it is away")
    assert isinstance(told.get(), LeaseHeld)
    thread.release()


def test_a_place_that_lies_is_refused_for_ever(told: SimpleQueue[Told], tmp_path: Path) -> None:
    class Liar(DirectoryDestination):
        def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
            self.put(name, chunks)
            return True

    thread = LeaseThread(lambda: Liar(PosixFileSystem(), str(tmp_path / "place")), told.put)
    thread.start(OWN)
    said = told.get()
    assert isinstance(said, Trouble)
    assert said.is_final
    assert "cannot have a lease" in (said.reason or "")
    thread.release()
