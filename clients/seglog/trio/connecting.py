"""A client on trio, and the TCP sockets of its connections."""

import errno
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING

import trio

from seglog.asynchronous.client import Client, client_of
from seglog.asynchronous.loop import Opener, Transport
from seglog.core.dialing import CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS, Address
from seglog.core.security import Mechanism, Secret, Tls
from seglog.core.wrong_face import in_our_words
from seglog.settings import target_given
from seglog.trio.loop import TrioLoop

if TYPE_CHECKING:
    import ssl


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


@in_our_words
def connect(
    address: str | None = None,
    *,
    user: str | None = None,
    password: str | Callable[[], str] | Secret | None = None,
    password_file: str | PathLike[str] | None = None,
    token: str | Callable[[], str] | Secret | None = None,
    mechanism: Mechanism | None = None,
    tls: "bool | str | PathLike[str] | Tls | ssl.SSLContext | None" = None,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = REQUEST_TIMEOUT_SECONDS,
    client_id: str = "",
    opener: Opener = open_socket,
) -> Client:
    """A client of the broker at ``HOST:PORT``, connected by ``async with`` within ``connect_timeout`` seconds.

    Address, TLS and account are those of ``seglog.connect``; functions that return a secret must not block for long.

    ``client_id`` names this program in the broker's log; ``opener`` opens connections. Raises ValueError for an invalid
    address, or settings that contradict each other. Entering the block raises NotReachableError, TlsError,
    AuthenticationError, RemoteProtocolError when the server is not a seglog broker, and ClientError where trio does
    not run.
    """
    target = target_given(
        address, user=user, password=password, password_file=password_file, token=token, mechanism=mechanism, tls=tls
    )
    return client_of(target, TrioLoop(), opener, connect_timeout, request_timeout, client_id)
