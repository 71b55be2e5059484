"""The command line, ``seglog``.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not reachable, 4 refused by the broker, 130 interrupted. Errors are one sentence
on stderr. All that takes time to be imported is imported when ``main`` has begun: Ctrl-C then ends that like anything
else, without a traceback.
"""

import sys

TYPE_CHECKING = False  # `typing` takes as long to import as `seglog --version` does in all
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

INTERRUPTED: "Final" = 130
"""The exit code after Ctrl-C; the others are in ``exits``."""

_WORDS: "Final[dict[str, dict[str, str]]]" = {"warning:": {"fg": "yellow"}, "note:": {"fg": "cyan"}}


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given == ["--version"] and sys.stdout is not None:
            from seglog_protocol.version import VERSION

            try:
                print(f"seglog {VERSION}", flush=True)  # noqa: T201 - at once, without what other commands import
            except OSError:
                pass  # raised again below, where it becomes a sentence
            else:
                return 0
        from seglog.cli.dispatch import run

        return run(given)
    except KeyboardInterrupt as interrupt:
        complain("interrupted", *getattr(interrupt, "__notes__", ()))
        return INTERRUPTED


def complain(*lines: str, **style: "Any") -> None:
    """Print lines to stderr, with the name of the command in front of each; what would not print is escaped.

    ``style`` is that of the name. A word that says what the line is, ``warning:`` or ``note:``, has one of its own.
    """
    from seglog.cli.terminal import styled
    from seglog_protocol.texts import printable

    for line in lines:
        name, text = styled("seglog:", sys.stderr, **style), printable(line.removeprefix("seglog: "))
        word, space, rest = text.partition(" ")
        _print(f"{name} {styled(word, sys.stderr, **_WORDS.get(word, {}))}{space}{rest}")


def _print(line: str) -> None:
    """Print a line to stderr, above a progress bar if there is one."""
    if "tqdm" in sys.modules:
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr)  # noqa: T201 - the one place for stderr
