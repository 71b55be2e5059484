"""``seglogd check DIRECTORY``: arguments, output, progress and exit codes.

Exit codes: 0 sound; 1 damage or wrong derived files (with --repair: those that remain); 2 wrong usage or configuration;
4 refused, because the directory is in use or is not a log directory; 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from seglog_broker.config import ConfigSources
from seglog_broker.inspect.check.directory import CheckOptions, RefusedError, check_directory
from seglog_broker.inspect.dump.kinds import plain_path
from seglog_broker.inspect.facts import json_lines
from seglog_broker.inspect.findings import Totals
from seglog_broker.inspect.readable import readable
from seglog_broker.standard_output import columns_of_terminal, complain, print_line, run_printing
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.texts import size_text
from seglog_protocol.errors import InvalidConfigError

EXIT_OK: Final = 0
EXIT_UNSOUND: Final = 1
EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 4
EXIT_INTERRUPTED: Final = 130

_CLEAR_LINE: Final = "\r\x1b[K"


def main(argv: Sequence[str]) -> int:
    """Check a directory and print the findings; returns the exit code. Raises SystemExit(2) on wrong usage."""
    arguments = make_parser().parse_args(argv)
    file_name = arguments.config or os.environ.get("SEGLOG_CONFIG") or ""
    try:
        config, _ = ConfigSources(file_name, os.environ, arguments.set).load()
    except InvalidConfigError as error:
        return _refuse(error.message, EXIT_USAGE)
    progress = _Progress(is_shown=sys.stderr.isatty())
    path = plain_path(arguments.directory)

    def check() -> int:
        options = CheckOptions(deep=arguments.deep, repair=arguments.repair)
        is_sound = False
        for report in check_directory(PosixFileSystem(), path, config, options, progress.segment):
            progress.clear()
            for line in json_lines([report]) if arguments.json else readable([report], columns_of_terminal()):
                print_line(line)
            is_sound = isinstance(report, Totals) and report.is_sound  # the totals come last
        return EXIT_OK if is_sound else EXIT_UNSOUND

    try:
        return run_printing("seglogd check", check, when_piped=EXIT_UNSOUND)
    except RefusedError as error:
        return _refuse(str(error), EXIT_REFUSED)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _refuse(f"the check was ended by an error: {error.strerror or error}{where}", EXIT_UNSOUND)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    """The parser of the arguments, which docs/INSPECT.md lists."""
    parser = argparse.ArgumentParser(
        prog="seglogd check",
        description="Check a log directory while no broker runs on it: every batch, checksum, index and small file. "
        "Changes nothing without --repair.",
        epilog="Exit codes: 0 sound, 1 not sound, 2 usage, 4 refused: in use, or not a log directory. "
        "See docs/INSPECT.md.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIRECTORY", help="log directory of seglog or Kafka")
    parser.add_argument("--json", action="store_true", help="JSON lines: one object for each finding, and the totals")
    parser.add_argument("--deep", action="store_true", help="open every batch and read its records, too")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="rebuild wrong indexes, copy damaged bytes aside, remove left-over files, write missing checksums, and "
        "lift read-only marks of partitions whose batches are all valid; no record is dropped",
    )
    parser.add_argument("--config", metavar="FILE", help="the broker's configuration file (or SEGLOG_CONFIG)")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="set one key; repeatable")
    return parser


def _refuse(sentence: str, code: int) -> int:
    complain("seglogd check", sentence)
    return code


class _Progress:
    """A line of progress on standard error, overwritten each time. Shown only in a terminal."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._bytes = 0
        self._is_there = False

    def segment(self, path: str, size: int) -> None:
        """Show that the segment ``path`` of ``size`` bytes is read next."""
        if self._is_shown:
            sys.stderr.write(f"{_CLEAR_LINE}{size_text(self._bytes)} read, reading {path}")
            sys.stderr.flush()
            self._is_there = True
        self._bytes += size

    def clear(self) -> None:
        """Remove the line, before a line of output is printed."""
        if self._is_there:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._is_there = False
