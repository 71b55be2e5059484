"""Pages that are drawn again and again on a terminal: ``--watch``, which leaves it as it was, and ``seglog top``."""

import os
import pty
import select
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.processes import PATIENCE_SECONDS, Daemon, clean_environment, seglog, seglog_command
from tests.unit.clients.cli.conftest import Typed
from tests.unit.clients.cli.test_cli import explained
from tests.unit.clients.fake_broker import FakeBroker, fake_broker

ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"
BEGIN, END = b"\x1b[?2026h\x1b[H", b"\x1b[?2026l"


class Terminal:
    """A command on a terminal of 80 columns and 24 lines, which may be resized."""

    def __init__(self, command: Sequence[str], **variables: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=clean_environment(TERM="xterm", PYTHONIOENCODING="utf-8", **variables),
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""

    def resize(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self._ours, (lines, columns))

    def until(self, condition: Callable[[bytes], bool]) -> bytes:
        """Everything that was shown, once that is so."""
        while not condition(self.shown):
            readable, _, _ = select.select([self._ours], [], [], PATIENCE_SECONDS)
            assert readable, self.shown
            self.shown += os.read(self._ours, 1 << 16)
        return self.shown

    def rest(self) -> bytes:
        """Everything that was shown, once the command has ended."""
        try:
            while data := os.read(self._ours, 1 << 16):
                self.shown += data
        except OSError:  # what a terminal answers that nobody has open any more
            pass
        self.process.wait()
        return self.shown

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


def frames(shown: bytes) -> list[bytes]:
    return [part.partition(END)[0] for part in shown.split(BEGIN)[1:] if END in part]


# --- Watching ---------------------------------------------------------------------------------------------------------


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


# --- Top --------------------------------------------------------------------------------------------------------------


def test_it_outlives_its_broker_follows_the_width_and_leaves_the_last_page(running: Daemon) -> None:
    assert seglog(running.address, "topic", "create", "clicks", "--partitions", "2").returncode == 0
    terminal = Terminal(
        [*seglog_command(running.address), "top", "--interval", "0.1"], COLUMNS="", LINES="", NO_COLOR="1"
    )
    try:
        terminal.until(lambda shown: len(frames(shown)) >= 2)
        page = frames(terminal.shown)[-1].decode()
        assert page.startswith("seglogd/")
        assert "partitions   2 in 1 topic" in page
        terminal.resize(160, 40)
        terminal.until(lambda shown: any(is_wide(frame) for frame in frames(shown)))
        running.kill()
        terminal.until(lambda shown: b"no answer: " in frames(shown)[-1])
        away = frames(terminal.shown)[-1].decode()
        assert "partitions   2 in 1 topic" in away, "what was known stays"
        assert ", up " not in away
        assert "what follows is of " in away
        running.start()
        terminal.until(lambda shown: b"no answer: " not in frames(shown)[-1])
        terminal.process.send_signal(signal.SIGINT)
        after = terminal.rest().split(LEAVE)
        assert len(after) == 2
        assert after[1].startswith(b"seglogd/")
        assert after[1].endswith(b"seglog: interrupted\r\n")
        assert terminal.process.returncode == 130
    finally:
        terminal.close()


def is_wide(frame: bytes) -> bool:
    """Whether figures stand in four columns."""
    lines = frame.decode().replace("\x1b[K", "").split("\r\n")
    return len(lines[0]) == 160 and any("appends" in line and "append p99" in line for line in lines)
