"""The daemon's handling of signals, tested without a daemon."""

import os
import signal

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.runtime.signals import Signals


class Asked:
    def __init__(self) -> None:
        self.stops = 0
        self.reloads = 0

    def stop(self) -> None:
        self.stops += 1

    def reload(self) -> None:
        self.reloads += 1


async def asked_by(number: signal.Signals, *, has_file: bool, leaves: bool = False, terminal: bool = True) -> Asked:
    asked = Asked()
    has_terminal = terminal
    with Signals(lambda: has_terminal) as caught:
        caught.note_configuration(has_file=has_file)
        caught.attach(asked.stop, asked.reload)
        if leaves:
            has_terminal = False
        os.kill(os.getpid(), number)
        await wait_all_tasks_blocked()
        await trio.lowlevel.checkpoint()
    return asked


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
    number: signal.Signals, has_file: bool, leaves: bool, stops: int, reloads: int
) -> None:
    asked = await asked_by(number, has_file=has_file, leaves=leaves)
    assert (asked.stops, asked.reloads) == (stops, reloads)


async def test_without_a_terminal_from_the_start_a_hangup_asks_for_a_reload() -> None:
    asked = await asked_by(signal.SIGHUP, has_file=True, terminal=False)
    assert (asked.stops, asked.reloads) == (0, 1)


@pytest.mark.parametrize("has_file", [False, True])
async def test_under_nohup_a_terminal_that_is_closed_stops_nothing(has_file: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asked = await asked_by(signal.SIGHUP, has_file=has_file, leaves=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert asked.stops == 0


async def test_hangups_that_come_before_the_loop_are_kept_for_it() -> None:
    asked = Asked()
    with Signals(lambda: True) as caught:
        os.kill(os.getpid(), signal.SIGHUP)  # nothing is known of a file yet
        caught.note_configuration(has_file=True)
        os.kill(os.getpid(), signal.SIGHUP)
        caught.attach(asked.stop, asked.reload)
        await wait_all_tasks_blocked()
    assert (asked.stops, asked.reloads) == (0, 1)


async def test_hangups_never_end_the_process_at_once() -> None:
    """Hangups never end the process there and then and a first stop after them neither."""
    asked = Asked()
    with Signals(lambda: True) as caught:
        caught.note_configuration(has_file=False)
        caught.attach(asked.stop, asked.reload)
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        await wait_all_tasks_blocked()
    assert asked.stops == 4


def test_a_signal_after_the_loop_has_ended_is_no_error() -> None:
    asked = Asked()
    with Signals(lambda: True) as caught:
        caught.note_configuration(has_file=False)

        async def attach() -> None:
            caught.attach(asked.stop, asked.reload)
            await trio.lowlevel.checkpoint()

        trio.run(attach)
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked.stops == 0
