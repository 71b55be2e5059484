"""``seglog top`` on a terminal: a live page that outlives its broker."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.clients.cli.terminal import LEAVE, Terminal, frames
from tests.processes import Daemon, daemon, on_terminal, seglog, seglog_command


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
