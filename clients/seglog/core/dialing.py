"""Opening a connection, without I/O: the address, the hello request, and the errors of an attempt.

The links of the faces do the rest; ``retries`` says when to try again.
"""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NamedTuple

from seglog_protocol import errors
from seglog_protocol.messages import NATIVE_PORT, PROTOCOL_NAME, HelloReply, HelloRequest

CONNECT_TIMEOUT_SECONDS: Final = 10.0
REQUEST_TIMEOUT_SECONDS: Final = 30.0
CLIENT_ID: Final = "seglog-python"
DEFAULT_SERVER: Final = f"localhost:{NATIVE_PORT}"


class Address(NamedTuple):
    """Where a broker listens. ``host`` is a name or an address; IPv6 addresses without their brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """``host``, ``host:port``, ``[ipv6]``, ``[ipv6]:port`` or a bare IPv6 address; the port defaults to 9192.

    Raises ValueError, with a sentence for users, for anything else.
    """
    text = text.strip()
    if "@" in text:  # what is in front may be a password, so none of it is shown
        raise ValueError(
            "an account does not belong in the address: user= and password_file= (--user, --password-file)"
        )
    if "://" in text:
        raise ValueError(
            f"{text!r} is another kind of URL; write HOST:PORT, for example localhost:{NATIVE_PORT}, or with TLS "
            f"seglogs://HOST:PORT"
        )
    if "/" in text:
        raise ValueError(f"{text!r} is a path, not an address; write HOST:PORT, for example localhost:{NATIVE_PORT}")
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address; an IPv6 address is written [::1]:{NATIVE_PORT}")
        port = rest[1:]
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, colon, port = text.partition(":")
        if colon and not port:
            raise ValueError(f"{text!r} has no port after its colon; write HOST:PORT")
    if not port and host.isascii() and host.isdecimal():
        raise ValueError(f"{text!r} is a port without a host; write HOST:PORT, for example localhost:{text}")
    if not host or any(character.isspace() for character in host):
        raise ValueError(f"{text!r} is not an address; write HOST:PORT, for example localhost:{NATIVE_PORT}")
    if not port:
        return Address(host, NATIVE_PORT)
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is not a port; ports are numbers from 1 to 65535")
    return Address(host, int(port))


def hello_request(client_id: str) -> HelloRequest:
    """The first request of every connection."""
    return HelloRequest(protocol=PROTOCOL_NAME, client=client_id)


def check_cluster(server: str, expected: str, hello: HelloReply) -> None:
    """Raises InconsistentClusterIdError unless the broker's cluster id is ``expected``; "" accepts any."""
    if expected and hello.cluster_id != expected:
        raise errors.InconsistentClusterIdError(
            f"what answers at {server} is not the broker that was there before, or its log directory was replaced: "
            f"its cluster id is {hello.cluster_id or 'unknown'}, and was {expected}",
            server=server,
            cluster_id=hello.cluster_id,
            expected=expected,
        )


def broken(server: str, error: OSError) -> errors.ConnectionLostError:
    """The error for a connection that the system says is over."""
    return errors.ConnectionLostError(f"the connection to {server} broke: {error.strerror or error}", server=server)


def refused(server: str, error: OSError) -> errors.NotReachableError:
    """The error for a failed attempt to connect."""
    reason = error.strerror or str(error) or type(error).__name__
    what = "unknown host in" if is_unknown_host(error) else "no broker answers at"
    return errors.NotReachableError(f"{what} {server}: {reason}", server=server)


def is_unknown_host(error: BaseException | None) -> bool:
    """Whether the address named a host that does not exist, which waiting seldom fixes."""
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME


@contextmanager
def saying_hello(server: str) -> Generator[None, None, None]:
    """For the first call: turns errors that a retry may fix into NotReachableError."""
    try:
        yield
    except errors.ConnectionLostError as error:
        raise errors.NotReachableError(error.message, server=server) from error
    except errors.ClientTimeoutError as error:
        raise errors.NotReachableError(
            f"what listens at {server} does not answer: {error.message}", server=server
        ) from error
    except errors.SeglogError as error:
        if error.retriable:
            raise errors.NotReachableError(error.message, server=server) from error
        raise
