"""The connection over which a consumer is a member of its group: opened when needed, shared by two threads."""

import threading
import time
from collections.abc import Callable, Sequence

from seglog.connection import Reply
from seglog.dialer import Dialer
from seglog.formatting import seconds_of
from seglog.link import Link
from seglog_protocol.errors import ClientTimeoutError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.messages import Request

SLICE_SECONDS = 0.25
"""How often a thread that waits for an answer looks whether the consumer is being closed."""


class CoordinatorLink:
    """A link that is opened by the first request, and again by the next one after it broke."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._link: Link | None = None
        self._dialing = threading.Lock()

    def ask(
        self,
        request: Request,
        payload: Sequence[Buffer] = (),
        *,
        timeout: float,
        connect_timeout: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Reply:
        """Send a request and wait for its reply, which may hold an error; ``sleep`` may raise to end the wait.

        Raises ClientTimeoutError after ``timeout`` seconds; ConnectionLostError; NotReachableError when no connection
        could be made within ``connect_timeout`` seconds.
        """
        link = self._usable(connect_timeout, sleep)
        arrived: list[Reply] = []
        deadline = time.monotonic() + timeout
        request_id = link.send(request, payload, on_reply=arrived.append, timeout=timeout)
        try:
            while not link.wait(lambda: bool(arrived), min(SLICE_SECONDS, deadline - time.monotonic())):
                sleep(0)
                if time.monotonic() >= deadline:
                    late = f"{self._dialer.server} did not answer {request.api} within {seconds_of(timeout)}"
                    raise ClientTimeoutError(late)
        finally:
            link.abandon(request_id)
        return arrived[0]

    def _usable(self, connect_timeout: float, sleep: Callable[[float], None]) -> Link:
        with self._dialing:
            sleep(0)
            if self._link is not None and not self._link.is_usable():
                self._link.close()
                self._link = None
            if self._link is None:
                self._link = self._dialer.dial(connect_timeout, sleep)
            return self._link

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
