"""A minimal client that sends a daemon one request after the other, of any form."""

import socket
from types import TracebackType
from typing import Any, Self

from seglog_protocol.frames import FrameReader, encode_frame
from seglog_protocol.messages import PROTOCOL_NAME
from tests.processes import PATIENCE_SECONDS


class Asking:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._sock = self.open(port)
        self._reader = FrameReader()
        self.ask({"api": "hello", "protocol": PROTOCOL_NAME})

    def open(self, port: int) -> socket.socket:
        """A new connection."""
        sock = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def ask(self, header: dict[str, Any], payload: bytes = b"") -> tuple[dict[str, Any], int]:
        """Send a request; returns the reply's header, which must not be an error, and its payload's size in bytes."""
        self._sock.sendall(encode_frame({"id": 1, "v": 1} | header, [payload]))
        while (frame := self._reader.next_frame()) is None:
            data = self._sock.recv(65536)
            assert data, "the broker hung up"
            self._reader.receive_data(data)
        assert "error" not in frame.header, frame.header
        return frame.header, len(frame.payload)

    def answer_size(self, frame: bytes) -> int:
        """Send a request and return the bytes of its reply, which may be an error."""
        self._sock.sendall(frame)
        size = 0
        while self._reader.next_frame() is None:
            data = self._sock.recv(65536)
            assert data, "the broker hung up"
            size += len(data)
            self._reader.receive_data(data)
        return size

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
