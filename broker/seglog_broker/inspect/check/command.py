"""``seglogd check DIRECTORY``: arguments, output, progress and exit codes.

Exit codes: 0 sound; 1 damage or wrong derived files (with --repair: those that remain); 2 wrong usage or configuration;
4 refused, because the directory is in use or is not a log directory; 130 interrupted.
"""

import argparse
from collections.abc import Sequence
from typing import Final

from seglog_broker.config.command_options import add_config_options, load_config
from seglog_broker.inspect.check.directory import CheckOptions, RefusedError, check_directory
from seglog_broker.inspect.dump.kinds import plain_path
from seglog_broker.inspect.facts import json_lines
from seglog_broker.inspect.findings import Totals
from seglog_broker.inspect.readable import readable
from seglog_broker.standard_output import ProgressLine, columns_of_terminal, print_line, refuse, run_printing
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.texts import size_text
from seglog_protocol.errors import InvalidConfigError

PROGRAM: Final = "seglogd check"

EXIT_OK: Final = 0
EXIT_UNSOUND: Final = 1
EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 4
EXIT_INTERRUPTED: Final = 130


def main(argv: Sequence[str]) -> int:
    """Check a directory and print the findings; returns the exit code. Raises SystemExit(2) on wrong usage."""
    arguments = make_parser().parse_args(argv)
    try:
        config = load_config(arguments.config, arguments.set)
    except InvalidConfigError as error:
        return refuse(PROGRAM, error.message, EXIT_USAGE)
    line, read_bytes = ProgressLine(), 0
    path = plain_path(arguments.directory)

    def next_segment(segment: str, size: int) -> None:
        nonlocal read_bytes
        line.show(lambda: f"{size_text(read_bytes)} read, reading {segment}")
        read_bytes += size

    def check() -> int:
        options = CheckOptions(deep=arguments.deep, repair=arguments.repair)
        is_sound = False
        for report in check_directory(PosixFileSystem(), path, config, options, next_segment):
            line.clear()
            for text in json_lines([report]) if arguments.json else readable([report], columns_of_terminal()):
                print_line(text)
            is_sound = isinstance(report, Totals) and report.is_sound  # the totals come last
        return EXIT_OK if is_sound else EXIT_UNSOUND

    try:
        return run_printing(PROGRAM, check, when_piped=EXIT_UNSOUND)
    except RefusedError as error:
        return refuse(PROGRAM, str(error), EXIT_REFUSED)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return refuse(PROGRAM, f"the check was ended by an error: {error.strerror or error}{where}", EXIT_UNSOUND)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    """The parser of the arguments, which docs/REFERENCE.md lists."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Check a log directory while no broker runs on it: every batch, checksum, index and small file. "
        "Changes nothing without --repair.",
        epilog="Exit codes: 0 sound, 1 not sound, 2 usage, 4 refused: in use, or not a log directory. "
        "See docs/REFERENCE.md.",
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
    add_config_options(parser)
    return parser
