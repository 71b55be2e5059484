"""``seglog top``: a live page that outlives its broker, one plain page in a pipe."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog.cli.top import SHARE, Watched
from seglog.client import Client, connect
from seglog_protocol.errors import AuthenticationError, NotReachableError, SeglogError
from seglog_protocol.messages import HelloReply, MetricFamily, MetricSample
from tests.process.clients.cli.terminal import LEAVE, Terminal, frames
from tests.processes import Daemon, daemon, free_port, on_terminal, seglog, seglog_command


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Daemon]:
    with daemon(tmp_path / "data") as started:
        assert seglog(started.address, "topic", "create", "clicks", "--partitions", "2").returncode == 0
        yield started


def test_it_outlives_its_broker_follows_the_width_and_leaves_the_last_page(running: Daemon) -> None:
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


def test_in_a_pipe_it_is_one_plain_page(running: Daemon) -> None:
    done = seglog(running.address, "top", "--interval", "0.1")
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("seglogd/")
    assert any(line.startswith("appends      0 B/s") for line in lines), "rates are there: it was asked twice"
    assert done.stderr == b""


def test_once_on_a_terminal_it_ends_and_has_colours_for_those_who_want_them(running: Daemon) -> None:
    command = [*seglog_command(running.address), "top", "--once", "--interval", "0.1"]
    code, shown = on_terminal(command)
    assert code == 0
    assert "\x1b[1m" in shown
    assert "\x1b[?1049h" not in shown
    code, shown = on_terminal(command, NO_COLOR="1")
    assert code == 0
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_json_is_refused_with_what_has_it(running: Daemon) -> None:
    done = seglog(running.address, "top", "--json")
    assert done.returncode == 2
    assert b"seglog metrics --json" in done.stderr


def test_without_a_broker_from_the_beginning_it_fails() -> None:
    done = seglog(f"127.0.0.1:{free_port()}", "top", "--once", "--connect-timeout", "0.1")
    assert (done.returncode, done.stdout) == (3, b"")


# --- When the broker is asked -----------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(Client):
    """A client whose readings take a time, or fail, and are counted; only that is asked of it."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._inner = client
        self._clock_of_test = clock
        self.took = 0.0
        self.asked = 0
        self.failure: SeglogError | None = None

    @property
    def server(self) -> str:
        return self._inner.server

    @property
    def broker(self) -> HelloReply:
        return self._inner.broker

    def samples(self, families: object = ()) -> list[MetricFamily]:
        self.asked += 1
        self._clock_of_test.now += self.took
        if self.failure is not None:
            raise self.failure
        return [MetricFamily("seglog_open_files", "gauge", "", [], [MetricSample([], self.asked)])]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slow(running: Daemon, clock: Clock) -> Iterator[Slow]:
    with connect(running.address) as client:
        yield Slow(client, clock)


def test_the_broker_is_asked_at_intervals(slow: Slow, clock: Clock) -> None:
    watched = Watched(slow, 2.0, clock)
    for _ in range(5):
        watched.refresh()
    assert slow.asked == 1
    clock.now = 2.0
    view = watched.refresh()
    assert slow.asked == 2
    assert view.before is not None


def test_one_that_takes_long_to_tell_is_asked_less_often(slow: Slow, clock: Clock) -> None:
    slow.took = 1.0
    watched = Watched(slow, 2.0, clock)
    clock.now = 1 / SHARE - 0.1
    watched.refresh()
    assert slow.asked == 1
    assert watched.due_in == pytest.approx(0.1)
    clock.now = 1 / SHARE
    watched.refresh()
    assert slow.asked == 2


def test_what_was_known_stays_while_the_broker_is_away(slow: Slow, clock: Clock) -> None:
    watched = Watched(slow, 2.0, clock)
    slow.failure = NotReachableError("no broker answers")
    clock.now = 2.0
    view = watched.refresh()
    assert (view.trouble, view.now.at, view.age) == ("no broker answers", watched.view.now.at, 2.0)
    clock.now = 3.5
    assert watched.refresh().age == 3.5, "it grows also where the broker is not asked"
    slow.failure, clock.now = None, 4.0
    assert watched.refresh().trouble == ""


def test_an_account_that_is_gone_ends_it(slow: Slow, clock: Clock) -> None:
    watched = Watched(slow, 2.0, clock)
    slow.failure = AuthenticationError("no")
    clock.now = 2.0
    with pytest.raises(AuthenticationError):
        watched.refresh()
