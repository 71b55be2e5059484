"""Signals that end a command which has something to clean up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Endings:
    """Inside ``with``, Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt where that is ``allowed``, the first of them.

    Elsewhere they wait for that, so that what makes and removes files is not torn by them. A signal that was ignored
    before, as by ``nohup``, stays so. For the main thread alone.
    """

    def __init__(self) -> None:
        self._is_allowed = False
        self._is_asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Where a signal may raise KeyboardInterrupt; one that has come before raises it at once."""
        self._is_allowed = True
        try:
            if self._is_asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_allowed = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked = True
        if self._is_allowed:
            self._is_allowed = False
            raise KeyboardInterrupt
