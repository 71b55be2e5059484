"""The fence of a broker with a lease: no byte of an answer leaves a connection unless the lease is held at that moment.

It is looked at right before each send, on the clock that goes on while the machine is suspended: whatever held the
broker up before, an fsync or a stop of the whole machine, the look comes behind it.
"""

from collections.abc import Callable
from typing import NoReturn

import trio

from seglog_broker.logger import get_logger
from seglog_broker.storage.io.clock import boottime_ns
from seglog_protocol.errors import SeglogError

log = get_logger()


class FenceError(OSError):
    """Nothing more may be sent on this connection: the broker does not hold its lease."""


class LeaseEndedError(SeglogError):
    """The broker may never acknowledge again. Never on the wire: the daemon ends."""


class Fence:
    """Open while the lease is held. The task of the backup tells it what becomes of the lease."""

    def __init__(self, now: Callable[[], int] = boottime_ns) -> None:
        """``now`` reads CLOCK_BOOTTIME in nanoseconds."""
        self.waits_for = "the place of the backup has not answered yet"
        """The reason why the lease is not held, or not renewed."""
        self.end_reason = ""
        """The sentence why it is lost for ever; empty while it is not."""
        self.until_ns = 0
        """The moment until which the lease is held."""
        self._now = now
        self._changed = trio.Event()
        self._is_lapse_told = True  # the start waits for it, which is no lapse

    @property
    def is_open(self) -> bool:
        """True while the lease is held."""
        return self._now() < self.until_ns

    def refusal(self) -> FenceError:
        """The error for what was to be sent while it is not open. The first after a while is logged."""
        if not self._is_lapse_told:
            self._is_lapse_told = True
            log.error("lease_lapsed", reason=self.waits_for)
        return FenceError("the broker does not hold its lease")

    def hold(self, until_ns: int) -> None:
        """The lease is held until then, unless it was lost."""
        if self.end_reason:
            return
        if self._is_lapse_told and self.until_ns:
            log.info("lease_renewed")
        self._is_lapse_told = False
        self.waits_for = "it was not renewed in time"
        self.until_ns = max(self.until_ns, until_ns)
        self._note_change()

    def wait_for(self, reason: str) -> None:
        """The lease is not held, or cannot be renewed now, for this reason."""
        self.waits_for = reason
        self._note_change()

    def end(self, reason: str) -> None:
        """The lease is another's for ever, or cannot be had; the sentence says why, and what to do."""
        self.until_ns = 0
        self.end_reason = self.waits_for = self.end_reason or reason
        self._note_change()

    async def watch(self) -> NoReturn:
        """Raise LeaseEndedError when the lease is lost for ever."""
        while not self.end_reason:
            await self._changed.wait()
        raise LeaseEndedError(self.end_reason)

    async def wait_open(self, tell: Callable[[str], None]) -> None:
        """Return when the lease is held; ``tell`` gets each new reason why it is not yet."""
        told = ""
        while not self.is_open:
            if self.waits_for != told:
                told = self.waits_for
                tell(told)
            await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
