"""The client that a broker in tests has for itself: it meets none of the faults."""

import socket
from typing import Final

from seglog.access import Access
from seglog.client import Client
from seglog.core.dialing import CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS
from seglog.link import Dialer, Link
from seglog_broker.testing.request_faults import RequestFaults

CLIENT_ID: Final = "seglog-testing"


class _ExemptDialer(Dialer):
    """Names the port of each of its connections to the faults before it connects."""

    def __init__(self, access: Access, faults: RequestFaults | None) -> None:
        super().__init__(access.address, CLIENT_ID, access=access)
        self._faults = faults

    def bound_to(self, link: Link) -> Dialer:
        """See Dialer. A broker that comes back after a power cut may have another identity."""
        del link
        return self

    def connect(self, timeout: float) -> socket.socket:
        """See Dialer."""
        connected = socket.socket()
        try:
            connected.bind(("127.0.0.1", 0))
            if self._faults is not None:
                self._faults.exempt("{}:{}".format(*connected.getsockname()))
            connected.settimeout(timeout)
            connected.connect(self.address)
        except BaseException:
            connected.close()
            raise
        return connected


def connect_exempt(access: Access, faults: RequestFaults | None) -> Client:
    """A client of the broker to which there is ``access``, which ``faults`` do not concern."""
    dialer = _ExemptDialer(access, faults)
    return Client(dialer, dialer.dial(CONNECT_TIMEOUT_SECONDS), CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS)
