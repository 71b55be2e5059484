"""The byte stream between a connection and its peer: plain TCP here, with TLS in ``tls_transport``.

These two modules alone touch the socket of a connection.
"""

import contextlib
import ipaddress
import os
import select
import socket
import struct
import sys
from collections.abc import Awaitable
from functools import lru_cache
from typing import Final

import trio
from mypy_extensions import mypyc_attr

from seglog_broker.config import join_address
from seglog_broker.runtime.fence import Fence
from seglog_broker.storage.io.filesystem import Buffer, File

_READ_HANGUP: Final = getattr(select, "POLLRDHUP", 0)
"""On Linux it is reported when no more will come, whatever waits to be read. Elsewhere only a reset is noticed."""

_NO_LINGER: Final = struct.pack("ii", 1, 0)
"""On, for no seconds: what is not sent is dropped when the socket is closed, and the peer gets a reset."""

_MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)
"""Lets header and payload share packets, where the system supports it."""

_HAS_SENDFILE: Final = sys.platform == "linux"
"""macOS does not report whether a page is in memory: all reads are on a thread there, so sendfile gains nothing."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Transport:
    """One connected TCP stream. Its errors are OSError; BlockingIOError where a call would have to wait."""

    def __init__(self, sock: socket.socket) -> None:
        """``sock`` is connected and non-blocking; ``close`` closes it."""
        self._sock = sock
        self.is_peer_gone = False
        """Whether something that was sent found the peer gone."""
        self.has_pending = False
        """Whether bytes have been received, though the socket does not say so."""
        self.is_encrypted = False
        self.fence: Fence | None = None
        """Looked at before anything is sent or received; None for a connection, or a broker, without one."""
        self._is_barred = False
        self.first_bytes = b""
        """What has come in place of TLS, where TLS is to begin."""

    @classmethod
    def of_stream(cls, stream: trio.SocketStream, send_buffer_bytes: int = -1) -> "Transport":
        """Take over an accepted connection, and set it up for frames. -1: the system chooses the size of its buffer.

        Every send on a trio stream is a checkpoint; ``Sender`` yields to the loop only when it has to wait.
        """
        sock = socket.socket(fileno=stream.socket.detach())
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds peers that vanished
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if send_buffer_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                # Back from trio's 16 KiB to the system's own: we send a fetch as fast as the peer takes it.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)
        return cls(sock)

    def take_socket(self) -> socket.socket:
        """The socket, for another transport; this one is not used any more."""
        return self._sock

    def begin(self) -> Awaitable[None] | None:
        """To be awaited: what comes before the first byte. None if nothing does."""
        return None

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate (DER) by which the peer has proven who it is; None without one."""
        return None

    def fileno(self) -> int:
        """The descriptor to wait on; -1 once it is closed."""
        return self._sock.fileno()

    @property
    def peer(self) -> str:
        """``HOST:PORT`` of the other end; ``gone`` if it has left already."""
        try:
            return address_of(self._sock.getpeername())
        except OSError:
            return "gone"

    @property
    def host(self) -> str:
        """The address of the other end; ``gone`` if it has left already."""
        try:
            return str(self._sock.getpeername()[0])
        except OSError:
            return "gone"

    @property
    def local(self) -> tuple[str, int]:
        """Host and port that the peer has connected to; empty and 0 if it has left already."""
        try:
            host, port = self._sock.getsockname()[:2]
        except OSError:
            return "", 0
        return str(host), int(port)

    def look(self) -> None:
        """Raise FenceError where the fence is not open, and for ever then: the peer has missed something.

        For what gives bytes to the socket, as the last step before that.
        """
        if self.fence is not None and (self._is_barred or not self.fence.is_open):
            self._is_barred = True
            raise self.fence.refusal()

    def receive_into(self, buffer: memoryview) -> int:
        """Receive into ``buffer``; the number of bytes, 0 when the peer has finished sending."""
        self.look()  # what nobody may answer is not begun
        return self._sock.recv_into(buffer)

    def wait_readable(self) -> Awaitable[None]:
        """To be awaited: until there are bytes to receive, or the peer has finished sending."""
        return trio.lowlevel.wait_readable(self._sock)  # noqa: ASYNC105 - by the caller

    def has_left(self) -> bool:
        """Whether the peer has finished sending, or is lost. Receives nothing."""
        events = select.poll()
        events.register(self._sock, _READ_HANGUP)
        if events.poll(0):
            return True
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def stop_receiving(self) -> None:
        """Receive nothing more; it wakes whatever waits for bytes."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def send(self, data: Buffer, *, more: bool = False) -> int:
        """Send ``data``, or the first part of it; the number of bytes. ``more`` is to follow at once.

        A peer that has left gets nothing more, and what it has sent before is served: the end comes when all is read.
        """
        if not self.is_peer_gone:
            self.look()
            try:
                return self._sock.send(data, _MSG_MORE if more else 0)
            except ConnectionError:
                self.is_peer_gone = True
        return len(data)

    def send_file(self, file: File, position: int, size: int) -> int | None:
        """Send bytes of a file; their number, 0 at its end. None when they have to be read from the disk first."""
        if not _HAS_SENDFILE:
            return None
        try:
            descriptor = file.fileno()
        except OSError:  # a file in memory
            return None
        if not file.is_cached(position, size):
            return None
        self.look()
        return os.sendfile(self._sock.fileno(), descriptor, position, size)

    def wait_writable(self) -> Awaitable[None]:
        """To be awaited: until the socket takes more."""
        return trio.lowlevel.wait_writable(self._sock)  # noqa: ASYNC105 - by the caller

    def stop_sending(self) -> None:
        """Send nothing more: the peer sees the end of the stream. Raises OSError if the connection is lost."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket. A second call does nothing."""
        self._sock.close()

    def reset_at_close(self) -> None:
        """Have ``close`` reset the connection: its peer gets an error, and what it was not sent yet is dropped."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def limit_receive_buffers(listener: trio.SocketListener, size: int) -> None:
    """Give the connections of ``listener`` receive buffers of ``size`` bytes; -1: the system chooses."""
    if size >= 0:
        with contextlib.suppress(OSError):
            listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def address_of(name: tuple[object, ...]) -> str:
    """``HOST:PORT`` of a socket's name."""
    host, port = name[:2]
    return join_address(str(host), str(port))


@lru_cache(maxsize=1024)
def shown_host(host: str) -> str:
    """The address of a client as Kafka shows it in groups: ``/192.0.2.7``, ``/2001:db8:0:0:0:0:0:1``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"/{host}"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return f"/{address.ipv4_mapped}"
        scope = f"%{address.scope_id}" if address.scope_id else ""
        return "/" + ":".join(f"{part:x}" for part in struct.unpack(">8H", address.packed)) + scope
    return f"/{address}"
