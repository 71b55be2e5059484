"""What client and broker derive from a password alike, for SCRAM (RFC 5802, RFC 7677)."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

HASHES: Final[Mapping[str, str]] = MappingProxyType({"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"})
"""The mechanisms, and their hash functions as ``hashlib`` names them."""

NUMBERS: Final = MappingProxyType({"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2})
"""The mechanisms as Kafka's wire numbers them."""

ITERATIONS_DEFAULT: Final = 8_192
"""Of a new account: twice the least that Kafka and RFC 7677 allow."""

SALT_BYTES: Final = 32
"""Of a new account."""

PASSWORD_BYTES_MAX: Final = 1_024


def salted(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Hi of RFC 5802, which takes milliseconds of a processor, without the interpreter lock."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)
