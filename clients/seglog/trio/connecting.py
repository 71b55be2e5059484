"""A client on trio, and the TCP sockets of its connections."""

import errno
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import trio

from seglog.asynchronous.client import Face
from seglog.asynchronous.loop import Transport
from seglog.core.dialing import Address
from seglog.trio.loop import TrioLoop


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


connect = Face(TrioLoop, open_socket).connect
