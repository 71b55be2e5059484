"""Clients of other protocols that have reached the port of Kafka's clients, so that they are told so at once."""

import struct
from typing import Final

from seglog_broker.listeners.native.first_bytes import HTTP_METHODS, http_answer
from seglog_protocol.errors import FrameTooLargeError, RemoteProtocolError, SeglogError, WrongPortError
from seglog_protocol.frame_receiver import LENGTH_SIZE
from seglog_protocol.messages import AuthenticateRequest, HelloRequest, open_request

_HEADER_LENGTH: Final = struct.Struct(">I")
_FIRST: Final = frozenset({HelloRequest.api, AuthenticateRequest.api})


def native_client(frame: memoryview, native_port: int, here: str = "for Kafka's clients") -> WrongPortError | None:
    """The error for a client whose ``frame``, without its length, is a native hello or authenticate; else None.

    To Kafka such a frame is a Produce request in a version that does not exist: the length of its header.
    """
    if len(frame) < _HEADER_LENGTH.size:
        return None
    begin = _HEADER_LENGTH.size
    (length,) = _HEADER_LENGTH.unpack_from(frame)
    try:
        opened = open_request(frame[begin : begin + length])
    except RemoteProtocolError:
        return None
    if opened.api not in _FIRST:
        return None
    where = f"seglog's own is {native_port} (seglog.listen)" if native_port > 0 else "seglog's own is seglog.listen"
    return WrongPortError(f"this port is {here}; {where}", port=native_port)


def answer_to_http(error: SeglogError, first: bytes = b"") -> bytes:
    """The response to a client of HTTP that the ``error`` is about; empty if it is about any other.

    To Kafka a method such as ``GET`` announces a frame of more than a gigabyte. ``first`` are the bytes with which a
    client without TLS has begun.
    """
    if isinstance(error, FrameTooLargeError) and not first:
        first = error.size.to_bytes(LENGTH_SIZE, "big")
    begin = first[:LENGTH_SIZE]
    if len(begin) < LENGTH_SIZE or not any(method.startswith(begin) for method in HTTP_METHODS):
        return b""
    return http_answer(
        "This is a port of a seglog broker for Kafka's clients, not a web server; health and metrics have a port of "
        "their own (seglog.http.listen)."
    )
