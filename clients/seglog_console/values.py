"""Bytes of others as text for a page: JSON, text, hex or msgpack, of whatever size and content, bounded as HTML."""

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any, Final, NamedTuple

import msgpack

from seglog.cli.exits import InputError
from seglog.cli.input_records import decode_json
from seglog_protocol.texts import disarmed

KINDS: Final = ("auto", "json", "text", "hex", "msgpack")
PARSED_BYTES_MAX: Final = 256 * 1024
"""The longest value that is read as JSON or msgpack; of a longer one the beginning is shown as text or hex."""
_LOOKED_AT: Final = 4096
"""Bytes by which a kind is chosen."""
_INDENT_MAX: Final = 24
"""Levels of nesting that are indented; deeper ones stand below each other."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|h\'[0-9a-f]*\'|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)
_BINARY: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MSGPACK_BEGINS: Final = (*range(0x80, 0xA0), *range(0xDC, 0xE0))
"""First bytes of arrays and maps; other values would be found in any bytes."""


class Shown(NamedTuple):
    """A value as text: its kind (``none`` for no value), what of it is shown, and its bytes in all."""

    kind: str
    text: str
    size: int
    note: str = ""
    is_cut: bool = False


def shown(content: bytes | None, kind: str, most: int, *, is_long: bool) -> Shown:
    """``content`` in at most ``most`` bytes of HTML, as ``kind`` of KINDS, or as hex with a note why not.

    With ``is_long`` in lines, JSON and msgpack indented; else in one line.
    """
    if content is None:
        return Shown("none", "", 0)
    note, text, chosen = "", "", "hex"
    for chosen in _kinds_of(content) if kind == "auto" else (kind, "hex"):
        try:
            text = _as(content, chosen, most, is_long=is_long)
            break
        except InputError as error:
            note = "" if kind == "auto" else f"not {kind}: {error}"
    text = "\n".join(map(disarmed, text.split("\n"))) if is_long else disarmed(text)
    part = bounded(text, most)
    is_whole = part == text and (chosen in {"json", "msgpack"} or len(content) <= most)
    return Shown(chosen, part, len(content), note, not is_whole)


def bounded(text: str, most: int) -> str:
    """The beginning of a text, of at most ``most`` bytes as HTML."""
    text = text[:most]
    while (size := len(escape(text).encode(errors="replace"))) > most:
        text = text[: min(len(text) - 1, len(text) * most // size)]
    return text


def _kinds_of(content: bytes) -> tuple[str, ...]:
    """The kinds that the value may be of, by its beginning, the one that says most first."""
    begin = content[:_LOOKED_AT]
    try:
        begin.decode()
        is_text = True
    except UnicodeDecodeError as error:  # a character may be cut
        is_text = len(content) > _LOOKED_AT and error.start > _LOOKED_AT - 4
    if is_text and len(_BINARY.findall(begin)) * 10 <= len(begin):
        return ("json", "text") if begin.lstrip()[:1] in {b"{", b"["} else ("text",)
    return ("msgpack", "hex") if begin[0] in _MSGPACK_BEGINS else ("hex",)


def _as(content: bytes, kind: str, most: int, *, is_long: bool) -> str:
    """The text of a kind, not much more than ``most`` characters; InputError if it is not of this kind."""
    if kind == "hex":
        return "\n".join(_hex_lines(content[: most // 4])) if is_long else _hex_line(content[: most // 4])
    if kind == "text":
        return content[:most].decode(errors="backslashreplace")
    if len(content) > PARSED_BYTES_MAX:
        raise InputError(f"it has {len(content):,} bytes, and of more than {PARSED_BYTES_MAX:,} none are read as that")
    if kind == "json":
        decode_json(content)
        text = content.decode()
    else:
        text = _diagnostic(_unpacked(content), most)
    return "".join(_indented(text, most, is_long=is_long))


def _indented(text: str, most: int, *, is_long: bool) -> Iterator[str]:
    """The tokens of JSON as they were written: numbers keep their digits, and objects their doubled names."""
    depth, size, is_empty = 0, 0, False
    for found in _TOKEN.finditer(text):
        piece, after = found[0], ""
        if is_long and piece in {"}", "]"}:
            depth -= 1
            if not is_empty:
                yield "\n" + "  " * min(depth, _INDENT_MAX)
        if is_long and is_empty and piece not in {"}", "]"}:
            yield "\n" + "  " * min(depth, _INDENT_MAX)
        is_empty = piece in {"{", "["}
        if is_empty:
            depth += 1
        elif piece == ",":
            after = "\n" + "  " * min(depth, _INDENT_MAX) if is_long else " "
        elif piece == ":":
            after = " "
        yield piece + after
        size += len(piece) + len(after)
        if size > most:
            return


def _hex_lines(content: bytes) -> Iterator[str]:
    for position in range(0, len(content), 16):
        some = content[position : position + 16]
        yield f"{position:08x}  {some[:8].hex(' '):<23}  {some[8:].hex(' '):<23}  |{_ascii(some)}|"


def _hex_line(content: bytes) -> str:
    return f"{content.hex(' ')}  |{_ascii(content)}|"


def _ascii(content: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in content)


# --- msgpack ----------------------------------------------------------------------------------------------------------


class _Map(list[tuple[Any, Any]]):
    """The pairs of a map in their order: keys may be of any kind, and there twice."""


def _unpacked(content: bytes) -> Any:
    try:
        return msgpack.unpackb(content, strict_map_key=False, object_pairs_hook=_Map)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise InputError(str(error) or type(error).__name__) from error


def _diagnostic(value: Any, most: int) -> str:
    """Like JSON, with ``h'00ff'`` for bytes and keys of any kind; not much more than ``most`` characters."""
    text: list[str] = []
    size = 0
    try:
        for piece in _pieces(value):
            text.append(piece)
            size += len(piece)
            if size > most:
                break
    except RecursionError:
        raise InputError("nested too deeply") from None
    return "".join(text)


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, _Map):
        for number, (key, each) in enumerate(value):
            yield "," if number else "{"
            yield from _pieces(key)
            yield ":"
            yield from _pieces(each)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield "," if number else "["
            yield from _pieces(each)
        yield "]" if value else "[]"
    elif isinstance(value, bytes):
        yield f"h'{value.hex()}'"
    elif isinstance(value, msgpack.ExtType):
        yield f"ext({value.code})h'{value.data.hex()}'"
    elif isinstance(value, msgpack.Timestamp):
        yield f"time({value.seconds}.{value.nanoseconds:09})"
    else:
        yield json.dumps(value, ensure_ascii=False)
