"""What opening a connection means, whichever way the bytes go: the first words, what a failure says, how long to wait.

Without socket or clock; ``Dialer`` of each face does the rest.
"""

import random
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
ATTEMPT_SECONDS_MAX: Final = 5.0
"""One attempt to connect and say hello, so that an address that swallows packets leaves time for the next one."""

CONNECT_TIMEOUT_SECONDS: Final = 10.0
REQUEST_TIMEOUT_SECONDS: Final = 30.0
CLIENT_ID: Final = "seglog-python"


def backoff_seconds(attempt: int, random_source: Callable[[], float] = random.random) -> float:
    """How long to wait after failed attempt number ``attempt`` (from 0): doubling, capped, and spread by a half."""
    delay = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(attempt, 16))
    return delay * (0.5 + random_source() / 2)


def attempt_seconds(remaining: float) -> float:
    """How long one attempt may take when ``remaining`` seconds are left; never nothing."""
    return min(max(remaining, 0.001), ATTEMPT_SECONDS_MAX)


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
    return NotReachableError(f"no broker answers at {server}: {reason}", server=server)


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
                f"{error.message} (tried for {self._timeout:g} s); is seglogd running there?", server=error.server
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
