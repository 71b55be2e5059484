"""Attempts again: when, for how long, and what the client's log says of the wait, which would else be silent.

Two things are waited for: a broker that does not answer (``Outage``, ``Attempts``), and one that asks to try again
(``Waiting``), such as for a partition in recovery, which may take minutes and is waited for without a limit.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from seglog.core.errors import count_of, seconds_of
from seglog_protocol.errors import ClientTimeoutError, ConnectionLostError, NotReachableError, SeglogError

BACKOFF_FIRST_SECONDS: Final = 0.05
BACKOFF_MAX_SECONDS: Final = 1.0
ATTEMPT_FIRST_SECONDS: Final = 0.6
ATTEMPT_SECONDS_MAX: Final = 5.0
"""Limit for one attempt to connect and say hello, so that an address that drops packets leaves time for another.

The first attempt is short, so that a server that accepts connections but does not answer is reported within a second.
"""

OUTAGE_LOGGED_SECONDS: Final = 0.4
"""Shorter outages are not logged."""
WAIT_LOGGED_SECONDS: Final = 3.0
"""Shorter waits for a broker that asks to try again are not logged."""
LOG_AGAIN_SECONDS: Final = 10.0

_OUTAGE_RESET_SECONDS: Final = 60.0
_TRY_AGAIN: Final = ": try again"
"""The end of such an error's message, which is advice for programs that have to retry by themselves."""

_log = logging.getLogger(__name__)


def backoff_seconds(attempt: int, random_source: Callable[[], float] | None = None) -> float:
    """Seconds to wait after failed attempt ``attempt`` (from 0): exponential, capped, with jitter of up to half."""
    delay = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(attempt, 16))
    if random_source is None:
        import random  # noqa: PLC0415 - takes 3 ms, which a command that reaches the broker at once need not wait

        random_source = random.random
    return delay * (0.5 + random_source() / 2)


class Outage:
    """Duration of an outage of one address, and its log messages: that the client waits, and when the outage is over.

    Shared by all connections of one client; times are seconds of one monotonic clock.
    """

    def __init__(self, server: str) -> None:
        self.has_answered = False
        """Whether a broker has ever answered at the address."""
        self._server = server
        self._lock = threading.Lock()
        self._failed = 0
        self._since = self._last = 0.0
        self._logged_at: float | None = None

    def attempt_seconds(self, remaining: float) -> float:
        """How long the next attempt may take when ``remaining`` seconds are left; more than 0."""
        return min(max(remaining, 0.001), ATTEMPT_SECONDS_MAX, ATTEMPT_FIRST_SECONDS * 2.0 ** min(self._failed, 16))

    def failed(self, error: SeglogError, began: float, now: float) -> None:
        """Note an attempt that failed at ``now``; logged once the outage is long enough."""
        with self._lock:
            if not self._failed or began - self._last > _OUTAGE_RESET_SECONDS:
                self._failed, self._since, self._logged_at = 0, began, None
            self._failed += 1
            self._last = now
            seconds = now - self._since
            last_logged = self._logged_at
            is_due = seconds >= OUTAGE_LOGGED_SECONDS if last_logged is None else now - last_logged >= LOG_AGAIN_SECONDS
            if not is_due:
                return
            self._logged_at = now
        if last_logged is None:
            _log.warning("waiting for %s: %s", self._server, _reason_of(error))
        else:
            _log.warning("still waiting for %s, for %.0f s now: %s", self._server, seconds, _reason_of(error))

    def ended(self, now: float) -> None:
        """End the outage: a broker has answered."""
        with self._lock:
            was_logged, seconds = self._logged_at is not None, now - self._since
            self._failed, self._logged_at, self.has_answered = 0, None, True
        if was_logged:
            _log.warning("%s is back after %.1f s", self._server, seconds)


def _reason_of(error: SeglogError) -> str:
    cause = error.__cause__
    if isinstance(cause, ClientTimeoutError):
        return "it takes connections, and does not answer"
    if isinstance(cause, ConnectionLostError):
        return "it closes connections without an answer"
    return cause.strerror if isinstance(cause, OSError) and cause.strerror else error.message


class Attempts:
    """The attempts that fit into ``timeout`` seconds from ``now`` on; at least one."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._deadline = now + timeout
        self._failed = 0

    def seconds(self, now: float) -> float:
        """Seconds left."""
        return self._deadline - now

    def failed(self, error: NotReachableError, now: float) -> float:
        """Seconds to wait before the next attempt. Raises NotReachableError when no time is left."""
        delay = backoff_seconds(self._failed)
        if now + delay >= self._deadline:
            is_closed = isinstance(error.__cause__, ConnectionLostError)
            lease = ", and does it hold its lease (see its /readyz)" if is_closed else ""
            raise NotReachableError(
                f"{error.message} (tried for {round(self._timeout, 1):g} s); is seglogd running there{lease}?",
                server=error.server,
            ) from error
        self._failed += 1
        return delay


class Waiting:
    """The log messages of one reader; times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._since = 0.0
        self._logged_at: float | None = None

    def failed(self, error: SeglogError, since: float, now: float, more: int = 0) -> None:
        """Note that an attempt has failed, as all have ``since`` then, and likewise in ``more`` partitions."""
        if self._logged_at is None:
            is_due = now >= since + WAIT_LOGGED_SECONDS
        else:
            is_due = now >= self._logged_at + LOG_AGAIN_SECONDS
        if not is_due or isinstance(error, ConnectionLostError | NotReachableError):
            return
        self._since, self._logged_at = since, now
        others = f"; {count_of(more, 'other partition')} cannot be read either" if more else ""
        _log.warning("waiting for %s: %s%s", seconds_of(now - since), error.message.removesuffix(_TRY_AGAIN), others)

    def ended(self, now: float) -> None:
        """Note that nothing is waited for."""
        if self._logged_at is not None:
            _log.warning("the wait is over after %s", seconds_of(now - self._since))
            self._logged_at = None


class Retries:
    """Retry times after errors that a new connection may fix."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None
        self._attempts = 0
        self._waiting = Waiting()

    def worked(self) -> None:
        """Reset after a success."""
        self._since, self._attempts = None, 0

    def failed(self, error: SeglogError, now: float) -> tuple[float, float]:
        """Seconds to wait before reconnecting, and seconds that connecting may take. Raises a final ``error``."""
        if not (error.retriable or isinstance(error, ClientTimeoutError)):
            raise error
        self._since = now if self._since is None else self._since
        remaining = self._since + self._timeout - now
        if remaining <= 0:
            raise error
        pause = min(remaining, backoff_seconds(self._attempts - 1)) if self._attempts else 0.0
        self._attempts += 1
        self._waiting.failed(error, self._since, now)
        return pause, remaining - pause
