"""JSON files that contain their own checksum, so that a flipped bit is noticed.

The last key is ``crc``: the CRC-32C, in 8 hex digits, of every byte before its value. A file without one was written
by an earlier version. Such a file may have no unknown key: that could be ``crc`` with a flipped bit.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from seglog_protocol.checksum import crc32c

_CRC_KEY: Final = "crc"
_DIGITS: Final = "00000000"
_END = re.compile(rb'[0-9a-f]{8}"\n?\}\n')


class MalformedJsonError(ValueError):
    """The content is not a file of this form, or was changed; the message is the end of a sentence."""


def seal(facts: Mapping[str, Any]) -> bytes:
    """The content of a file with the keys of ``facts``, none of which is ``crc``, and the checksum."""
    return _sealed(json.dumps({**facts, _CRC_KEY: _DIGITS}))


def seal_members(members: Iterable[str]) -> bytes:
    """As ``seal``, from members that are JSON text already (``"key": value``); each gets a line of its own."""
    lines = ",\n ".join((*members, f'"{_CRC_KEY}": "{_DIGITS}"'))
    return _sealed(f"{{\n {lines}\n}}")


def _sealed(text: str) -> bytes:
    content = text.encode() + b"\n"
    start = content.rindex(_DIGITS.encode())
    return content[:start] + f"{crc32c(content[:start]):08x}".encode() + content[start + len(_DIGITS) :]


def unseal(content: bytes, known: Collection[str]) -> dict[str, Any]:
    """The keys and values of a file, without its checksum. Raises MalformedJsonError.

    ``known`` are the keys that a file without a checksum may have.
    """
    try:
        found = json.loads(content)
    except ValueError as error:
        raise MalformedJsonError(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise MalformedJsonError("it is not a JSON object")
    if _CRC_KEY not in found:
        unknown = next((name for name in found if name not in known), None)
        if unknown is not None:
            raise MalformedJsonError(f"it has a key {unknown!r}, which is not known")
        return found
    crc = found.pop(_CRC_KEY)
    start = content.rindex(b'"', 0, content.rindex(b'"')) + 1
    if _END.fullmatch(content, start) is None or crc != f"{crc32c(content[:start]):08x}":
        raise MalformedJsonError("its own checksum, the value of crc, does not match")
    return found
