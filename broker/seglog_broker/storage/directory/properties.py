"""Java's properties text, as far as ``meta.properties`` uses it: one ``key=value`` a line, ``#`` and ``!`` comment."""

import re
from typing import Final

_PROPERTY: Final = re.compile(r"^[ \t]*([^#!\s=:]+)[ \t]*[=:][ \t]*(.*?)[ \t\r]*$", re.MULTILINE)


def decode_properties(content: bytes) -> dict[str, str]:
    """The properties, the last of equal keys winning. Lines of another kind and bytes that are no UTF-8 do no harm."""
    return dict(_PROPERTY.findall(content.decode(errors="replace")))
