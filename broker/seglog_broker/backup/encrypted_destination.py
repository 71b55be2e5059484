"""A destination whose files are encrypted before they leave this machine: bytes and their order are authenticated.

An encrypted file is::

    header    MAGIC, key id (8 bytes), salt (16 random bytes)
    chunks    AES-256-GCM of CHUNK_BYTES each, the last one of fewer, or none, and a tag of 16 bytes after each

The key of a file is derived (HKDF with SHA-256) from the key of the backup, the salt and the file's name, so that a
file under another's name is found out. The nonce of a chunk, 12 bytes, is its number, big-endian, in 11, and a byte
that is 1 for the last chunk and 0 for the others: chunks that were moved, or a file that was cut, are found out. This
is the STREAM construction (Hoang, Reyhanitabar, Rogaway and Vizár, 2015), as in age.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from seglog_broker.backup.destination import Destination, DestinationError, StoredFile
from seglog_broker.backup.key_file import KEY_ID_BYTES, BackupKey
from seglog_broker.storage.io.copying import read_chunks
from seglog_broker.storage.io.filesystem import FileSystem

MAGIC: Final = b"seglog encrypted 1\n"

CHUNK_BYTES: Final = 1024 * 1024
"""Encrypted, and authenticated, at a time: what a reader holds before it believes any of it."""

_SALT_BYTES: Final = 16
_TAG_BYTES: Final = 16
HEADER_BYTES: Final = len(MAGIC) + KEY_ID_BYTES + _SALT_BYTES


class EncryptedDestination:
    """``inner``, with all files encrypted by ``key``. See ``Destination``; sizes are those of encrypted files."""

    def __init__(self, fs: FileSystem, inner: Destination, key: BackupKey) -> None:
        self._fs = fs
        self._inner = inner
        self._key = key

    @property
    def place(self) -> str:
        """As the inner destination's."""
        return self._inner.place

    def put_file(self, name: str, source: str, *, size: int, link: bool = False) -> None:
        """Never a link: the bytes there are others."""
        del link
        self.put(name, read_chunks(self._fs, source, size))

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Encrypted chunk by chunk."""
        self._inner.put(name, self._encrypted(name, chunks))

    def read(self, name: str) -> Iterator[bytes]:
        """Each chunk is authenticated before it is given out; that a file was cut shows at its end only."""
        chunks = self._inner.read(name)
        pending = bytearray()
        for chunk in chunks:
            pending += chunk
            if len(pending) >= HEADER_BYTES:
                break
        cipher = self._cipher_of(name, bytes(pending[:HEADER_BYTES]))
        del pending[:HEADER_BYTES]
        number = 0
        sealed_bytes = CHUNK_BYTES + _TAG_BYTES
        while True:
            while len(pending) > sealed_bytes:
                yield self._opened(cipher, name, number, bytes(pending[:sealed_bytes]), is_last=False)
                del pending[:sealed_bytes]
                number += 1
            more = next(chunks, None)
            if more is None:
                break
            pending += more
        yield self._opened(cipher, name, number, bytes(pending), is_last=True)

    def names(self, prefix: str = "") -> Iterator[StoredFile]:
        """Names are not encrypted."""
        return self._inner.names(prefix)

    def delete(self, name: str) -> None:
        """As the inner destination's."""
        self._inner.delete(name)

    def discard_unfinished(self) -> None:
        """As the inner destination's."""
        self._inner.discard_unfinished()

    def close(self) -> None:
        """Close the inner destination."""
        self._inner.close()

    def _encrypted(self, name: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
        header = MAGIC + self._key.id + os.urandom(_SALT_BYTES)
        yield header
        cipher = self._cipher(name, header)
        pending = bytearray()
        number = 0
        for chunk in chunks:
            pending += chunk
            while len(pending) > CHUNK_BYTES:  # not the last one: at least a byte follows
                yield cipher.encrypt(_nonce(number, is_last=False), bytes(pending[:CHUNK_BYTES]), header)
                del pending[:CHUNK_BYTES]
                number += 1
        yield cipher.encrypt(_nonce(number, is_last=True), bytes(pending), header)

    def _cipher_of(self, name: str, header: bytes) -> "_Cipher":
        where = f"{self.place}/{name}"
        if key_id_of(header) is None:
            raise DestinationError(f"{where} is not encrypted, or was damaged: it does not begin as such a file does")
        if len(header) < HEADER_BYTES:
            raise _cut(where)
        if key_id_of(header) != self._key.id:
            raise wrong_key(where, header, self._key)
        return _Cipher(self._cipher(name, header), header)

    def _cipher(self, name: str, header: bytes) -> AESGCM:
        return AESGCM(self._key.derived(b"seglog backup file " + name.encode(), salt=header[-_SALT_BYTES:]))

    def _opened(self, cipher: "_Cipher", name: str, number: int, sealed: bytes, *, is_last: bool) -> bytes:
        opened = cipher.opened(number, sealed, is_last=is_last)
        if opened is not None:
            return opened
        where = f"{self.place}/{name}"
        if is_last and (not sealed or cipher.opened(number, sealed, is_last=False) is not None):
            raise _cut(where)
        raise DestinationError(
            f"{where} has bytes that were not written by whoever has the key: chunk {number}, at about "
            f"{number * CHUNK_BYTES} bytes, was damaged or changed, or the file has another one's name"
        )


class _Cipher:
    """What opens the chunks of one file."""

    def __init__(self, cipher: AESGCM, header: bytes) -> None:
        self._cipher = cipher
        self._header = header

    def opened(self, number: int, sealed: bytes, *, is_last: bool) -> bytes | None:
        """The chunk; None for one that is not what was written there."""
        try:
            return self._cipher.decrypt(_nonce(number, is_last=is_last), sealed, self._header)
        except (InvalidTag, ValueError):  # ValueError: shorter than a tag
            return None


def key_id_of(beginning: bytes) -> bytes | None:
    """Of which key an encrypted file that begins so says it is; None where it is not encrypted."""
    return beginning[len(MAGIC) : len(MAGIC) + KEY_ID_BYTES] if beginning.startswith(MAGIC) else None


def wrong_key(where: str, beginning: bytes, key: BackupKey) -> DestinationError:
    """The error for a file of another key."""
    wanted = key_id_of(beginning) or b""
    return DestinationError(
        f"{where} was encrypted with another key: it needs the key with the id {wanted.hex()}, and the key file given "
        f"has {key.id.hex()}"
    )


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _cut(where: str) -> DestinationError:
    return DestinationError(f"{where} was cut: its end is missing")
