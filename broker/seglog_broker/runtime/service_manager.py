"""Messages to a service manager such as systemd: ready, reloading, stopping, and a line of status.

The protocol of sd_notify(3): each message is a datagram of ``NAME=value`` lines to the socket that ``NOTIFY_SOCKET``
names. That is simple enough without a library; those on the package index are either unmaintained or need systemd's
headers to be built. Without the variable nothing is sent.
"""

import contextlib
import socket
import time
from collections.abc import MutableMapping
from typing import Self

_VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """The service manager that started the daemon, if any.

    The socket is open from the start, so that the message of a stop needs no descriptor. A message that cannot be sent
    is dropped: the broker does not depend on its service manager.
    """

    def __init__(self, address: str | None = None) -> None:
        """``address`` is a path, or an abstract name that begins with ``@``; None without a service manager."""
        self._socket: socket.socket | None = None
        if not address:
            return
        if address.startswith("@"):
            address = f"\0{address[1:]}"
        with contextlib.suppress(OSError):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0))
            self._socket.setblocking(False)  # the loop must not wait for it
            self._socket.connect(address)

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Self:
        """The one named by the environment; removes the variable, because child processes must not send messages."""
        return cls(environ.pop(_VARIABLE, None))

    def ready(self, status: str) -> None:
        """The broker serves, or serves again after ``reloading``."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """The configuration is being read again; ``ready`` follows."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={microseconds}\nSTATUS=Reading the configuration again")

    def status(self, status: str) -> None:
        """The current activity, in one line of text."""
        self._send(f"STATUS={status}")

    def stopping(self) -> None:
        """The broker has begun to stop."""
        self._send("STOPPING=1\nSTATUS=Stopping: requests under way are finished, then everything is synced")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()

    def _send(self, message: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(message.encode())
