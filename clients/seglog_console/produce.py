"""Producing a record, a new one or one like another: its form, and the command that is made of that."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from seglog.cli import envelope
from seglog.cli.exits import InputError
from seglog.cli.input_records import decode_json
from seglog.core.moments import AtTime, parse_moment
from seglog.core.records import Record
from seglog_console.changes import Change, Fields, Words
from seglog_console.commands import shell_text
from seglog_console.pages import BadInputError, View
from seglog_console.records import asked_of, consume_command, front_of, row_at
from seglog_protocol.texts import bytes_as_json, disarmed

FILLED_BYTES_MAX: Final = 24_000
"""The largest record that a form is filled from; for others there is the command."""
VALUE_KINDS: Final = ("text", "json", "hex", "none")
_FIELDS: Final = ("topic", "partition", "key", "key_as", "value", "value_as", "headers", "timestamp")


async def context(view: View) -> dict[str, Any]:
    """The form, filled from the record at ``like`` of a partition if that is given."""
    asked = await asked_of(view)
    like, filled, command = view.number("like", -1), {}, ""
    if like >= 0:
        _, row = await row_at(asked, like)
        if row is None or row.record is None:
            raise BadInputError(f"{asked.topic} has no record at offset {like:,} to send again")
        filled = _filled(row.record)
        send = shell_text([*front_of(view), "produce", asked.topic, "--format", "json", "--envelope"])
        command = f"{consume_command(asked, row.partition)} --from {like} --count 1 --format json | {send}"
    shown = {"like": like, "filled": dict.fromkeys(_FIELDS, "") | filled, "is_filled": bool(filled), "command": command}
    return asked.shown() | shown | {"value_kinds": VALUE_KINDS}


def _filled(record: Record) -> dict[str, str]:
    """The fields of a form for this record at another time; none where it is too large for one."""
    headers = [_header_line(name, content) for name, content in record.headers]
    size = len(record.key or b"") + len(record.value or b"") + sum(map(len, headers))
    if size > FILLED_BYTES_MAX:
        return {}
    value, value_as = ("", "none") if record.value is None else _as_field(record.value)
    key, key_as = ("", "text" if record.key is None else "hex") if not record.key else _as_field(record.key)
    return {"key": key, "key_as": key_as, "value": value, "value_as": value_as, "headers": "\n".join(headers)}


def _as_field(content: bytes) -> tuple[str, str]:
    """A text that comes back from a form as it is, and how it is to be read."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content.hex(), "hex"
    plain = text.replace("\n", "").replace("\t", "")
    return (text, "text") if disarmed(plain) == plain else (content.hex(), "hex")


def _header_line(name: str, content: bytes | None) -> str:
    line = "" if content is None else f"{name}={content.decode(errors='replace')}"
    is_plain = content is not None and line.isprintable() and line.strip() == line and not line.startswith("{")
    if is_plain and "=" not in name and line.encode() == b"%s=%s" % (name.encode(), content):
        return line
    return json.dumps({"key": name, **bytes_as_json("value", content)})


# --- The command ------------------------------------------------------------------------------------------------------


def _words(fields: Fields) -> Words:
    _line(fields)  # what is wrong with it is said before the command is shown
    options = ["--format", "json", "--envelope", *fields.options(partition="--partition")]
    return Words("produce", [fields["topic"]], options)


def _line(fields: Fields) -> str:
    """The record as ``seglog consume --format json`` prints it. Raises BadInputError."""
    value_as, content = fields.get("value_as") or "text", fields.get("value")
    if value_as not in VALUE_KINDS:
        raise BadInputError(f"a value is given as one of {', '.join(VALUE_KINDS)}, not {value_as!r}")
    if value_as == "none" and content:
        raise BadInputError("a tombstone has no value: go back, and empty the value, or say what it is")
    value = None if value_as == "none" else _bytes_of("value", content, value_as)
    record: dict[str, Any] = bytes_as_json("value", value)
    if fields.get("key") or fields.get("key_as") == "hex":
        record = bytes_as_json("key", _bytes_of("key", fields.get("key"), fields.get("key_as"))) | record
    record["headers"] = [_header(line) for line in fields.lines("headers")]
    if (timestamp := _timestamp(fields.get("timestamp").strip())) is not None:
        record["timestamp"] = timestamp
    line = json.dumps(record, ensure_ascii=False)
    _checked(lambda: envelope.parse(line.encode()))
    return line


def _bytes_of(name: str, text: str, kind: str) -> bytes:
    if kind == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise BadInputError(f"the {name} is no bytes in hex; write for example 00 ff") from None
    if kind == "json":
        _checked(lambda: decode_json(text.encode()))
    return text.encode()


def _header(line: str) -> Any:
    if line.startswith("{"):
        return _checked(lambda: decode_json(line.encode()))
    name, equals, content = line.partition("=")
    if not equals:
        raise BadInputError(f"a header is NAME=VALUE, or an object of JSON with key and value, not {line!r}")
    return {"key": name, "value": content}


def _timestamp(text: str) -> int | None:
    """Milliseconds since 1970; a relative time would be another one when the command runs. Raises BadInputError."""
    if not text:
        return None
    with suppress(ValueError):
        moment = parse_moment(f"@{text}" if text.isdecimal() else text, now_ms=0)
        if isinstance(moment, AtTime) and text[0].isdecimal():
            return moment.timestamp
    raise BadInputError(f"{text!r} is no timestamp; write milliseconds since 1970, or ISO 8601: 2019-01-01T10:00Z")


def _checked(parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except InputError as error:
        raise BadInputError(str(error)) from error


CHANGES: Final = (Change("produce", "Produce the record", _FIELDS, _words, given=_line),)
