"""Sentences on stderr."""

import sys


def complain(*lines: str) -> None:
    """Print lines to stderr, with the name of the command in front of each."""
    for line in lines:
        print(f"seglog: {line.removeprefix('seglog: ')}", file=sys.stderr)
