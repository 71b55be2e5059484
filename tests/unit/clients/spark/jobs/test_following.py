import os
import signal
from collections.abc import Callable

import pytest

from seglog.cli.terminal import handled
from seglog_protocol.errors import (
    BrokerStoppingError,
    ClientTimeoutError,
    ConnectionLostError,
    NotReachableError,
    SeglogError,
    UnknownTopicError,
)
from seglog_spark.jobs.archive import AGAIN_SECONDS, follow, passes
from seglog_spark.planning import DataLossError

Round = Callable[[], object]


class Clock:
    """Stands still but for what sleeps, and for rounds that say how long they take."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def followed(*rounds: float | SeglogError, seconds: float = 60.0) -> tuple[list[float], list[str]]:
    """When rounds began that took so long, or failed at once, and what was said; then comes an interrupt."""
    clock, began, said = Clock(), list[float](), list[str]()
    coming = iter(rounds)

    def one_round() -> None:
        began.append(clock.now)
        outcome = next(coming, None)
        if outcome is None:
            raise KeyboardInterrupt
        if isinstance(outcome, SeglogError):
            raise outcome
        clock.now += outcome

    follow(one_round, seconds, said.append, now=lambda: clock.now, sleep=clock.sleep)
    return began, said


def test_rounds_begin_when_their_time_has_come_or_the_last_one_is_done() -> None:
    assert followed() == ([0], [])
    assert followed(0, 10, 59.5, 60, 150, 1) == ([0, 60, 120, 180, 240, 390, 450], [])


def test_a_temporary_error_is_reported_once_and_waited_out() -> None:
    away, full = ConnectionLostError("the broker is away."), NotReachableError("nobody answers")
    began, said = followed(0, away, away, full, 0, 0, away, seconds=3600)
    again = 3600 + AGAIN_SECONDS
    assert began == [0, 3600, again, again + AGAIN_SECONDS, again + 2 * AGAIN_SECONDS, *(began[5:])]
    assert began[5:] == [began[4] + 3600, began[4] + 7200, began[4] + 7200 + AGAIN_SECONDS]
    assert said == [
        "the broker is away; trying again until it succeeds",
        "nobody answers; trying again until it succeeds",
        "it works again",
        "the broker is away; trying again until it succeeds",
    ]


def test_an_error_that_stays_ends_it() -> None:
    with pytest.raises(DataLossError, match="gone"):
        followed(0, DataLossError("gone"))
    with pytest.raises(ZeroDivisionError):
        follow(lambda: 1 // 0, 60, print)


def test_what_passes_is_the_brokers_absence_and_its_troubles() -> None:
    passing = (BrokerStoppingError(""), ClientTimeoutError(""), ConnectionLostError(""), NotReachableError(""))
    assert all(map(passes, passing))
    assert not any(map(passes, (UnknownTopicError(""), DataLossError(""))))


def test_a_termination_is_an_interrupt_in_its_block_and_nowhere_else() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with handled(signal.default_int_handler, signal.SIGTERM), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_between_rounds_ends_it() -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    rounds: list[None] = []
    follow(lambda: rounds.append(None), 60, print, sleep=interrupted)
    assert rounds == [None]
