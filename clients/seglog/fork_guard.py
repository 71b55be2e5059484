"""The process that owns an object with a socket.

After a fork both processes have the same connection. Two readers of one socket would take each other's replies, and a
lock held by another thread during the fork is never released in the child; so the child may only close its copy.
"""

import os

from seglog_protocol.errors import ClientError


class OwnerProcess:
    """The process that made an object."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, not a forked child."""
        return self._pid == os.getpid()

    def check(self) -> None:
        """Raises ClientError in a forked child."""
        if self._pid != os.getpid():
            raise ClientError(
                f"this {self._what} belongs to process {self._pid} and cannot be used after a fork in process "
                f"{os.getpid()}; call seglog.connect() again in the child"
            )
