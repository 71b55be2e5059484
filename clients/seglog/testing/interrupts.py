"""Calls in threads of their own, and those that no interrupt may cut short."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

T = TypeVar("T")

INTERRUPTED_SECONDS_MAX: Final = 5.0
"""How long an interrupted caller still waits for the end of what it has called."""


def thread_of(fn: Callable[[], T], name: str) -> tuple[threading.Thread, Future[T]]:
    """A thread, to be started, that calls ``fn`` once; and what comes of it."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(fn())
        except BaseException as error:  # noqa: BLE001 - the caller's
            done.set_exception(error)

    return threading.Thread(target=run, name=name, daemon=True), done


def uninterrupted(fn: Callable[[], None]) -> None:
    """Call ``fn`` in a thread of its own, and return when that has ended. Raises what ``fn`` raises.

    KeyboardInterrupt reaches the main thread alone, and there at any step: between a socket taken from a list and its
    close, or within the standard library. Here it is raised once ``fn`` is done.
    """
    thread, done = thread_of(fn, "seglog testing end")
    try:
        thread.start()
        failure = done.exception()
        thread.join()
    except KeyboardInterrupt:
        if wait([done], INTERRUPTED_SECONDS_MAX).done:  # join() raises for a thread whose start() was cut short
            thread.join()
        raise
    if failure is not None:
        raise failure
