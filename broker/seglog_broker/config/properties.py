"""Java's properties, the format of Kafka's ``server.properties``: text in, keys and values out."""

import re
from typing import Final

_CONTINUED: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*")
_ENTRY: Final = re.compile(r"((?:\\.|[^\\\s=:])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """The properties; of equal keys the last wins. Any text has some: nothing is an error."""
    found = {}
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "!")))
    for line in _CONTINUED.sub(r"\1", kept).split("\n"):
        entry = _ENTRY.fullmatch(line.lstrip())
        if entry is not None and line.strip():
            found[_plain(entry[1])] = _plain(entry[2]).strip()
    return found


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda found: _character(found[1]), text)


def _character(escaped: str) -> str:
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _CONTROLS.get(escaped, escaped)
