"""TLS without a socket: what is to be sent goes in and comes out encrypted, what was received likewise back.

All bytes that have come are decrypted at once, so that nobody waits for a socket while there is something to read. A
``TlsSession`` may be used by two threads, one that sends and one that receives; OpenSSL's own objects may not.
"""

import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, cast

from seglog.core.dialing import Address
from seglog_protocol.errors import ConnectionLostError, SeglogError, TlsError
from seglog_protocol.frame_receiver import Buffer

_SEALED_BYTES: Final = 256 * 1024
"""What is encrypted at a time; in between, bytes that have come are decrypted."""

_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21, 27})
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_WRONG_NAME: Final = frozenset({62, 63, 64})
"""Numbers of OpenSSL's X509_V_ERR_…"""

_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "RECORD_LAYER_FAILURE"})
_CERTIFICATE_WORDS: Final = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED")
_NO_VERSION: Final = frozenset({"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"})


class TlsSession:
    """The client's end of one connection with TLS, to ``address``."""

    receive_bytes: Final = 256 * 1024
    """What to receive at a time: a dozen records of 16 KiB."""

    def __init__(self, context: ssl.SSLContext, address: Address) -> None:
        self._server = str(address)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=address.host)
        self._lock = threading.Lock()
        self.is_established = False
        self.is_ended = False
        """Whether the peer has said that it sends no more."""

    @property
    def version(self) -> str:
        """As OpenSSL names it: ``TLSv1.3``."""
        return self._tls.version() or ""

    def shake_hands(self) -> bytes:
        """What to send before more is received; ``is_established`` tells when nothing more has to come.

        Raises TlsError, and ConnectionLostError where the peer has closed the connection.
        """
        try:
            self._tls.do_handshake()
            self.is_established = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise self.error_of(error) from error
        return self._outgoing.read()

    def received(self, data: Buffer) -> None:
        """Take bytes of the peer; none: it has closed its side."""
        with self._lock:
            if len(data):
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    def open_into(self, buffer: memoryview) -> int:
        """Decrypt into ``buffer``, which is not empty; returns how many bytes, 0 when more have to come.

        Raises TlsError, and ConnectionLostError for what was changed on its way.
        """
        size = 0
        with self._lock:
            try:
                while size < len(buffer):
                    count = cast("int", self._tls.read(len(buffer) - size, cast("bytearray", buffer[size:])))
                    if not count:
                        self.is_ended = True
                        break
                    size += count
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLEOFError:
                self.is_ended = True
            except ssl.SSLError as error:
                raise self.error_of(error) from error
        return size

    def seal(self, buffers: Sequence[Buffer]) -> list[bytes]:
        """The buffers, encrypted: all of it must be sent, in this order, or the connection is over."""
        sealed: list[bytes] = []
        for buffer in buffers:
            view = memoryview(buffer)
            for start in range(0, len(view), _SEALED_BYTES):
                with self._lock:
                    self._tls.write(view[start : start + _SEALED_BYTES])
                    sealed.append(self._outgoing.read())
        return sealed

    def farewell(self) -> bytes:
        """What tells the peer that no more is sent, so that it need not think that something was cut off."""
        with self._lock:
            with suppress(ssl.SSLError):  # the peer's own farewell is not waited for
                self._tls.unwrap()
            return self._outgoing.read()

    def alert(self) -> bytes:
        """What to send after a failed handshake: it tells the peer why."""
        return self._outgoing.read()

    def error_of(self, error: ssl.SSLError) -> SeglogError:
        """What is wrong, in a sentence: TlsError where another attempt cannot help."""
        server, reason = self._server, error.reason or ""
        if isinstance(error, ssl.SSLCertVerificationError):
            return TlsError(self._not_verified(error), server=server)
        if isinstance(error, ssl.SSLEOFError):
            return ConnectionLostError(
                f"{server} closed the connection while TLS was to begin: it is starting or stopping, or speaks no TLS "
                "there",
                server=server,
            )
        if reason in _NO_TLS and not self.is_established:
            sentence = (
                f"what answers at {server} speaks no TLS there: connect to its port with TLS, or without TLS by "
                f"seglog://{server}, on the command line also by --no-tls"
            )
        elif reason in _NO_VERSION:
            sentence = f"{server} and this client have no version of TLS in common"
        elif "ALERT" in reason and any(word in reason for word in _CERTIFICATE_WORDS):
            sentence = (
                f"{server} does not take this client's certificate, or wants one where there is none "
                f"({_words(reason)}): name certificate and key, on the command line by --certificate and --key"
            )
        elif self.is_established:
            return ConnectionLostError(f"the connection to {server} broke: {_words(reason)}", server=server)
        else:
            sentence = f"TLS with {server} cannot begin: {_words(reason) or error}"
        return TlsError(sentence, server=server)

    def _not_verified(self, error: ssl.SSLCertVerificationError) -> str:
        certificate = f"the certificate of {self._server}"
        if error.verify_code in _UNTRUSTED:
            return (
                f"{certificate} is signed by no authority that is trusted here ({error.verify_message}): name the file "
                "of its authority by tls=PATH, on the command line by --ca PATH"
            )
        if error.verify_code in _WRONG_NAME:
            detail = error.verify_message.partition(", ")[2].rstrip(".") or error.verify_message
            return f"{certificate} is for another host: {detail}; connect by a name that is in it"
        if error.verify_code == _EXPIRED:
            return f"{certificate} has expired: the broker needs a new one, or this machine's clock is wrong"
        if error.verify_code == _NOT_YET_VALID:
            return f"{certificate} is not valid yet: it will be later, or this machine's clock is wrong"
        return f"{certificate} cannot be verified: {error.verify_message}"


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
