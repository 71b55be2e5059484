"""Signals that ask a program to end, which a queue answers by finishing what it has begun."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """In this block the first of these signals calls ``stop``, which must not wait; the next one does what it ever did.

    In another thread than the main one, which alone gets signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def first(_number: int, _frame: object) -> None:
        restore()
        stop()

    for number in STOPPING:
        before[number] = signal.signal(number, first)
    try:
        yield
    finally:
        restore()
