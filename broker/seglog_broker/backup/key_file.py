"""The key of an encrypted backup: 32 bytes in a file."""

import base64
import binascii
import os
from pathlib import Path
from typing import Final

KEY_BYTES: Final = 32
"""Of a key, for AES-256."""

KEY_ID_BYTES: Final = 8
"""Of what an encrypted file says of its key: enough to tell two keys apart, and nothing to find one by."""

_FILE_BYTES_MAX: Final = 4096
"""What is longer is some other file, named by mistake."""


class KeyFileError(Exception):
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
    key = data if len(data) == KEY_BYTES else _from_base64(data)
    if key is None:
        raise KeyFileError(
            f"the key file {path} has no key in it: it needs {KEY_BYTES} bytes, or one line with their base64, as "
            "`seglogd backup-key FILE` writes it"
        )
    return BackupKey(key)


def _from_base64(data: bytes) -> bytes | None:
    try:
        key = base64.b64decode(data.strip(), validate=True)
    except binascii.Error:
        return None
    return key if len(key) == KEY_BYTES else None
