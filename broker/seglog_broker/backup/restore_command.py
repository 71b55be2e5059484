"""``seglogd restore BACKUP --to DIR``: make a log directory of a backup, and read it as a start of the broker does.

Exit codes: 0 restored, and as it was; 1 not restored; 2 usage or configuration; 3 restored, with differences that are
named; 130 interrupted.
"""

import argparse
import uuid
from collections.abc import Sequence
from typing import Final

from seglog_broker.backup.commands import (
    EXIT_OK,
    EXIT_PROBLEMS,
    Progress,
    add_backup_arguments,
    add_destination_options,
    config_of,
    contents_of,
    list_backups,
    opened_store,
    run,
    tell_problems,
)
from seglog_broker.backup.restoring import compare, restore
from seglog_broker.config.command_options import add_config_options
from seglog_broker.standard_output import print_lines
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem

PROGRAM: Final = "seglogd restore"


def main(argv: Sequence[str]) -> int:
    """Restore a backup; returns the exit code. Raises SystemExit(2) on wrong usage."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if not arguments.list and not arguments.to:
        parser.error("name the new log directory by --to DIR, or ask for --list")
    return run(PROGRAM, lambda: _restore(arguments))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the arguments, which docs/BACKUP.md explains."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Make a log directory of a backup, open it as a start of the broker does, and compare every record "
        "with what the backup counted.",
        epilog="Exit codes: 0 restored, 1 not restored, 2 usage, 3 restored, with differences that are named. "
        "See docs/BACKUP.md.",
        allow_abbrev=False,
    )
    add_backup_arguments(parser)
    parser.add_argument("--to", metavar="DIR", help="the new log directory: empty, or not there yet")
    parser.add_argument("--list", action="store_true", help="list the backups, the latest first, and do nothing else")
    add_destination_options(parser)
    add_config_options(parser)
    return parser


def _restore(arguments: argparse.Namespace) -> int:
    fs, config = PosixFileSystem(), config_of(arguments)
    with opened_store(fs, arguments, arguments.backup_place) as store:
        if arguments.list:
            return list_backups(PROGRAM, store)
        path = arguments.to.rstrip("/") or "/"
        manifest = store.find(arguments.backup)
        progress = Progress("restoring", manifest.size)
        restore(fs, manifest, store.destination, path, filenames.new_id(uuid.uuid4()), progress)
        progress.end()
    reading = Progress("reading", manifest.size)
    differences = compare(fs, SystemClock(), config, path, manifest, reading)
    reading.end()
    what = f"{contents_of(manifest)}, restored and read in {progress.seconds:.1f} s"
    print_lines([f"{path} is the log directory of {manifest.id}: {what}"])
    tell_problems(PROGRAM, [*manifest.problems, *differences])
    return EXIT_PROBLEMS if differences else EXIT_OK
