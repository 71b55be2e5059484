"""What signals ask of the daemon: to stop, or to read its configuration again.

SIGTERM and SIGINT stop it; a second of these two ends the process there and then, which is the crash that recovery is
made for. SIGHUP has two meanings on Unix. Where a configuration file is given it asks to read that again; but a
terminal that is closed sends it too, and then it stops the broker in good order, as it does where there is no file.
Under ``nohup`` it never stops it.

Plain handlers rather than trio's ``open_signal_receiver``: that one is heard by a task, and while a large directory is
being loaded no task runs, yet an impatient operator's second Ctrl-C has to work.
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
"""Of a signal that comes before serving has begun: nothing is under way, so nothing has to be put in order."""

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_TERMINAL: Final = "/dev/tty"
_NO_TERMINAL: Final = frozenset({errno.ENXIO, errno.EIO, errno.ENOENT, errno.ENODEV, errno.ENOTTY})


class Signals:
    """The signals of the process within a ``with`` block, from the first moment to the last.

    Before ``attach`` a stop ends the process at once, without an exception that would surface in whatever is being
    imported, and a reload is kept for later.
    """

    def __init__(self) -> None:
        self._reload_wanted = False  # before there was a loop
        self._has_file: bool | None = None
        self._had_terminal = _has_terminal()
        self._hangups_are_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._hung_up = False  # before it was known what that means
        self._impatient = False
        self.stop_wanted = False
        """Whether a stop has been asked for: for what keeps the loop from hearing of it, such as loading."""
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
            signal.signal(number, handle)  # type: ignore[arg-type] # what `signal` gave out it takes back

    def note_configuration(self, *, has_file: bool) -> None:
        """Tell whether there is a configuration file, on which the meaning of SIGHUP depends."""
        self._has_file = has_file
        if self._hung_up:
            self._on_hangup(signal.SIGHUP, None)

    def attach(self, stop: Callable[[], object], reload: Callable[[], object]) -> None:
        """From now on call these on the loop that runs. Call it in a task."""
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
        """A closed terminal may send more than one, from the system and from its shell: none ends it at once."""
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
        return not self._has_file or (self._had_terminal and not _has_terminal())


def _has_terminal() -> bool:
    """Whether the process has a controlling terminal; one that is closed is taken from it before it is signalled."""
    try:
        os.close(os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in _NO_TERMINAL  # no descriptor left, or no right to it: that says nothing
    return True
