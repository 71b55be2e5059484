"""``seglog-clock.json``: the wall time of the last checkpoint at which the clock was trusted, as sealed JSON.

Keys: ``version``, 1, and ``trusted_ms``, milliseconds since 1970.
"""

from typing import Final

from seglog_broker.storage.io.sealed_json import MalformedJsonError, seal, unseal

_VERSION: Final = 1


def encode_trusted_time(trusted_ms: int) -> bytes:
    """The content of the file."""
    return seal({"version": _VERSION, "trusted_ms": trusted_ms})


def decode_trusted_time(content: bytes) -> int:
    """The time, in ms, in the content of a file. Raises MalformedJsonError."""
    found = unseal(content, {"version", "trusted_ms"})
    version, trusted_ms = found.get("version"), found.get("trusted_ms")
    if version != _VERSION:
        raise MalformedJsonError(f"its version is {version!r}, not {_VERSION}")
    if type(trusted_ms) is not int:
        raise MalformedJsonError(f"its trusted_ms is {trusted_ms!r}, not a whole number")
    return trusted_ms
