"""Parsing of HOST:PORT."""

from typing import NamedTuple

from seglog_protocol.messages import NATIVE_PORT


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
    if "://" in text:
        raise ValueError(f"{text!r} is a URL; write only HOST:PORT, for example localhost:{NATIVE_PORT}")
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
    if not host or any(character.isspace() for character in host):
        raise ValueError(f"{text!r} is not an address; write HOST:PORT, for example localhost:{NATIVE_PORT}")
    if not port:
        return Address(host, NATIVE_PORT)
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is not a port; ports are numbers from 1 to 65535")
    return Address(host, int(port))
