"""Precise sleep. An event loop rounds its timers up to a millisecond, which is longer than most answers take."""

import signal
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final

import trio

SleepUntil = Callable[[float], Awaitable[None]]

_BY_ALARM_SECONDS: Final = 0.004
"""The last part of a sleep, timed by SIGALRM; the loop's own timer is used before."""


@contextmanager
def alarm_clock() -> Generator[SleepUntil, None, None]:
    """Yields a ``sleep_until`` in ``trio.current_time``, typically late by 0.1 ms; for one task at a time.

    Uses SIGALRM; outside the main thread, ``trio.sleep_until``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield trio.sleep_until
        return
    token = trio.lowlevel.current_trio_token()
    rung = trio.Event()

    def ring() -> None:
        nonlocal rung
        rung.set()
        rung = trio.Event()

    async def sleep_until(due: float) -> None:
        await trio.sleep_until(due - _BY_ALARM_SECONDS)
        while (remaining := due - trio.current_time()) > 0:
            signal.setitimer(signal.ITIMER_REAL, remaining)
            with trio.move_on_at(due):  # in case the alarm is lost
                await rung.wait()

    previous = signal.signal(signal.SIGALRM, lambda *_: token.run_sync_soon(ring))
    try:
        yield sleep_until
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
