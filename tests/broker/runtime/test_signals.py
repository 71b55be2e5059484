"""The daemon's handling of signals, tested without a daemon."""

import os
import signal

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.runtime import signals
from seglog_broker.runtime.signals import Signals


class Asked:
    def __init__(self) -> None:
        self.stops = 0
        self.reloads = 0

    def stop(self) -> None:
        self.stops += 1

    def reload(self) -> None:
        self.reloads += 1


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Set whether there is a terminal; the last call counts."""
    has = [True]
    monkeypatch.setattr(signals, "_has_terminal", lambda: has[-1])
    return has


async def asked_by(number: signal.Signals, *, has_file: bool, terminal: list[bool], leaves: bool) -> Asked:
    asked = Asked()
    with Signals() as caught:
        caught.note_configuration(has_file=has_file)
        caught.attach(asked.stop, asked.reload)
        if leaves:
            terminal.append(False)
        os.kill(os.getpid(), number)
        await wait_all_tasks_blocked()
        await trio.lowlevel.checkpoint()
    return asked


@pytest.mark.trio
@pytest.mark.parametrize(
    ("number", "has_file", "leaves", "stops", "reloads"),
    [
        (signal.SIGTERM, True, False, 1, 0),
        (signal.SIGINT, False, False, 1, 0),
        (signal.SIGHUP, False, False, 1, 0),
        (signal.SIGHUP, False, True, 1, 0),
        (signal.SIGHUP, True, False, 0, 1),
        (signal.SIGHUP, True, True, 1, 0),
    ],
)
async def test_the_action_depends_on_signal_file_and_terminal(
    number: signal.Signals, has_file: bool, leaves: bool, stops: int, reloads: int, terminal: list[bool]
) -> None:
    asked = await asked_by(number, has_file=has_file, terminal=terminal, leaves=leaves)
    assert (asked.stops, asked.reloads) == (stops, reloads)


@pytest.mark.trio
async def test_without_a_terminal_from_the_start_a_hangup_asks_for_a_reload(terminal: list[bool]) -> None:
    terminal.append(False)
    asked = await asked_by(signal.SIGHUP, has_file=True, terminal=terminal, leaves=False)
    assert (asked.stops, asked.reloads) == (0, 1)


@pytest.mark.trio
@pytest.mark.parametrize("has_file", [False, True])
async def test_under_nohup_a_terminal_that_is_closed_stops_nothing(has_file: bool, terminal: list[bool]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asked = await asked_by(signal.SIGHUP, has_file=has_file, terminal=terminal, leaves=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert asked.stops == 0


@pytest.mark.trio
async def test_hangups_that_come_before_the_loop_are_kept_for_it(terminal: list[bool]) -> None:
    asked = Asked()
    with Signals() as caught:
        os.kill(os.getpid(), signal.SIGHUP)  # nothing is known of a file yet
        caught.note_configuration(has_file=True)
        os.kill(os.getpid(), signal.SIGHUP)
        caught.attach(asked.stop, asked.reload)
        await wait_all_tasks_blocked()
    assert (asked.stops, asked.reloads) == (0, 1)


@pytest.mark.trio
async def test_hangups_never_end_the_process_there_and_then_and_a_first_stop_after_them_neither(
    terminal: list[bool],
) -> None:
    asked = Asked()
    with Signals() as caught:
        caught.note_configuration(has_file=False)
        caught.attach(asked.stop, asked.reload)
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        await wait_all_tasks_blocked()
    assert asked.stops == 4


def test_a_signal_after_the_loop_has_ended_is_no_error(terminal: list[bool]) -> None:
    asked = Asked()
    with Signals() as caught:
        caught.note_configuration(has_file=False)

        async def attach() -> None:
            caught.attach(asked.stop, asked.reload)
            await trio.lowlevel.checkpoint()

        trio.run(attach)
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked.stops == 0
