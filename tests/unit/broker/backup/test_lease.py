"""The lease on a destination. That it has one holder at a time is in tests/unit/simulation/test_lease_model.py."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from seglog_broker.backup.destination import DestinationError
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.lease import DURATION_MS_MAX, KEPT, Lease, LeaseLostError, Steps, Terms, run
from seglog_broker.storage.io.filesystem import PosixFileSystem

FIRST = Terms("incarnation 1", "directory A", 0, "first.example", 3_000)
MS = 1_000_000


class Place:
    """A destination that may be away, and a clock that goes on in pauses alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.destination = DirectoryDestination(PosixFileSystem(), str(path))
        self.now = 5_000 * MS
        self.paused: list[int] = []
        """Milliseconds of each pause."""

    def lease(self, own: Terms) -> Lease:
        return Lease(own, lambda: self.now)

    def run(self, steps: Steps) -> None:
        run(steps, self.destination, self.pause)

    def pause(self, until_ns: int) -> None:
        self.paused.append((until_ns - self.now) // MS)
        self.now = until_ns

    def held(self, own: Terms, *, take_over: bool = False) -> Lease:
        lease = self.lease(own)
        self.run(lease.acquire(take_over=take_over))
        return lease

    @property
    def files(self) -> list[str]:
        return sorted(entry.name for entry in (self.path / "lease").iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place")


def test_the_first_of_all_holds_it_at_once_for_its_duration_less_a_tenth(place: Place) -> None:
    lease = place.held(FIRST)
    assert (lease.until_ns, lease.renew_at_ns) == (place.now + 2_700 * MS, place.now + 1_000 * MS)
    assert place.paused == []
    assert place.files == ["000000000001.json", "000000000002.json"]


def test_a_file_says_who_and_how_long_and_has_no_time(place: Place) -> None:
    place.held(FIRST)
    content = json.loads((place.path / "lease/000000000002.json").read_bytes())
    del content["crc"]
    assert content == {
        "holder": "incarnation 1",
        "directory_id": "directory A",
        "epoch": 0,
        "host": "first.example",
        "duration_ms": 3_000,
        "state": "held",
    }


def test_a_renewal_keeps_the_last_files_alone(place: Place) -> None:
    lease = place.held(FIRST)
    for _ in range(2 * KEPT):
        place.run(lease.renew())
    assert place.files == [f"{number:012d}.json" for number in range(KEPT + 3, 2 * KEPT + 3)]


def test_a_new_incarnation_waits_for_the_old_one_by_its_own_clock(place: Place) -> None:
    old = place.held(replace(FIRST, duration_ms=10_000))
    lease = place.held(replace(FIRST, holder="incarnation 2"))
    assert place.paused == [11_000]
    assert lease.until_ns == place.now + 2_700 * MS
    with pytest.raises(LeaseLostError, match=r"^another broker has taken the lease .* the other one on first.example;"):
        place.run(old.renew())
    assert old.until_ns == 0


def test_after_a_release_nobody_waits(place: Place) -> None:
    old = place.held(FIRST)
    place.run(old.release())
    assert old.until_ns == 0
    place.held(replace(FIRST, holder="incarnation 2"))
    assert place.paused == []


def test_what_was_lost_is_not_released(place: Place) -> None:
    old = place.held(FIRST)
    new = place.held(replace(FIRST, holder="incarnation 2"))
    place.run(old.release())
    place.run(new.renew())
    assert new.until_ns


def test_another_process_of_the_same_broker_goes_on(place: Place) -> None:
    place.held(FIRST)
    place.held(FIRST)
    assert place.paused == []


def test_another_directory_is_refused_where_the_place_is_not_its_own(place: Place) -> None:
    place.held(replace(FIRST, holder="incarnation 2", directory_id="directory B", epoch=1))
    with pytest.raises(
        LeaseLostError, match=r"taken over by the log directory directory B on first.example, .*--standby"
    ):
        place.held(FIRST)
    assert place.held(FIRST, take_over=True).until_ns
    assert place.held(replace(FIRST, holder="incarnation 3", directory_id="directory C", epoch=2)).until_ns


def test_a_damaged_file_is_taken_for_the_longest_lease(place: Place) -> None:
    place.held(FIRST)
    (place.path / "lease/000000000002.json").write_bytes(b"{")
    assert place.held(replace(FIRST, holder="incarnation 2")).until_ns
    assert place.paused == [DURATION_MS_MAX * 11 // 10]


def test_a_destination_that_is_away_is_asked_again_and_the_lease_counts_from_the_first_time(place: Place) -> None:
    lease = place.held(FIRST)
    asked_at, steps = place.now, lease.renew()
    step = next(steps)
    for _ in range(3):
        place.pause(steps.throw(DestinationError("it is away")).until_ns)  # type: ignore[union-attr]
        assert lease.problem == "it is away"
        assert next(steps) == step
    steps.close()
    steps = lease.renew()
    next(steps)
    asked_again = place.now
    place.pause(steps.throw(DestinationError("it is away")).until_ns)  # type: ignore[union-attr]
    place.run(steps)
    assert asked_at < asked_again < place.now
    assert lease.problem == ""
    assert lease.until_ns == asked_again + 2_700 * MS
