"""The thread that keeps the lease for a broker, with a destination of its own: no upload must hold a renewal up."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from seglog_broker.backup.agent_messages import LeaseAwaited, LeaseHeld, LeaseLost, Trouble
from seglog_broker.backup.conditions import probe_conditions
from seglog_broker.backup.destination import Destination, DestinationError, NoConditionsError
from seglog_broker.backup.lease import Lease, LeaseLostError, Terms, run
from seglog_broker.storage.io.clock import boottime_ns

PAUSE_SECONDS_MAX: Final = 0.5
"""Between two looks at the clock: a pause counts no time in which the machine is suspended."""

Told = LeaseHeld | LeaseAwaited | LeaseLost | Trouble


class _ReleaseWantedError(Exception):
    """The broker stops."""


class LeaseThread:
    """Keeps the lease from ``start`` to ``release``.

    ``tell`` is called in the thread; LeaseLost and Trouble, which is final, are the last that it gets.
    """

    def __init__(self, open_destination: Callable[[], Destination], tell: Callable[[Told], None]) -> None:
        self._open_destination = open_destination
        self._tell = tell
        self._release_wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._told = ""

    def start(self, own: Terms) -> None:
        """Begin, when the place is the broker's. Another call does nothing: two threads would depose each other."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, args=(Lease(own, boottime_ns),), daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the lease up where it is held; returns when that is done. Nothing must be acknowledged any more."""
        self._release_wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, lease: Lease) -> None:
        try:
            with closing(self._opened(lease)) as destination:
                try:
                    run(lease.keep(self._note_held), destination, lambda until_ns: self._pause(lease, until_ns))
                except _ReleaseWantedError:
                    run(lease.release(), destination, lambda _: time.sleep(PAUSE_SECONDS_MAX))
        except _ReleaseWantedError:
            pass
        except LeaseLostError as lost:
            self._tell(LeaseLost(str(lost)))
        except NoConditionsError as lies:
            self._tell(Trouble(str(lies), is_final=True))

    def _opened(self, lease: Lease) -> Destination:
        """The destination, which keeps its word. Raises NoConditionsError."""
        while True:
            try:
                destination = self._open_destination()
                try:
                    probe_conditions(destination)
                except BaseException:
                    destination.close()
                    raise
            except NoConditionsError:
                raise
            except DestinationError as error:
                lease.problem = str(error)
                self._pause(lease, boottime_ns() + 1_000_000_000)
            else:
                lease.problem = ""
                return destination

    def _note_held(self, until_ns: int) -> None:
        self._told = ""
        self._tell(LeaseHeld(until_ns))

    def _pause(self, lease: Lease, until_ns: int) -> None:
        """Wait, not longer than a look at the clock may be away. Raises _ReleaseWantedError."""
        reason = lease.problem or lease.waits_for
        if reason != self._told:
            self._told = reason
            if reason:
                self._tell(LeaseAwaited(reason))
        if self._release_wanted.wait(min((until_ns - boottime_ns()) / 1e9, PAUSE_SECONDS_MAX)):
            raise _ReleaseWantedError
