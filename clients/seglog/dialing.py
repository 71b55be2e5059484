"""The part of opening a connection that does no I/O: the hello request, error messages, backoff and outage logging.

The blocking and the trio ``Dialer`` do the rest.
"""

import logging
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from seglog_protocol.errors import (
    ClientTimeoutError,
    ConnectionLostError,
    InconsistentClusterIdError,
    NotReachableError,
    SeglogError,
)
from seglog_protocol.messages import PROTOCOL_NAME, HelloReply, HelloRequest

BACKOFF_FIRST_SECONDS: Final = 0.05
BACKOFF_MAX_SECONDS: Final = 1.0
ATTEMPT_FIRST_SECONDS: Final = 0.6
ATTEMPT_SECONDS_MAX: Final = 5.0
"""Limit for one attempt to connect and say hello, so that an address that drops packets leaves time for another.

The first attempt is short, so that a server that accepts connections but does not answer is reported within a second.
"""

LOG_AFTER_SECONDS: Final = 0.4
"""Shorter outages are not logged."""
LOG_AGAIN_SECONDS: Final = 10.0
_OUTAGE_RESET_SECONDS: Final = 60.0

CONNECT_TIMEOUT_SECONDS: Final = 10.0
REQUEST_TIMEOUT_SECONDS: Final = 30.0
CLIENT_ID: Final = "seglog-python"

_log = logging.getLogger(__name__)


def backoff_seconds(attempt: int, random_source: Callable[[], float] | None = None) -> float:
    """Seconds to wait after failed attempt ``attempt`` (from 0): exponential, capped, with jitter of up to half."""
    delay = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(attempt, 16))
    if random_source is None:
        import random  # noqa: PLC0415 - takes 3 ms, which a command that reaches the broker at once need not wait

        random_source = random.random
    return delay * (0.5 + random_source() / 2)


def hello_request(client_id: str) -> HelloRequest:
    """The first request of every connection."""
    return HelloRequest(protocol=PROTOCOL_NAME, client=client_id)


def check_cluster(server: str, expected: str, hello: HelloReply) -> None:
    """Raises InconsistentClusterIdError unless the broker's cluster id is ``expected``; "" accepts any."""
    if expected and hello.cluster_id != expected:
        raise InconsistentClusterIdError(
            f"what answers at {server} is not the broker that was there before, or its log directory was replaced: "
            f"its cluster id is {hello.cluster_id or 'unknown'}, and was {expected}",
            server=server,
            cluster_id=hello.cluster_id,
            expected=expected,
        )


def refused(server: str, error: OSError) -> NotReachableError:
    """The error for a failed attempt to connect."""
    reason = error.strerror or str(error) or type(error).__name__
    what = "unknown host in" if _is_unknown_host(error) else "no broker answers at"
    return NotReachableError(f"{what} {server}: {reason}", server=server)


def is_unknown_host(error: NotReachableError) -> bool:
    """Whether the address names a host that does not exist, which waiting seldom fixes."""
    return _is_unknown_host(error.__cause__)


def _is_unknown_host(error: BaseException | None) -> bool:
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME


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
            if now - (self._since + LOG_AFTER_SECONDS - LOG_AGAIN_SECONDS if last_logged is None else last_logged) < (
                LOG_AGAIN_SECONDS
            ):
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
            raise NotReachableError(
                f"{error.message} (tried for {round(self._timeout, 1):g} s); is seglogd running there?",
                server=error.server,
            ) from error
        self._failed += 1
        return delay


@contextmanager
def saying_hello(server: str) -> Generator[None, None, None]:
    """For the first call: turns errors that a retry may fix into NotReachableError."""
    try:
        yield
    except (ClientTimeoutError, ConnectionLostError) as error:
        raise NotReachableError(f"what listens at {server} does not answer: {error.message}", server=server) from error
    except SeglogError as error:
        if error.retriable:
            raise NotReachableError(error.message, server=server) from error
        raise
