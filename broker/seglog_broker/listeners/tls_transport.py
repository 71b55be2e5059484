"""TLS between a connection and its peer, by Python's ``ssl`` on bytes that this module receives and sends.

What a call decrypts or encrypts is bounded, as what a turn receives is. OpenSSL on the socket itself would not return
before it has something for us: a peer whose records carry nothing but new keys would hold the loop for as long as it
sends them. Handshakes compute for a millisecond or more, most of it without the interpreter lock: they run in a thread.
"""

import contextlib
import socket
import ssl
from collections.abc import Awaitable
from functools import cached_property
from typing import Final

import trio

from seglog_broker.listeners.transport import Transport
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.io.filesystem import Buffer, File
from seglog_protocol.errors import TlsRequiredError

CIPHERTEXT_BYTES: Final = 20 * 1024
"""Bytes that are decrypted at a time: more than the largest record. Each record costs ten microseconds, and may carry
one byte, or only a new key."""

ENCRYPTED_BYTES: Final = 64 * 1024
"""Bytes that are encrypted at a time."""

SEND_BYTES_MAX: Final = 256 * 1024
"""Bytes that one ``send`` encrypts: it takes some tenths of a millisecond."""

UNASKED_BYTES_MAX: Final = 64 * 1024
"""Alerts that wait for a peer that does not read them; with more it is cut off."""

HANDSHAKE_SECONDS: Final = 10
"""A connection whose handshake is not done after this time is closed."""

_HELLO: Final = b"\x16\x03"
"""How the first record of a client begins: a handshake, in any version."""

_FIRST_BYTES: Final = 512
"""Enough for the first frame of a seglog client without TLS."""


class TlsTransport(Transport):
    """A TCP stream with TLS. ``begin`` has to come first."""

    def __init__(self, plain: Transport, context: "ssl.SSLContext", offload: Offload) -> None:
        """Takes the socket of ``plain`` over."""
        super().__init__(plain.take_socket())
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()  # ciphertext
        self._unsent = memoryview(b"")  # ciphertext, before that in ``_outgoing``
        self._owed = 0  # bytes whose ciphertext is complete, and of which ``send`` has not told yet
        self._offload = offload
        self._context = context
        self.fence = plain.fence
        self._is_ending = False
        self.is_encrypted = True

    @cached_property
    def _tls(self) -> "ssl.SSLObject":
        """Made for the handshake: it takes some 50 KiB, which clients that only connect do not get."""
        return self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def begin(self) -> Awaitable[None]:
        """The handshake. Raises OSError when it fails, TlsRequiredError when the peer speaks something else."""
        return self._shake_hands()

    async def _shake_hands(self) -> None:
        is_begun = is_done = False
        while not is_done:
            await trio.lowlevel.wait_readable(self._sock)
            async with self._offload.handshake_places.of(self.host):
                if not is_begun:
                    self._check_hello()
                    is_begun = True
                self._receive_ciphertext()
                is_done = await self._compute()
            while not self._send_ciphertext():
                await trio.lowlevel.wait_writable(self._sock)
        self.has_pending = self._incoming.pending > 0

    def _check_hello(self) -> None:
        """Raise ConnectionError for a peer that left while it waited, TlsRequiredError for one without TLS."""
        first = self._sock.recv(_FIRST_BYTES, socket.MSG_PEEK)
        if not _HELLO.startswith(first[: len(_HELLO)]):
            self.first_bytes = first
            self.stop_receiving()
            self.is_encrypted = False  # the last words are plain
            raise TlsRequiredError(
                "this port speaks TLS, and the client does not: connect with TLS (seglogs://, or SSL)"
            )
        if self.has_left():
            raise ConnectionResetError("the client left before its handshake")

    async def _compute(self) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            await self._offload.handshake(self._tls.do_handshake)
        except ssl.SSLWantReadError:
            return False
        except OSError:
            self._send_rest()  # an alert
            raise
        return True

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's certificate (DER), which was verified; None if it has shown none."""
        return self._tls.getpeercert(binary_form=True)

    def receive_into(self, buffer: memoryview) -> int:
        """See Transport. ``has_pending`` tells whether there is more.

        Behind the end of what is sent nothing is decrypted any more: whatever comes is to be thrown away.
        """
        if not self.is_encrypted or self._is_ending:
            return super().receive_into(buffer)
        filled, size = 0, len(buffer)
        received = filled_before = 0
        self.has_pending = False
        while filled < size:
            try:
                count: int = self._tls.read(size - filled, buffer[filled:])  # type: ignore[assignment]  # it fills a buffer
            except ssl.SSLWantReadError:
                if received and (received < CIPHERTEXT_BYTES or 2 * (filled - filled_before) < received):
                    break  # that is all for now; or it was hardly worth its while, and others have their turn
                filled_before = filled
                try:
                    received = self._receive_ciphertext()
                except BlockingIOError:
                    break
                except OSError:
                    if not filled:
                        raise
                    self.has_pending = True  # the error, which the next call raises
                    break
            except ssl.SSLEOFError:
                return self._ended(filled)
            except OSError:
                if not filled:
                    self._send_rest()  # an alert
                    raise
                self.has_pending = True  # as above
                break
            else:
                if not count:
                    return self._ended(filled)
                filled += count
        else:
            self.has_pending = self._tls.pending() > 0 or self._incoming.pending > 0
        # What TLS itself answers is sent here.
        if self._outgoing.pending and not self._send_ciphertext() and self._outgoing.pending > UNASKED_BYTES_MAX:
            raise OSError(f"it sends what TLS has to answer, and reads no answer of {UNASKED_BYTES_MAX:,} bytes")
        if not filled:
            raise BlockingIOError
        return filled

    def _ended(self, filled: int) -> int:
        self.has_pending = filled > 0  # the end, which the next call returns
        return filled

    def _receive_ciphertext(self) -> int:
        """Receive bytes to be decrypted; their number, 0 at the end. Raises OSError, BlockingIOError without any."""
        self.look()
        data = self._sock.recv(CIPHERTEXT_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return len(data)

    async def _has_bytes(self) -> None:
        if self.has_pending:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._sock)

    def wait_readable(self) -> Awaitable[None]:
        """See Transport."""
        return self._has_bytes()

    def send(self, data: Buffer, *, more: bool = False) -> int:
        """See Transport. SEND_BYTES_MAX at most.

        Bytes that were not sent have to come again, as they do from every caller: they are encrypted already.
        """
        if not self.is_encrypted:
            return super().send(data, more=more)
        if not self._send_ciphertext():
            raise BlockingIOError
        view = memoryview(data)[:SEND_BYTES_MAX]
        sent, self._owed, size = self._owed, 0, len(view)
        while sent < size:
            count = self._tls.write(view[sent : sent + ENCRYPTED_BYTES])
            if not self._send_ciphertext():
                self._owed = count
                break
            sent += count
        if not sent:
            raise BlockingIOError
        return sent

    def send_file(self, file: File, position: int, size: int) -> int | None:
        """See Transport. The bytes are read and encrypted here: the kernel cannot do it for us."""
        data = file.pread_cached(min(size, SEND_BYTES_MAX), position)
        return None if data is None else self.send(data)

    def stop_sending(self) -> None:
        """See Transport: says so within TLS, too."""
        if self.is_encrypted:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()
            self._send_rest()
        self._is_ending, self.has_pending = True, False
        super().stop_sending()

    def _send_ciphertext(self) -> bool:
        """Send what is encrypted; whether the socket has taken all of it."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            self.look()
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def _send_rest(self) -> None:
        with contextlib.suppress(OSError):
            self._send_ciphertext()


def why_failed(error: OSError) -> str:
    """Why a handshake failed, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the client left; it may not trust the broker's certificate"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or str(error)
