"""The subset of Java's properties format in ``meta.properties``: one ``key=value`` a line, ``#`` and ``!`` comments."""

import re
from typing import Final

_PROPERTY: Final = re.compile(r"^[ \t]*([^#!\s=:]+)[ \t]*[=:][ \t]*(.*?)[ \t\r]*$", re.MULTILINE)


def decode_properties(content: bytes) -> dict[str, str]:
    """The properties; of equal keys the last wins. Other lines, and bytes that are not UTF-8, are ignored."""
    return dict(_PROPERTY.findall(content.decode(errors="replace")))
