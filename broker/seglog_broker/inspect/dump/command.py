"""``seglogd dump PATH...``: arguments, output and exit codes.

Exit codes: 0 all was shown; 1 damage was found; 2 wrong usage, or a path with nothing to show; 130 interrupted.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from seglog_broker.inspect.dump.kinds import DumpOptions, NothingToDumpError, facts_of
from seglog_broker.inspect.facts import Damage, Fact, json_lines
from seglog_broker.inspect.readable import readable
from seglog_broker.standard_output import columns_of_terminal, complain, print_line, run_printing
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem

EXIT_OK: Final = 0
EXIT_DAMAGED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


def main(argv: Sequence[str]) -> int:
    """Print the contents of the paths; returns the exit code. Raises SystemExit(2) on wrong usage."""
    arguments = make_parser().parse_args(argv)
    options = DumpOptions(records=arguments.records, verify=arguments.verify, count=not arguments.quick)
    fs = PosixFileSystem()
    try:
        return run_printing(
            "seglogd dump", lambda: _dump(fs, arguments.paths, options, as_json=arguments.json), when_piped=EXIT_OK
        )
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    """The parser of the arguments, which docs/REFERENCE.md lists."""
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


def _dump(fs: FileSystem, paths: Sequence[str], options: DumpOptions, *, as_json: bool) -> int:
    codes = {EXIT_OK}
    facts = _facts(fs, paths, options, codes)
    for line in json_lines(facts) if as_json else readable(facts, columns_of_terminal()):
        print_line(line)
    return max(codes)


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
