"""Requests of any kind to a Kafka or to seglog's Kafka listener, and their answers, as plain data."""

import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

from seglog_protocol.kafka import Malformed, Request, Response, Struct, messages, read_response, write_request
from seglog_protocol.kafka.definitions import Definition, Field, StructDefinition, definition

Plain = Any
"""What json has: dictionaries by field, lists, text, numbers; bytes are in hex."""


class Wire:
    """One connection to a port of this machine. A context manager.

    ``login``, a name and a password, logs in by PLAIN.
    """

    def __init__(self, port: int, login: tuple[str, str] | None = None) -> None:
        self._port = port
        self._login = login
        self._socket = self._connected()
        self._asked = 0
        self._waiting: list[tuple[Request, int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def another(self) -> "Wire":
        """Another connection to the same port."""
        return Wire(self._port, self._login)

    def ask(self, request: Request, version: int) -> Response | None:
        """The response; None if the connection is closed instead, after which there is a new one."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Request, version: int) -> None:
        """Send a request whose response is received later, in the order of requests."""
        self.tell(request, version)
        self._waiting.append((request, version, self._asked))

    def tell(self, request: Request, version: int) -> None:
        """Send a request that has no response."""
        self._asked += 1
        with suppress(ConnectionError):  # it is closed, which shows when a response is waited for
            self._socket.sendall(b"".join(write_request(self._asked, "seglog", request, version)))

    def receive(self) -> Response | None:
        """The response to the request that was sent before, as ``ask`` has it."""
        request, version, asked = self._waiting.pop(0)
        try:
            frame = read_frame(self._socket)
        except ConnectionError:
            self._socket.close()
            self._socket = self._connected()
            return None
        try:
            correlation_id, response = read_response(request.API_KEY, version, memoryview(frame))
        except Malformed:  # ApiVersions in a version that the other side does not have
            correlation_id, response = read_response(request.API_KEY, 0, memoryview(frame))
        assert correlation_id == asked
        return response

    def _connected(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        if self._login is not None:
            token = "\0".join(("", *self._login)).encode()
            for asked, version in (
                (messages.SaslHandshakeRequest(mechanism="PLAIN"), 1),
                (messages.SaslAuthenticateRequest(auth_bytes=token), 0),
            ):
                made.sendall(b"".join(write_request(0, "seglog", asked, version)))
                _, response = read_response(asked.API_KEY, version, memoryview(read_frame(made)))
                assert not plain(response)["error_code"], response
        return made


def read_frame(sock: socket.socket) -> bytes:
    """The next frame without its size. Raises ConnectionResetError where the other side closes before."""
    [size] = struct.unpack(">i", read_exactly(sock, 4))
    return read_exactly(sock, size)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """The next ``size`` bytes. Raises ConnectionResetError where the other side closes before."""
    found = bytearray()
    while len(found) < size:
        piece = sock.recv(size - len(found))
        if not piece:
            raise ConnectionResetError("closed")
        found += piece
    return bytes(found)


_OF_SOME: Final = frozenset({"name", "topic_id", "config_operation", "subscribed_topic_names"})
"""Fields that may be given to structs of a kind, of which not all have them."""


def plain(value: object) -> Plain:
    """A struct as plain data."""
    match value:
        case Struct():
            return {name: plain(getattr(value, name)) for name in value.__slots__}
        case list():
            return [plain(item) for item in value]
        case bytes() | memoryview():
            return bytes(value).hex()
    return value


def request(name: str, fields: Mapping[str, Plain]) -> Request:
    """A request, by its name without ``Request``, from plain data; text in a field of ids stands for the id in hex."""
    message = definition(f"{name}Request")
    made: Request = getattr(messages, f"{name}Request")(**_values(message, message.struct, fields))
    return made


def _values(message: Definition, struct_: StructDefinition, given: Mapping[str, Plain]) -> dict[str, Any]:
    known = {field.name: field for field in struct_.fields}
    assert given.keys() - known.keys() <= _OF_SOME, given
    return {name: _value(message, known[name], value) for name, value in given.items() if name in known}


def _value(message: Definition, field: Field, value: Plain) -> object:
    if field.is_array and value is not None:
        return [_value(message, field._replace(type=field.type.removeprefix("[]")), item) for item in value]
    if field.is_struct and value is not None:
        made = getattr(messages, message.struct.name)
        return getattr(made, field.type)(**_values(message, message.structs[field.type], value))
    if field.type == "records" and value is not None:
        return memoryview(bytes.fromhex(value))
    return bytes.fromhex(value) if field.type in ("uuid", "bytes") and value is not None else value
