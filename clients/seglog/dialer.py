"""Opening links: name resolution, connecting, hello, and retries within a timeout."""

import socket
import time
from collections.abc import Callable

from seglog.address import Address
from seglog.dialing import Attempts, Outage, check_cluster, hello_request, is_unknown_host, refused, saying_hello
from seglog.link import Link
from seglog_protocol.errors import NotReachableError
from seglog_protocol.messages import HelloReply


class Dialer:
    """Opens links to one address; with ``cluster_id`` only to a broker with that id."""

    def __init__(self, address: Address, client_id: str, cluster_id: str = "", outage: Outage | None = None) -> None:
        self.address = address
        self.client_id = client_id
        self.cluster_id = cluster_id
        self._outage = outage or Outage(str(address))

    def bound_to(self, link: Link) -> "Dialer":
        """A dialer for links to the same log directory as ``link``'s."""
        return Dialer(self.address, self.client_id, link.hello.cluster_id, self._outage)

    @property
    def server(self) -> str:
        """The address as text."""
        return str(self.address)

    def dial(self, timeout: float, sleep: Callable[[float], None] = time.sleep) -> Link:
        """A link, after as many attempts as fit into ``timeout`` seconds, at least one.

        Raises NotReachableError when none succeeds. Errors that waiting cannot fix are raised at once, for example when
        the server is not a seglog broker, or the host does not exist and has never answered before. ``sleep`` may raise
        to end the attempts.
        """
        attempts = Attempts(timeout, time.monotonic())
        while True:
            try:
                return self.dial_once(attempts.seconds(time.monotonic()))
            except NotReachableError as error:
                if is_unknown_host(error) and not self._outage.has_answered:
                    raise
                delay = attempts.failed(error, time.monotonic())
            sleep(delay)

    def dial_once(self, timeout: float) -> Link:
        """One attempt, at most ATTEMPT_SECONDS_MAX long. Raises NotReachableError when a retry may help."""
        began = time.monotonic()
        try:
            link = self._dial_once(self._outage.attempt_seconds(timeout))
        except NotReachableError as error:
            self._outage.failed(error, began, time.monotonic())
            raise
        self._outage.ended(time.monotonic())
        return link

    def _dial_once(self, timeout: float) -> Link:
        try:
            connected = socket.create_connection(self.address, timeout)
        except OSError as error:
            raise refused(self.server, error) from error
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(connected, self.server)
            with saying_hello(self.server):
                link.hello, _ = link.call(hello_request(self.client_id), HelloReply, timeout=timeout)
            check_cluster(self.server, self.cluster_id, link.hello)
        except BaseException:
            connected.close()
            raise
        return link
