"""Credentials of users that do not exist: nothing that a client sees tells them from those of users that do.

A client that logs in sees salt and number of iterations before it has proven anything, and how long a password takes to
check. So a user that does not exist has all of these, made of its name and a secret of the broker: the same at each
attempt and after a restart, and like those of the accounts that there are.
"""

import hmac
import math
from collections import Counter
from typing import Final

from seglog_broker.storage.directory.accounts import AccountStore, Credential, Shape
from seglog_protocol.scram import HASHES, ITERATIONS_DEFAULT, SALT_BYTES

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
