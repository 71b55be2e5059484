"""The token of ``seglog.http.token.file``: by it a client proves that it may see metrics and problems."""

import hashlib
import hmac
import re
from pathlib import Path
from typing import Final

from seglog_broker.config import BrokerConfig
from seglog_protocol.errors import InvalidConfigError

FILE_BYTES_MAX: Final = 4096
"""Bytes of the file."""

CHARACTERS_MIN: Final = 16
"""A shorter token could be guessed."""

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
"""What may stand behind ``Bearer`` (RFC 6750)."""

_KEY: Final = "seglog.http.token.file"


class BearerToken:
    """The token in force; it keeps a hash of it, so that no dump or traceback shows it."""

    def __init__(self, digest: bytes | None = None) -> None:
        """``digest`` is that of ``load_digest``; None where no token is wanted."""
        self._digest = digest

    @property
    def is_wanted(self) -> bool:
        """Whether clients have to show a token."""
        return self._digest is not None

    def is_proven_by(self, token: bytes) -> bool:
        """Whether ``token`` is the one; it takes as long for any of the same length."""
        return self._digest is not None and hmac.compare_digest(hashlib.sha256(token).digest(), self._digest)

    def replace(self, digest: bytes | None) -> bool:
        """Use another token from now on; whether it is another."""
        changed = digest != self._digest
        self._digest = digest
        return changed


def load_digest(config: BrokerConfig) -> bytes | None:
    """The hash of the token that the configuration names; None where it names none. Reads the file, so it blocks.

    Raises InvalidConfigError, which names file and remedy and never shows the token.
    """
    name = config.seglog_http_token_file
    if not name or not config.seglog_http_listen:
        return None
    try:
        if not Path(name).is_file():  # a pipe would wait for a writer
            raise _error(name, "it is no file" if Path(name).exists() else "there is no such file")
        with Path(name).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _error(name, (error.strerror or "it cannot be read").lower()) from error
    token = data.strip()
    if len(data) > FILE_BYTES_MAX:
        raise _error(name, f"it has more than {FILE_BYTES_MAX} bytes")
    if len(token) < CHARACTERS_MIN:
        raise _error(name, f"a token has {CHARACTERS_MIN} characters or more: openssl rand -hex 32 makes one")
    if _TOKEN.fullmatch(token) is None:
        raise _error(
            name,
            "a token is one line of letters, digits and - . _ ~ + /, with = at its end alone: openssl rand -hex 32 "
            "makes one",
        )
    return hashlib.sha256(token).digest()


def _error(name: str, why: str) -> InvalidConfigError:
    return InvalidConfigError(f"{_KEY} = {name} cannot be used: {why}.", key=_KEY)
