"""SCRAM credentials (RFC 5802), made of passwords or salted ones; and decoys, for users that do not exist.

A client that logs in sees salt and number of iterations before it has proven anything, and how long a password takes to
check. So a user that does not exist has all of these, made of its name and a secret of the broker: the same at each
attempt and after a restart, and like those of the accounts that there are.
"""

import hashlib
import hmac
import math
import secrets
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Final

from seglog_broker.storage.directory.accounts import AccountStore, Credential, Shape
from seglog_protocol.scram import HASHES, ITERATIONS_DEFAULT, PASSWORD_BYTES_MAX, SALT_BYTES, salted

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's limits: few iterations help who guesses passwords, many let logins cost the broker much."""


def from_salted(mechanism: str, iterations: int, salt: bytes, salted_password: bytes) -> Credential:
    """The credential of a password that was salted by ``salted``. Raises ValueError for one that is not possible."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return Credential(mechanism, iterations, salt, stored_key, server_key)


def from_password(mechanism: str, password: str, iterations: int = ITERATIONS_DEFAULT) -> Credential:
    """A new credential with a random salt, as slow as ``salted``."""
    salt = secrets.token_bytes(SALT_BYTES)
    return from_salted(mechanism, iterations, salt, salted(mechanism, password.encode(), salt, iterations))


def is_one_of(credential: Credential, passwords: Iterable[bytes]) -> bool:
    """Whether the credential was made of one of ``passwords``; each takes as long as ``salted``, with either answer."""
    return any([_is_password(credential, password) for password in passwords])  # noqa: C419 - all, so that none is told


def _is_password(credential: Credential, password: bytes) -> bool:
    found = salted(credential.mechanism, password, credential.salt, credential.iterations)
    proven = from_salted(credential.mechanism, credential.iterations, credential.salt, found)
    return hmac.compare_digest(proven.stored_key, credential.stored_key)


def prepared(text: str) -> str:
    """``text`` as SASLprep (RFC 4013) makes it; as it is where that forbids it, or no password would be as long."""
    if len(unicodedata.normalize("NFKC", text).encode(errors="replace")) > PASSWORD_BYTES_MAX:
        return text  # one character can stand for eighteen, and SASLprep looks at each for microseconds
    from scramp.utils import ScramException, saslprep  # noqa: PLC0415 - it brings certificates along

    try:
        found: str = saslprep(text)
    except ScramException:
        return text
    return found


def why_not_prepared(text: str) -> str | None:
    """Why ``text`` is no name or password for a new account, as the end of a sentence; None if it can be one.

    Some clients prepare names and passwords by SASLprep (RFC 4013), Kafka's do not: what it changes would be another
    text to one of them than to the other.
    """
    if not text:
        return "it is empty"
    if text.isascii() and text.isprintable():
        return None
    from scramp.utils import ScramException, saslprep  # noqa: PLC0415 - it brings certificates along

    try:
        prepared = saslprep(text)
    except ScramException as error:
        return f"SASLprep forbids it: {error.args[0]}"
    if prepared != text:
        return "SASLprep changes it: use its composed form, without characters that are not seen"
    return None


def why_no_password(password: str) -> str | None:
    """Why a new account cannot have this password, as the end of a sentence that does not show it; None if it can."""
    if len(password.encode(errors="surrogatepass")) > PASSWORD_BYTES_MAX:
        return f"it has more than {PASSWORD_BYTES_MAX:,} bytes"
    return why_not_prepared(password)


_SHAPES_MAX: Final = 16
"""The most frequent shapes are imitated, so that a login costs the same however many others there are."""

_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


class Decoys:
    """Credentials for names that have none."""

    def __init__(self, accounts: AccountStore) -> None:
        self._accounts = accounts

    def for_scram(self, name: str, mechanism: str) -> Credential:
        """A credential that no password fits."""
        return self._made(name, mechanism, self._accounts.shapes[mechanism])

    def for_password(self, name: str) -> Credential:
        """The same, of the mechanism that a password would be checked by."""
        return self._made(name, "SCRAM-SHA-256", self._accounts.password_shapes)

    def _made(self, name: str, mechanism: str, shapes: "Counter[Shape]") -> Credential:
        shape = Shape(mechanism, ITERATIONS_DEFAULT, SALT_BYTES, is_text_salt=False)
        if shapes:
            # Rendezvous hashing with weights: a name's shape changes only where the accounts' shapes do, and the
            # shapes are as frequent among names that do not exist as among accounts.
            common = shapes.most_common(_SHAPES_MAX)
            shape = max(common, key=lambda each: self._score(name, *each))[0]
        hash_name = HASHES[shape.mechanism]
        stored_key = hmac.digest(self._accounts.secret, f"stored {shape.mechanism} {name}".encode(), hash_name)
        server_key = hmac.digest(self._accounts.secret, f"server {shape.mechanism} {name}".encode(), hash_name)
        salt = self._bytes(f"salt {shape.mechanism} {name}", shape.salt_bytes)
        if shape.is_text_salt:
            salt = bytes(_DIGITS[byte % len(_DIGITS)] for byte in salt)
        return Credential(shape.mechanism, shape.iterations, salt, stored_key, server_key)

    def _score(self, name: str, shape: Shape, weight: int) -> float:
        drawn = int.from_bytes(self._bytes(f"shape {tuple(shape)} {name}", 8), "big")
        return -weight / math.log((drawn + 1) / (2**64 + 1))

    def _bytes(self, label: str, size: int) -> bytes:
        labels = (f"{number} {label}".encode() for number in range(-(-size // 32)))
        return b"".join(hmac.digest(self._accounts.secret, each, "sha256") for each in labels)[:size]
