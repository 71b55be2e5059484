"""The network interface of a link: send, receive and close.

Every transport raises OSError for failures; a cancelled call has transferred nothing.
"""

import errno
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

import trio

from seglog.core.dialing import Address


class Transport(Protocol):
    """A connected stream of bytes."""

    async def send_some(self, buffers: Sequence[memoryview]) -> int:
        """Write at least one of these bytes; returns how many."""
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into ``buffer``; returns how many, 0 when the peer has closed its side."""
        ...

    def close(self) -> None:
        """Close at once; waiting calls raise OSError. Idempotent."""
        ...


Opener = Callable[[Address], Awaitable[Transport]]


class SocketTransport:
    """Owns a TCP socket."""

    def __init__(self, connected: trio.socket.SocketType) -> None:
        self._socket = connected

    async def send_some(self, buffers: Sequence[memoryview]) -> int:
        """As in Transport, in one system call."""
        with _as_os_error():
            return await self._socket.sendmsg(buffers)

    async def receive_into(self, buffer: memoryview) -> int:
        """As in Transport, without a copy."""
        with _as_os_error():
            return await self._socket.recv_into(buffer)

    def close(self) -> None:
        """As in Transport."""
        self._socket.close()


async def open_socket(address: Address) -> Transport:
    """Connect to the first address of the host that answers. Raises OSError with the reason when none does."""
    try:
        stream = await trio.open_tcp_stream(*address)
    except OSError as error:
        raise _reason(error) from None
    return SocketTransport(stream.socket)


def _reason(error: OSError) -> OSError:
    """The error of one attempt: trio raises one without errno for all, with the attempts as its cause."""
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
