"""Which process an object with a socket belongs to.

After a fork both processes hold the same connection. Two that read one socket take each other's replies, and locks that
another thread held at that moment are never released in the child: there everything but letting go is refused.
"""

import os

from seglog_protocol.errors import ClientError


class Owner:
    """The process that made an object."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, and no forked child of it."""
        return self._pid == os.getpid()

    def check(self) -> None:
        """ClientError in a forked child, with what to do instead."""
        if self._pid != os.getpid():
            raise ClientError(
                f"this {self._what} belongs to process {self._pid} and cannot be used after a fork in process "
                f"{os.getpid()}; call seglog.connect() again in the child"
            )
