"""Seglog clients that have reached the port of Kafka's clients, so that they are told so at once."""

import struct
from typing import Final

from seglog_protocol.errors import RemoteProtocolError, WrongPortError
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
