"""A client of TLS 1.3 that makes its records itself: what no library sends, such as one new key after the other."""

import hmac
import socket
import ssl
import struct
import tempfile
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

HANDSHAKE: Final = 22
DATA: Final = 23
TAG_BYTES: Final = 16


class RecordClient:
    """Shakes hands on a connected socket, by Python's ``ssl``; from then on it sends what it is told to."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str = "localhost") -> None:
        """``context`` is used for nothing else."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "keys"
            context.keylog_filename = str(path)
            self.tls = context.wrap_socket(sock, server_hostname=server_hostname)
            keys = dict(line.split()[::2] for line in path.read_text().splitlines() if not line.startswith("#"))
        assert self.tls.version() == "TLSv1.3"
        cipher = self.tls.cipher()
        assert cipher is not None
        self._hash = "sha384" if cipher[0].endswith("384") else "sha256"
        self._key_bytes = 16 if "AES_128" in cipher[0] else 32
        self._cipher = ChaCha20Poly1305 if "CHACHA20" in cipher[0] else AESGCM
        self._use(bytes.fromhex(keys["CLIENT_TRAFFIC_SECRET_0"]))

    def record(self, content: bytes, kind: int = DATA) -> bytes:
        """The next record."""
        inner = content + bytes([kind])
        header = b"\x17\x03\x03" + struct.pack(">H", len(inner) + TAG_BYTES)
        nonce = bytes(a ^ b for a, b in zip(self._iv, self._number.to_bytes(len(self._iv), "big"), strict=True))
        self._number += 1
        return header + self._sealing.encrypt(nonce, inner, header)

    def key_update(self, *, asks: bool = False) -> bytes:
        """A record with a new key for those that follow; with ``asks`` the other side is to take one, too."""
        record = self.record(bytes([24, 0, 0, 1, asks]), HANDSHAKE)
        self._use(self._expanded(b"traffic upd", len(self._secret)))
        return record

    def send(self, records: bytes) -> None:
        """Send records as they are."""
        socket.socket.sendall(self.tls, records)

    def close(self) -> None:
        """Close the connection."""
        self.tls.close()

    def _use(self, secret: bytes) -> None:
        self._secret, self._number = secret, 0
        self._sealing = self._cipher(self._expanded(b"key", self._key_bytes))
        self._iv = self._expanded(b"iv", 12)

    def _expanded(self, label: bytes, size: int) -> bytes:
        """HKDF-Expand-Label of RFC 8446, without a context; one block is enough."""
        info = struct.pack(">HB", size, len(label) + 6) + b"tls13 " + label + b"\0"
        return hmac.digest(self._secret, info + b"\1", self._hash)[:size]
