"""The command line, ``seglog``.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not reachable, 4 refused by the broker, 130 interrupted. Errors are one sentence
on stderr. All that takes time to be imported is imported when ``main`` has begun: Ctrl-C then ends that like anything
else, without a traceback.
"""

import sys
from collections.abc import Sequence
from typing import Final

from seglog.cli.stderr import complain

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C; the others are in ``exits``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        from seglog.cli.dispatch import run  # noqa: PLC0415 - see above

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt as interrupt:
        complain("interrupted", *getattr(interrupt, "__notes__", ()))
        return INTERRUPTED
