"""Opening links: name resolution, connecting, hello, and trying again until there is no more time."""

import random
import socket
import time
from collections.abc import Callable
from typing import Final

from seglog.address import Address
from seglog.link import Link
from seglog_protocol.errors import ClientTimeoutError, ConnectionLostError, NotReachableError, SeglogError
from seglog_protocol.messages import PROTOCOL_NAME, HelloReply, HelloRequest

BACKOFF_FIRST_SECONDS: Final = 0.05
BACKOFF_MAX_SECONDS: Final = 1.0
ATTEMPT_SECONDS_MAX: Final = 5.0
"""One attempt to connect and say hello, so that an address that swallows packets leaves time for the next one."""


def backoff_seconds(attempt: int, random_source: Callable[[], float] = random.random) -> float:
    """How long to wait after failed attempt number ``attempt`` (from 0): doubling, capped, and spread by a half."""
    delay = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(attempt, 16))
    return delay * (0.5 + random_source() / 2)


class Dialer:
    """Opens links to one address."""

    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self.client_id = client_id

    @property
    def server(self) -> str:
        """The address as text."""
        return str(self.address)

    def dial(self, timeout: float) -> Link:
        """A link, after as many attempts as fit into ``timeout`` seconds; at least one is made.

        NotReachableError when none succeeds. An answer that no waiting can change, for example of something that is not
        a seglog broker, is raised at once.
        """
        deadline = time.monotonic() + timeout
        attempt = 0
        while True:
            try:
                return self.dial_once(deadline - time.monotonic())
            except NotReachableError as error:
                delay = backoff_seconds(attempt)
                if time.monotonic() + delay >= deadline:
                    raise NotReachableError(
                        f"{error.message} (tried for {timeout:g} s); is seglogd running there?", server=self.server
                    ) from error
            time.sleep(delay)
            attempt += 1

    def dial_once(self, timeout: float) -> Link:
        """One attempt, at most ATTEMPT_SECONDS_MAX long. NotReachableError when another one may help."""
        timeout = min(max(timeout, 0.001), ATTEMPT_SECONDS_MAX)
        try:
            connected = socket.create_connection(self.address, timeout)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotReachableError(f"no broker answers at {self.server}: {reason}", server=self.server) from error
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(connected, self.server)
            request = HelloRequest(protocol=PROTOCOL_NAME, client=self.client_id)
            link.hello, _ = link.call(request, HelloReply, timeout=timeout)
        except (ClientTimeoutError, ConnectionLostError) as error:
            connected.close()
            raise NotReachableError(
                f"what listens at {self.server} does not answer: {error.message}", server=self.server
            ) from error
        except SeglogError as error:
            connected.close()
            if error.retriable:
                raise NotReachableError(error.message, server=self.server) from error
            raise
        except BaseException:
            connected.close()
            raise
        return link
