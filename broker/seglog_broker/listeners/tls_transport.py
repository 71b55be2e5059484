"""TLS between a connection and its peer, by Python's ``ssl`` on the connection's own socket.

What a call decrypts or encrypts is bounded, as what a turn receives is. Handshakes compute for a millisecond or more,
most of it without the interpreter lock: they run in a thread.
"""

import contextlib
import socket
import ssl
from collections.abc import Awaitable
from typing import Final

import trio

from seglog_broker.listeners.transport import Transport
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.io.filesystem import Buffer, File
from seglog_protocol.errors import RemoteProtocolError

RECORD_BYTES: Final = 16 * 1024
"""The most bytes of a TLS record (RFC 8446), which one call of OpenSSL takes."""

SEND_BYTES_MAX: Final = 256 * 1024
"""Bytes that one ``send`` encrypts: it takes some tenths of a millisecond."""

HANDSHAKE_SECONDS: Final = 10
"""A connection whose handshake is not done after this time is closed."""

_HELLO: Final = b"\x16\x03"
"""How the first record of a client begins: a handshake, in any version."""


class NoTlsError(RemoteProtocolError):
    """The peer of a listener with TLS has begun with something else."""

    code = "TLS_REQUIRED"


class TlsTransport(Transport):
    """A TCP stream with TLS. ``begin`` has to come first."""

    def __init__(self, plain: Transport, context: ssl.SSLContext, offload: Offload) -> None:
        """Takes the socket of ``plain`` over. Raises OSError if the peer has left."""
        raw = plain.take_socket()
        try:
            wrapped = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        except BaseException:
            raw.close()
            raise
        super().__init__(wrapped)
        self._tls = wrapped
        self._offload = offload
        self.is_encrypted = True

    def begin(self) -> Awaitable[None]:
        """The handshake. Raises OSError when it fails, NoTlsError when the peer speaks something else."""
        return self._shake_hands()

    async def _shake_hands(self) -> None:
        await trio.lowlevel.wait_readable(self._tls)
        first = socket.socket.recv(self._tls, len(_HELLO), socket.MSG_PEEK)
        if not _HELLO.startswith(first):
            self._tls.shutdown(socket.SHUT_RD)  # also ends the encryption: the last words are plain
            raise NoTlsError("this port speaks TLS, and the client does not: connect with TLS (seglogs://, or SSL)")
        while True:
            try:
                await self._offload.handshake(self._tls.do_handshake)
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._tls)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._tls)
            else:
                return

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's certificate (DER), which was verified; None if it has shown none."""
        return self._tls.getpeercert(binary_form=True)

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def receive_into(self, buffer: memoryview) -> int:
        """See Transport. As many records as have come and fit; ``has_pending`` tells whether there is more."""
        filled, size = 0, len(buffer)
        self.has_pending = False
        try:
            while filled < size:
                count = self._tls.recv_into(buffer[filled:])
                if not count:
                    self.has_pending = filled > 0  # the end, which the next call returns
                    return filled
                filled += count
            self.has_pending = self._tls.pending() > 0
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not filled:
                raise BlockingIOError from None
        except OSError:
            if not filled:
                raise
            self.has_pending = True  # the error, which the next call raises
        return filled

    async def _has_bytes(self) -> None:
        if self.has_pending:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._tls)

    def wait_readable(self) -> Awaitable[None]:
        """See Transport."""
        return self._has_bytes()

    def peek(self) -> bytes:
        """See Transport: of what is not decrypted."""
        return socket.socket.recv(self._tls, 1, socket.MSG_PEEK)

    def stop_receiving(self) -> None:
        """See Transport."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._tls, socket.SHUT_RD)  # SSLSocket's own would end the encryption

    # --- Sending ------------------------------------------------------------------------------------------------------

    def send(self, data: Buffer, *, more: bool = False) -> int:  # noqa: ARG002 - a record is sent at once
        """See Transport. SEND_BYTES_MAX at most."""
        view = memoryview(data)[:SEND_BYTES_MAX]
        sent, size = 0, len(view)
        try:
            # After a record that the socket took in part the same bytes have to come again, as every caller does.
            while sent < size:
                sent += self._tls.send(view[sent : sent + RECORD_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not sent:
                raise BlockingIOError from None
        return sent

    def send_file(self, file: File, position: int, size: int) -> int | None:
        """See Transport. The bytes are read and encrypted here: the kernel cannot do it for us."""
        data = file.pread_cached(min(size, SEND_BYTES_MAX), position)
        return None if data is None else self.send(data)

    def stop_sending(self) -> None:
        """See Transport: says so within TLS, too."""
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()
        socket.socket.shutdown(self._tls, socket.SHUT_WR)


def why_failed(error: OSError) -> str:
    """Why a handshake failed, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the client left; it may not trust the broker's certificate"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or str(error)
