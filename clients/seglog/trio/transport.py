"""The network, as small as the link needs it: two calls that move bytes, and an end.

Failures are OSError, whatever the way the bytes go; a cancelled call has moved nothing.
"""

import errno
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

import trio

from seglog.address import Address


class Transport(Protocol):
    """A connected stream of bytes."""

    async def send_some(self, buffers: Sequence[memoryview]) -> int:
        """Write some of these bytes, at least one; how many."""
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into ``buffer``; how many, and 0 when the peer has closed its side."""
        ...

    def close(self) -> None:
        """Let go; whoever waits gets an OSError. Never waits, and may be called twice."""
        ...


Opener = Callable[[Address], Awaitable[Transport]]


class SocketTransport:
    """A TCP socket, owned."""

    def __init__(self, connected: trio.socket.SocketType) -> None:
        self._socket = connected

    async def send_some(self, buffers: Sequence[memoryview]) -> int:
        """As Transport says, in one system call."""
        with _as_os_error():
            return await self._socket.sendmsg(buffers)

    async def receive_into(self, buffer: memoryview) -> int:
        """As Transport says, without a copy."""
        with _as_os_error():
            return await self._socket.recv_into(buffer)

    def close(self) -> None:
        """As Transport says."""
        self._socket.close()


async def open_socket(address: Address) -> Transport:
    """Connect, to whichever of the name's addresses answers first; OSError with the reason when none does."""
    try:
        stream = await trio.open_tcp_stream(*address)
    except OSError as error:
        raise _reason(error) from None
    return SocketTransport(stream.socket)


def _reason(error: OSError) -> OSError:
    """What one attempt said: trio sums several up, in an error without a reason that has them as its cause."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[-1]
    return cause if error.errno is None and isinstance(cause, OSError) else error


@contextmanager
def _as_os_error() -> Generator[None, None, None]:
    try:
        yield
    except trio.ClosedResourceError as error:
        raise OSError(errno.EBADF, "the connection was closed") from error
