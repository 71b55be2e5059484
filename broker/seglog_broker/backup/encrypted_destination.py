"""A destination whose files are encrypted before they leave this machine, and the file with their key.

Bytes and their order are authenticated. An encrypted file is::

    header    MAGIC, key id (8 bytes), salt (16 random bytes)
    chunks    AES-256-GCM of CHUNK_BYTES each, the last one of fewer, or none, and a tag of 16 bytes after each

The key of a file is derived (HKDF with SHA-256) from the key of the backup, the salt and the file's name, so that a
file under another's name is found out. The nonce of a chunk, 12 bytes, is its number, big-endian, in 11, and a byte
that is 1 for the last chunk and 0 for the others: chunks that were moved, or a file that was cut, are found out. This
is the STREAM construction (Hoang, Reyhanitabar, Rogaway and Vizár, 2015), as in age.
"""

import base64
import binascii
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from seglog_broker.backup.destination import Destination, DestinationError, StoredFile
from seglog_broker.storage.io.filesystem import FileSystem

KEY_BYTES: Final = 32
"""Of a key, for AES-256."""

KEY_ID_BYTES: Final = 8
"""Of what an encrypted file says of its key: enough to tell two keys apart, and nothing to find one by."""

_FILE_BYTES_MAX: Final = 4096
"""What is longer is some other file, named by mistake."""


class KeyFileError(DestinationError):
    """The key file cannot be used; the message says why, and what to do."""


class BackupKey:
    """A key, which no repr shows."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes")
        self._key = key
        self.id = self.derived(b"seglog backup key id", size=KEY_ID_BYTES)
        """Of KEY_ID_BYTES, the same for the same key."""

    def derived(self, purpose: bytes, *, salt: bytes | None = None, size: int = KEY_BYTES) -> bytes:
        """A key of ``size`` bytes for one purpose alone, by HKDF with SHA-256."""
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - few backups have a key
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        return HKDF(SHA256(), length=size, salt=salt, info=purpose).derive(self._key)


def make_key_file(path: str) -> BackupKey:
    """Write a new random key into a new file, readable by its owner alone. Raises KeyFileError, OSError."""
    key = os.urandom(KEY_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise KeyFileError(f"{path} is there already, and a key is never overwritten: name another file") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(base64.b64encode(key) + b"\n")
        file.flush()
        os.fsync(descriptor)
    directory = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return BackupKey(key)


def read_key_file(path: str) -> BackupKey:
    """The key in a file: 32 bytes, or one line with the base64 of 32 bytes. Raises KeyFileError.

    A file that others than its owner can read is refused, as ssh does with private keys.
    """
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise KeyFileError(f"the key file {path} can be read by others than its owner: chmod 600 {path}")
    if len(data) != KEY_BYTES:
        with suppress(binascii.Error):
            data = base64.b64decode(data.strip(), validate=True)
    if len(data) != KEY_BYTES:
        raise KeyFileError(
            f"the key file {path} has no key in it: it needs {KEY_BYTES} bytes, or one line with their base64, as "
            "`seglogd backup-key FILE` writes it"
        )
    return BackupKey(data)


MAGIC: Final = b"seglog encrypted 1\n"

CHUNK_BYTES: Final = 1024 * 1024
"""Encrypted, and authenticated, at a time: what a reader holds before it believes any of it."""

_SALT_BYTES: Final = 16
_TAG_BYTES: Final = 16
HEADER_BYTES: Final = len(MAGIC) + KEY_ID_BYTES + _SALT_BYTES


class EncryptedDestination(Destination):
    """``inner``, with all files encrypted by ``key``. See ``Destination``; sizes are those of encrypted files."""

    def __init__(self, fs: FileSystem, inner: Destination, key: BackupKey) -> None:
        super().__init__(fs, inner.place)
        self._inner = inner
        self._key = key

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Encrypted chunk by chunk."""
        self._inner.put(name, self._encrypted(name, chunks))

    def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
        """Encrypted and put if there is none."""
        return self._inner.put_new(name, self._encrypted(name, chunks))

    def read(self, name: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Each chunk is authenticated before it is given out; that a file was cut shows at its end only."""
        number = start // CHUNK_BYTES
        for opened in self._chunks(name, number, None if end is None else -(-end // CHUNK_BYTES)):
            first = number * CHUNK_BYTES
            yield opened[max(0, start - first) : len(opened) if end is None else end - first]
            number += 1

    def _chunks(self, name: str, number: int, behind: int | None) -> Iterator[bytes]:
        """The chunks from one number to before another, or the last."""
        sealed_bytes = CHUNK_BYTES + _TAG_BYTES
        # A byte more says that the last one that is wanted is not the last of the file.
        end = None if behind is None else HEADER_BYTES + behind * sealed_bytes + 1
        chunks = self._inner.read(name, 0, HEADER_BYTES if number else end)
        pending = bytearray()
        for chunk in chunks:
            pending += chunk
            if len(pending) >= HEADER_BYTES:
                break
        header = bytes(pending[:HEADER_BYTES])
        where = f"{self.place}/{name}"
        if key_id_of(header) is None:
            raise DestinationError(f"{where} is not encrypted, or was damaged: it does not begin as such a file does")
        if len(header) < HEADER_BYTES:
            raise _cut(where)
        if key_id_of(header) != self._key.id:
            raise wrong_key(where, header, self._key)
        decrypt = partial(_decrypted, self._cipher(name, header), header)
        del pending[:HEADER_BYTES]
        if number:
            pending.clear()
            chunks = self._inner.read(name, HEADER_BYTES + number * sealed_bytes, end)
        while True:
            while len(pending) > sealed_bytes:
                yield self._opened(decrypt, name, number, bytes(pending[:sealed_bytes]), is_last=False)
                del pending[:sealed_bytes]
                number += 1
                if number == behind:
                    return
            more = next(chunks, None)
            if more is None:
                break
            pending += more
        yield self._opened(decrypt, name, number, bytes(pending), is_last=True)

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

    def _cipher(self, name: str, header: bytes) -> AESGCM:
        return AESGCM(self._key.derived(b"seglog backup file " + name.encode(), salt=header[-_SALT_BYTES:]))

    def _opened(self, decrypt: "_Decrypt", name: str, number: int, sealed: bytes, *, is_last: bool) -> bytes:
        opened = decrypt(number, sealed, is_last=is_last)
        if opened is not None:
            return opened
        where = f"{self.place}/{name}"
        if is_last and (not sealed or decrypt(number, sealed, is_last=False) is not None):
            raise _cut(where)
        raise DestinationError(
            f"{where} has bytes that were not written by whoever has the key: chunk {number}, at about "
            f"{number * CHUNK_BYTES} bytes, was damaged or changed, or the file has another one's name"
        )


_Decrypt = Callable[..., bytes | None]


def _decrypted(cipher: AESGCM, header: bytes, number: int, sealed: bytes, *, is_last: bool) -> bytes | None:
    """A chunk; None for one that is not what was written there."""
    try:
        return cipher.decrypt(_nonce(number, is_last=is_last), sealed, header)
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
