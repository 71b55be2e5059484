"""The command line, ``seglog``.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not reachable, 4 refused by the broker, 130 interrupted. Errors are one sentence
on stderr. All that takes time to be imported is imported when ``main`` has begun: Ctrl-C then ends that like anything
else, without a traceback.
"""

import sys
from collections.abc import Sequence
from typing import Final

from seglog_protocol.texts import printable

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C; the others are in ``exits``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        from seglog.cli.dispatch import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt as interrupt:
        complain("interrupted", *getattr(interrupt, "__notes__", ()))
        return INTERRUPTED


def complain(*lines: str) -> None:
    """Print lines to stderr, with the name of the command in front of each; what would not print is escaped."""
    for line in lines:
        print(f"seglog: {printable(line.removeprefix('seglog: '))}", file=sys.stderr)
