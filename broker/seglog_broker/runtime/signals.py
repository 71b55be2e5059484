"""Signals to the daemon: stop, or read the configuration again.

SIGTERM and SIGINT stop it; a second one ends the process at once, and the next start recovers. SIGHUP has two meanings
on Unix. With a configuration file, or one with a certificate, it means to read that again. But a closed terminal sends
it, too, and then it stops the broker cleanly, as it does without a file. Under ``nohup`` it never stops the broker.

These are plain handlers rather than trio's ``open_signal_receiver``, which needs a running task: while a large
directory is loaded no task runs, yet a second Ctrl-C has to work.
"""

import contextlib
import errno
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import trio

EXIT_BEFORE_SERVING: Final = 0
"""The exit code of a stop before the broker serves: there is nothing to finish."""

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_TERMINAL: Final = "/dev/tty"
_NO_TERMINAL: Final = frozenset({errno.ENXIO, errno.EIO, errno.ENOENT, errno.ENODEV, errno.ENOTTY})


def has_terminal() -> bool:
    """Whether the process has a controlling terminal; it loses a closed one before it gets the signal."""
    try:
        os.close(os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in _NO_TERMINAL  # no descriptor or no permission: not known
    return True


class Signals:
    """Handles the signals of the process within a ``with`` block.

    Before ``attach`` a stop ends the process at once, without an exception, which could be raised inside an import; a
    reload is kept for later.
    """

    def __init__(self, has_terminal: Callable[[], bool] = has_terminal) -> None:
        self._reload_wanted = False  # before there was a loop
        self._has_file: bool | None = None
        self._has_terminal = has_terminal
        self._had_terminal = has_terminal()
        self._hangups_are_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._hung_up = False  # before ``note_configuration``
        self._impatient = False
        self.stop_wanted = False
        """Whether a stop was requested: for code that blocks the loop, such as loading."""
        self._previous: list[tuple[signal.Signals, object]] = []
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: Callable[[], object] = lambda: None
        self._reload: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        for number, handle in ((signal.SIGHUP, self._on_hangup), *((number, self._on_stop) for number in _STOPS)):
            self._previous.append((number, signal.signal(number, handle)))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handle in self._previous:
            signal.signal(number, handle)  # type: ignore[arg-type] # a value returned by `signal`

    def note_configuration(self, *, has_file: bool) -> None:
        """Set whether there is a file to read again, which decides the meaning of SIGHUP."""
        self._has_file = has_file
        if self._hung_up:
            self._on_hangup(signal.SIGHUP, None)

    def attach(self, stop: Callable[[], object], reload: Callable[[], object]) -> None:
        """From now on call ``stop`` and ``reload`` on the running loop. Must be called in a task."""
        import trio  # noqa: PLC0415 - the daemon's command line loads no event loop

        self._stop, self._reload, self._token = stop, reload, trio.lowlevel.current_trio_token()
        if self._reload_wanted:
            reload()

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        if self._token is None:
            os._exit(EXIT_BEFORE_SERVING)
        if self._impatient:
            os._exit(128 + number)
        self._impatient = self.stop_wanted = True
        self._ask(self._stop)

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        """Reload or stop. A closed terminal may send several, from the kernel and the shell: none forces an exit."""
        if self._has_file is None:
            self._hung_up = True
        elif not self._hangup_stops():
            self._reload_wanted = True
            self._ask(self._reload)
        elif self._token is None:
            os._exit(EXIT_BEFORE_SERVING)
        else:
            self.stop_wanted = True
            self._ask(self._stop)

    def _ask(self, callback: Callable[[], object]) -> None:
        if self._token is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the process is about to
                self._token.run_sync_soon(callback)

    def _hangup_stops(self) -> bool:
        if self._hangups_are_ignored:
            return False
        return not self._has_file or (self._had_terminal and not self._has_terminal())
