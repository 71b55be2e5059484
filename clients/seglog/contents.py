"""What a program may pass as a record's value, key and headers."""

from collections.abc import Iterable, Mapping

from seglog_protocol.records import Headers

Content = bytes | bytearray | memoryview | str | None
HeaderInput = Mapping[str, Content] | Iterable[tuple[str, Content]]


def to_bytes(content: Content, what: str) -> bytes | None:
    """``content`` as it is sent, text as UTF-8. Raises TypeError, for ``what`` of a record."""
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"a record's {what} is bytes, str or None, not {type(content).__name__}")


def to_headers(headers: HeaderInput) -> Headers:
    """Headers as they are sent. Raises TypeError."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, Iterable):
        raise _no_pair(pairs)
    return tuple([_to_header(pair) for pair in pairs])


def _to_header(pair: tuple[str, Content]) -> tuple[str, bytes | None]:
    try:
        name, content = pair
    except (TypeError, ValueError):
        raise _no_pair(pair) from None
    if not isinstance(name, str):
        raise TypeError(f"the name of a record's header is str, not {type(name).__name__}")
    return name, to_bytes(content, "header value")


def _no_pair(given: object) -> TypeError:
    return TypeError(f"a record's headers are a mapping, or pairs of a name and a value, not {given!r}")
