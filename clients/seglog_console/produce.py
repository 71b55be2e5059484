"""Producing a record, a new one or one like another: its form, and the command that is made of that."""

import json
from typing import Any, Final

from seglog.cli import envelope
from seglog.cli.exits import InputError
from seglog.cli.input_records import decode_json
from seglog.core.records import Record
from seglog_console.changes import Change, Fields
from seglog_console.commands import shell_text, words_of
from seglog_console.pages import BadInputError, View
from seglog_console.records import asked_of, consume_command, front_of, row_at
from seglog_protocol.texts import disarmed

FILLED_BYTES_MAX: Final = 24_000
"""The largest record that a form is filled from; for others there is the command."""
_OF_A_PLACE: Final = {"topic", "partition", "offset", "timestamp"}
"""Fields of a record that are new when it is sent again."""


async def context(view: View) -> dict[str, Any]:
    """The form, filled from the record at ``like`` of a partition if that is given."""
    asked = await asked_of(view)
    like, filled, command = view.number("like", -1), {}, ""
    if like >= 0:
        _, row = await row_at(asked, like)
        if row is None or row.record is None:
            raise BadInputError(f"{asked.topic} has no record at offset {like:,} to send again")
        filled = _filled(row.record)
        send = words_of(["produce"], [asked.topic], ["--format", "json", "--envelope"])
        one = consume_command(asked, row.partition, "--from", str(like), "--count", "1", "--format", "json")
        command = f"{one} | {shell_text([*front_of(view), *send])}"
    empty = dict.fromkeys(("key", "value", "rest"), "")
    shown = {"like": like, "filled": empty | filled, "is_filled": bool(filled), "command": command}
    return asked.shown() | shown


def _filled(record: Record) -> dict[str, str]:
    """The fields of a form for this record at another time; none where it is too large for one."""
    rest = {name: each for name, each in envelope.to_map(record).items() if name not in _OF_A_PLACE}
    filled = {name: rest.pop(name) for name in ("key", "value") if _comes_back(rest.get(name))}
    filled["rest"] = json.dumps(rest)
    return filled if sum(map(len, filled.values())) <= FILLED_BYTES_MAX else {}


def _comes_back(text: Any) -> bool:
    """True for a text that a form gives back as it is."""
    plain = (text or "").replace("\n", "").replace("\t", "")
    return plain != "" and disarmed(plain) == plain


# --- The command ------------------------------------------------------------------------------------------------------


def _line(fields: Fields) -> str:
    """The record as ``seglog consume --format json`` prints it. Raises BadInputError."""
    typed = {name: text for name in ("key", "value") if (text := fields.get(name))}
    try:
        rest = decode_json(fields.get("rest").strip().encode() or b"{}")
        if not isinstance(rest, dict):
            rest = {"rest": rest}  # which is no field of a record
        record = {"value": ""} | typed
        for name in {name.removesuffix("_base64") for name in rest} & record.keys():
            if record.pop(name):
                raise BadInputError(f"the {name} is in the rest, too: go back, and leave out one of both")
        line = json.dumps(record | rest)
        envelope.parse(line.encode())
    except InputError as error:
        raise BadInputError(str(error)) from error
    return line


CHANGES: Final = (
    Change(
        "produce",
        "Produce the record",
        "produce {topic} --format json --envelope [--partition={partition}]",
        given=_line,
    ),
)
