"""Texts that others chose, such as the names of groups and members, as they are shown in a terminal or in JSON."""

from binascii import b2a_base64
from collections.abc import Collection, Iterable
from itertools import islice


def printable(text: str) -> str:
    """``text`` with characters that would not print, such as those that move a cursor, as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


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
