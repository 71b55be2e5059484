"""A client's half of SASL's mechanisms, which can be told to do it wrong: its tokens, and what has to come back."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Final

from tests.interop.kafka_wire import Plain

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

SCRAM: Final[Mapping[str, tuple[int, str]]] = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
"""Kafka's number of a mechanism, and its hash."""

NONCE: Final = "fyko+d2lbbFgONRv9qkxdawL"
"""A client's half of a nonce."""


def salted_password(password: str, salt: bytes, iterations: int, mechanism: str) -> bytes:
    """SaltedPassword of RFC 5802."""
    return hashlib.pbkdf2_hmac(SCRAM[mechanism][1], password.encode(), salt, iterations)


def client_first_bare(name: str, nonce: str = NONCE) -> str:
    """What follows the header for channel binding."""
    return f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"


def client_final(
    mechanism: str, first_bare: str, server_first: str, password: str, *, binding: str = "n,,", nonce: str | None = None
) -> tuple[str, str]:
    """The client's last message, and the broker's that it has to get."""
    attributes = dict(part.split("=", 1) for part in server_first.split(","))
    key = salted_password(password, base64.b64decode(attributes["s"]), int(attributes["i"]), mechanism)
    name = SCRAM[mechanism][1]

    def mac(secret: bytes, message: bytes) -> bytes:
        return hmac.digest(secret, message, name)

    client_key = mac(key, b"Client Key")
    bare = f"c={base64.b64encode(binding.encode()).decode()},r={attributes['r'] if nonce is None else nonce}"
    message = f"{first_bare},{server_first},{bare}".encode()
    signature = mac(hashlib.new(name, client_key).digest(), message)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    verifier = base64.b64encode(mac(mac(key, b"Server Key"), message)).decode()
    return f"{bare},p={base64.b64encode(proof).decode()}", f"v={verifier}"


def unsecured_token(**claims: Plain) -> str:
    """A JSON Web Token that nobody signed."""

    def part(value: Mapping[str, Plain]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part(claims)}."


def bearer(token: str, *, authzid: str = "", extensions: str = "") -> bytes:
    """The client's only message of OAUTHBEARER (RFC 7628)."""
    return f"n,{'a=' + authzid if authzid else ''},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def valid_token(*, lives_seconds: int = 3600, **claims: Plain) -> str:
    """A token of alice that is valid now, with other ``claims`` in their place."""
    now = int(time.time())
    return unsecured_token(**{"sub": "alice", "iat": now - 10, "exp": now + lives_seconds, **claims})
