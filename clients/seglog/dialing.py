"""What opening a connection means, whichever way the bytes go: the first words, what a failure says, how long to wait.

Opens no socket and reads no clock; ``Dialer`` of each face does the rest.
"""

import logging
import random
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
"""One attempt to connect and say hello, so that an address that swallows packets leaves time for the next one.

The first is short, so that within a second it is known, and said, that an address takes connections and says nothing.
"""

TOLD_AFTER_SECONDS: Final = 0.4
"""A broker that is back sooner was not away."""
TOLD_AGAIN_SECONDS: Final = 10.0
_FORGOTTEN_AFTER_SECONDS: Final = 60.0

CONNECT_TIMEOUT_SECONDS: Final = 10.0
REQUEST_TIMEOUT_SECONDS: Final = 30.0
CLIENT_ID: Final = "seglog-python"

_log = logging.getLogger(__name__)


def backoff_seconds(attempt: int, random_source: Callable[[], float] = random.random) -> float:
    """How long to wait after failed attempt number ``attempt`` (from 0): doubling, capped, and spread by a half."""
    delay = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(attempt, 16))
    return delay * (0.5 + random_source() / 2)


def hello_request(client_id: str) -> HelloRequest:
    """The first request of every connection."""
    return HelloRequest(protocol=PROTOCOL_NAME, client=client_id)


def check_cluster(server: str, expected: str, hello: HelloReply) -> None:
    """InconsistentClusterIdError when this is not the log directory that was there before; "" is any."""
    if expected and hello.cluster_id != expected:
        raise InconsistentClusterIdError(
            f"what answers at {server} is not the broker that was there before, or its log directory was replaced: "
            f"its cluster id is {hello.cluster_id or 'not told'}, and was {expected}",
            server=server,
            cluster_id=hello.cluster_id,
            expected=expected,
        )


def refused(server: str, error: OSError) -> NotReachableError:
    """No connection came about."""
    reason = error.strerror or str(error) or type(error).__name__
    what = "there is no host of the name in" if _is_unknown_host(error) else "no broker answers at"
    return NotReachableError(f"{what} {server}: {reason}", server=server)


def is_unknown_host(error: NotReachableError) -> bool:
    """Whether the address names a host that does not exist: waiting will seldom change that."""
    return _is_unknown_host(error.__cause__)


def _is_unknown_host(error: BaseException | None) -> bool:
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME


class Outage:
    """How long no broker has answered at one address, and the log about it: that a client waits, and when that is over.

    Shared by all connections of one client; times are seconds of one monotonic clock.
    """

    def __init__(self, server: str) -> None:
        self.has_answered = False
        """Whether a broker has ever answered there."""
        self._server = server
        self._lock = threading.Lock()
        self._failed = 0
        self._since = self._last = 0.0
        self._told_at: float | None = None

    def attempt_seconds(self, remaining: float) -> float:
        """How long the next attempt may take when ``remaining`` seconds are left; never nothing."""
        return min(max(remaining, 0.001), ATTEMPT_SECONDS_MAX, ATTEMPT_FIRST_SECONDS * 2.0 ** min(self._failed, 16))

    def failed(self, error: SeglogError, began: float, now: float) -> None:
        """An attempt that began then has failed now; logged when the outage is no mere hiccup."""
        with self._lock:
            if not self._failed or began - self._last > _FORGOTTEN_AFTER_SECONDS:
                self._failed, self._since, self._told_at = 0, began, None
            self._failed += 1
            self._last = now
            seconds = now - self._since
            last_told = self._told_at
            if now - (self._since + TOLD_AFTER_SECONDS - TOLD_AGAIN_SECONDS if last_told is None else last_told) < (
                TOLD_AGAIN_SECONDS
            ):
                return
            self._told_at = now
        if last_told is None:
            _log.warning("waiting for %s: %s", self._server, _reason_of(error))
        else:
            _log.warning("still waiting for %s, for %.0f s now: %s", self._server, seconds, _reason_of(error))

    def ended(self, now: float) -> None:
        """A broker has answered."""
        with self._lock:
            was_told, seconds = self._told_at is not None, now - self._since
            self._failed, self._told_at, self.has_answered = 0, None, True
        if was_told:
            _log.warning("%s is back after %.1f s", self._server, seconds)


def _reason_of(error: SeglogError) -> str:
    cause = error.__cause__
    if isinstance(cause, ClientTimeoutError):
        return "it takes connections, and does not answer"
    return cause.strerror if isinstance(cause, OSError) and cause.strerror else error.message


class Attempts:
    """How often to try within ``timeout`` seconds from ``now`` on; at least once."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._deadline = now + timeout
        self._failed = 0

    def seconds(self, now: float) -> float:
        """How much time is left."""
        return self._deadline - now

    def failed(self, error: NotReachableError, now: float) -> float:
        """How long to wait before the next attempt; NotReachableError when there is no time for one."""
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
    """Around the first call: what another attempt may cure becomes NotReachableError, the rest stays as it is."""
    try:
        yield
    except (ClientTimeoutError, ConnectionLostError) as error:
        raise NotReachableError(f"what listens at {server} does not answer: {error.message}", server=server) from error
    except SeglogError as error:
        if error.retriable:
            raise NotReachableError(error.message, server=server) from error
        raise
