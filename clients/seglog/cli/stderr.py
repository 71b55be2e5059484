"""Sentences on stderr."""

import sys

from seglog_protocol.texts import printable


def complain(*lines: str) -> None:
    """Print lines to stderr, with the name of the command in front of each; what would not print is escaped."""
    for line in lines:
        print(f"seglog: {printable(line.removeprefix('seglog: '))}", file=sys.stderr)
