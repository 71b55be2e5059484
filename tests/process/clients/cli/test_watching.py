"""``--watch`` on a terminal: frames replace each other, and whatever ends it leaves the terminal as it was."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.process.clients.cli.terminal import ENTER, LEAVE, Terminal, frames
from tests.processes import seglog_command
from tests.unit.clients.cli.conftest import Typed
from tests.unit.clients.cli.test_cli import explained
from tests.unit.clients.fake_broker import FakeBroker, fake_broker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker(topics={"t": 2}) as running:
        running.script = explained(1, [0, 10], [20])
        yield running


@pytest.fixture
def watching(broker: FakeBroker) -> Iterator[Terminal]:
    terminal = Terminal(
        [*seglog_command(broker.address), "explain", "segments", "t", "1", "--watch"], COLUMNS="", LINES=""
    )
    yield terminal
    terminal.close()


def test_frames_replace_each_other_until_ctrl_c(watching: Terminal) -> None:
    shown = watching.until(lambda shown: len(frames(shown)) >= 2)
    assert shown.startswith(ENTER)
    assert shown.count(b"\x1b[2J") == 1, "the screen is cleared once: later frames are drawn over it"
    assert LEAVE not in shown
    for frame in frames(shown):
        assert frame.startswith(b"t-1: offsets 0 to 29, 3 segments, 1,500 bytes\x1b[K\r\n")
        assert frame.endswith(b"\x1b[J")
        assert frame.count(b"\r\n") < 24
    watching.process.send_signal(signal.SIGINT)
    after = watching.rest().split(LEAVE)
    assert len(after) == 2
    assert after[1].startswith(b"t-1: offsets 0 to 29")
    assert after[1].endswith(b"seglog: interrupted\r\n")
    assert watching.process.returncode == 130


def test_a_broker_that_goes_away_ends_it(watching: Terminal, broker: FakeBroker) -> None:
    watching.until(lambda shown: bool(frames(shown)))
    broker.script = explained(0, [0])
    shown = watching.rest()
    assert shown.count(LEAVE) == 1
    assert b"offline" in shown.split(LEAVE)[1]
    assert watching.process.returncode == 4


def test_a_signal_that_ends_it_puts_the_terminal_back_first(watching: Terminal) -> None:
    watching.until(lambda shown: bool(frames(shown)))
    watching.process.send_signal(signal.SIGTERM)
    assert watching.rest().endswith(LEAVE)
    assert watching.process.returncode == -signal.SIGTERM


def test_a_stop_puts_the_terminal_back_and_going_on_draws_again(watching: Terminal) -> None:
    watching.until(lambda shown: bool(frames(shown)))
    watching.process.send_signal(signal.SIGTSTP)
    watching.until(lambda shown: LEAVE in shown)
    os.waitpid(watching.process.pid, os.WUNTRACED)
    watching.process.send_signal(signal.SIGCONT)
    watching.until(lambda shown: bool(frames(shown.split(LEAVE)[1])))
    watching.process.send_signal(signal.SIGINT)
    assert watching.rest().count(ENTER) == watching.shown.count(LEAVE) == 2


def test_colours_are_for_those_who_want_them(broker: FakeBroker) -> None:
    command = [*seglog_command(broker.address), "explain", "segments", "t", "1", "--picture"]
    for variables, wants in (({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)):
        terminal = Terminal(command, **variables)
        try:
            assert (b"\x1b[" in terminal.rest()) is wants
        finally:
            terminal.close()


def test_elsewhere_than_on_a_terminal_it_is_refused(broker: FakeBroker, typed: Typed) -> None:
    code, out, errors = typed("--server", broker.address, "explain", "segments", "t", "1", "--watch")
    assert (code, out) == (2, "")
    assert errors.startswith("seglog: --watch: needs a terminal")
