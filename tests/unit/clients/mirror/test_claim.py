"""Whose a target's partitions are: a mirror's own place of before, a killed mirror's, and another one's that lives."""

from collections.abc import Sequence

import pytest

from seglog.mirror import claim
from seglog.mirror.claim import Claim
from seglog.mirror.cluster import Cluster, Member
from seglog.mirror.errors import MirrorError
from seglog.mirror.positions import Partition
from tests.unit.clients.hand_clock import HandClock

OWN = Member("mirror 1", "/host", frozenset({"t"}))
OTHER = Member("mirror 2", "/host", frozenset({"t", "u"}))


class Clock(HandClock):
    """Moves while somebody sleeps."""

    def sleep(self, seconds: float) -> None:
        self.pass_by(seconds)


class Coordinator(Cluster):
    """Answers each question with the next members and after as many seconds; the last answer stays."""

    def __init__(self, clock: Clock, *answers: tuple[float, Sequence[Member]]) -> None:
        self.name = "kafka://target"
        self.client_id = OWN.client_id
        self._clock = clock
        self._answers = list(answers)

    def members_of(self, group: str) -> list[Member]:
        assert group == "seglog-mirror"
        seconds, members = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self._clock.pass_by(seconds)
        return list(members)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(claim, "time", made)
    return made


def wait(coordinator: Coordinator) -> list[str]:
    """What it told meanwhile."""
    told: list[str] = []
    Claim(coordinator, [Partition("t", 0)], told.append)._wait_for_others()
    return told


def test_a_mirror_that_could_not_leave_a_target_that_was_away_waits_for_its_own_place(clock: Clock) -> None:
    assert wait(Coordinator(clock, (20.0, [OWN]), *[(0.1, [OWN])] * 40, (0.1, []))) == []


def test_a_killed_mirror_is_waited_for_however_long_the_target_was_away_meanwhile(clock: Clock) -> None:
    told = wait(Coordinator(clock, (20.0, [OTHER]), *[(0.1, [OTHER])] * 10, (15.0, [OTHER]), (6.0, [OTHER]), (0.1, [])))
    assert told == ["waiting for another mirror, mirror 2, to give up t: 6 s if it was killed"]


def test_a_mirror_that_stays_is_named(clock: Clock) -> None:
    with pytest.raises(MirrorError, match="another mirror, mirror 2 at host, writes t to kafka://target; stop it"):
        wait(Coordinator(clock, (0.1, [OWN, OTHER])))
