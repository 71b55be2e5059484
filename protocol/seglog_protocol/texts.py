"""Texts that others chose, such as the names of groups and members, as they are shown in a terminal or in JSON."""

import re
from binascii import b2a_base64
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal would obey, what turns the direction of text, and halves of surrogate pairs."""


def printable(text: str) -> str:
    """``text`` with characters that would not print, such as those that move a cursor, as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def disarmed(text: str) -> str:
    """``text`` with control characters as Python's escapes, and any other character as it is: for a terminal."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def disarmed_json(text: str) -> str:
    """JSON on one line with control characters as JSON's own escapes, so that it says the same: for a terminal."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def bytes_as_json(name: str, content: bytes | None) -> dict[str, str | None]:
    """A key or value under its name for JSON: text, base64 under ``NAME_base64`` if it is not UTF-8, or None."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b2a_base64(content, newline=False).decode()}


def shortened(text: str, most: int) -> str:
    """``text`` in at most ``most`` characters: of a longer one both ends, because names differ in either."""
    if len(text) <= most:
        return text
    tail = (most - len("...")) // 2
    return f"{text[: most - tail - len('...')]}...{text[len(text) - tail :]}"


def first_of(names: Iterable[str], count: int, most: int = 5) -> str:
    """The first of ``count`` names, and how many there are beside: ``a, b, 3 more``; empty without any."""
    shown = list(islice(names, most))
    if count > most:
        shown.append(f"{count - most:,} more")
    return ", ".join(shown)


def host_text(client_host: str) -> str:
    """The address of a member of a group, without the slash before it that Kafka's clients are used to."""
    return client_host.removeprefix("/")


def members_text(members: Collection[tuple[str, str]]) -> str:
    """Up to five members of a group, by member id and host, and how many there are beside."""
    return first_of((f"{member_id} ({host_text(host)})" for member_id, host in members), len(members))
