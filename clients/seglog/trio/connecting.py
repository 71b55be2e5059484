"""A client on trio."""

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from seglog.asynchronous.client import Client, client_of
from seglog.asynchronous.loop import Opener
from seglog.core.dialing import CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS
from seglog.core.kafka_words import in_our_words
from seglog.core.security import Mechanism, Secret, Tls
from seglog.settings import target_given
from seglog.trio.loop import TrioLoop
from seglog.trio.transport import open_socket

if TYPE_CHECKING:
    import ssl


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
