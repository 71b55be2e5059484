"""The commands that look at files: `seglogd check` and `seglogd dump`. Each returns its exit code.

Exit codes of both: 0 nothing is wrong; 1 damage, or for ``check`` a file to rebuild, was found; 2 wrong usage, or for
``dump`` a path with nothing to show; 4 refused; 130 interrupted. Both raise SystemExit(2) on wrong usage.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from seglog_broker.config.command_options import add_config_options, load_config
from seglog_broker.inspect.check.directory import CheckOptions, RefusedError, check_directory
from seglog_broker.inspect.dump.kinds import DumpOptions, NothingToDumpError, facts_of, plain_path
from seglog_broker.inspect.facts import Damage, Fact, json_lines
from seglog_broker.inspect.findings import Totals
from seglog_broker.inspect.readable import readable
from seglog_broker.standard_output import ProgressLine, columns_of_terminal, complain, print_line, refuse, run_printing
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem
from seglog_broker.texts import size_text
from seglog_protocol.errors import InvalidConfigError

EXIT_OK: Final = 0
EXIT_DAMAGED: Final = 1
EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 4
EXIT_INTERRUPTED: Final = 130


def check_parser() -> argparse.ArgumentParser:
    """The parser of `seglogd check`, whose arguments docs/REFERENCE.md lists."""
    parser = argparse.ArgumentParser(
        prog="seglogd check",
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


def main_check(argv: Sequence[str]) -> int:
    """``seglogd check DIRECTORY``: check a directory and print the findings."""
    parser = check_parser()
    program, arguments = parser.prog, parser.parse_args(argv)
    try:
        config = load_config(arguments.config, arguments.set)
    except InvalidConfigError as error:
        return refuse(program, error.message, EXIT_USAGE)
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
            _print([report], as_json=arguments.json)
            is_sound = isinstance(report, Totals) and report.is_sound  # the totals come last
        return EXIT_OK if is_sound else EXIT_DAMAGED

    try:
        return run_printing(program, check, when_piped=EXIT_DAMAGED)
    except RefusedError as error:
        return refuse(program, str(error), EXIT_REFUSED)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return refuse(program, f"the check was ended by an error: {error.strerror or error}{where}", EXIT_DAMAGED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def dump_parser() -> argparse.ArgumentParser:
    """The parser of `seglogd dump`, whose arguments docs/REFERENCE.md lists."""
    parser = argparse.ArgumentParser(
        prog="seglogd dump",
        description="Show the contents of a log directory, a partition, or single files of seglog or Kafka. "
        "Reads only, takes no lock, and works while a broker runs.",
        epilog="Exit codes: 0 nothing wrong, 1 damage was found, 2 usage or nothing to show. Times are UTC. "
        "See docs/REFERENCE.md.",
        allow_abbrev=False,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="log directory, partition directory, or file")
    parser.add_argument("--json", action="store_true", help="JSON lines: one object for each thing found")
    parser.add_argument("--records", action="store_true", help="open the batches of .log files and show the records")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare index entries with the log; for directories also check every checksum",
    )
    parser.add_argument("--quick", action="store_true", help="directories: count nothing, read no .log file")
    return parser


def main_dump(argv: Sequence[str]) -> int:
    """``seglogd dump PATH...``: print the contents of the paths."""
    parser = dump_parser()
    arguments = parser.parse_args(argv)
    options = DumpOptions(records=arguments.records, verify=arguments.verify, count=not arguments.quick)
    codes = {EXIT_OK}

    def dump() -> int:
        _print(_facts(PosixFileSystem(), arguments.paths, options, codes), as_json=arguments.json)
        return max(codes)

    try:
        return run_printing(parser.prog, dump, when_piped=EXIT_OK)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _facts(fs: FileSystem, paths: Iterable[str], options: DumpOptions, codes: set[int]) -> Iterator[Fact]:
    """The facts of several paths; adds to ``codes`` the exit codes that they call for, the highest of which counts."""
    for path in paths:
        try:
            found = facts_of(fs, path, options)
        except NothingToDumpError as error:
            codes.add(EXIT_USAGE)
            sys.stdout.flush()
            complain("seglogd dump", str(error))
            continue
        for fact in found:
            if isinstance(fact, Damage):
                codes.add(EXIT_DAMAGED)
            yield fact


def _print(facts: Iterable[Fact], *, as_json: bool) -> None:
    for line in json_lines(facts) if as_json else readable(facts, columns_of_terminal()):
        print_line(line)
