"""``seglogd verify BACKUP``: restore a backup beside, compare every record, and remove the copy.

Exit codes: 0 as it was; 1 it cannot be restored, or differs; 2 usage or configuration; 130 interrupted.
"""

import argparse
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from seglog_broker.backup.commands import (
    EXIT_FAILED,
    EXIT_OK,
    Progress,
    add_backup_arguments,
    add_destination_options,
    config_of,
    contents_of,
    opened_store,
    run,
    tell_problems,
)
from seglog_broker.backup.manifest import BackupError
from seglog_broker.backup.restoring import compare, restore
from seglog_broker.config.command_options import add_config_options
from seglog_broker.standard_output import print_lines
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem

PROGRAM: Final = "seglogd verify"


def main(argv: Sequence[str]) -> int:
    """Verify a backup; returns the exit code. Raises SystemExit(2) on wrong usage."""
    arguments = make_parser().parse_args(argv)
    return run(PROGRAM, lambda: _verify(arguments))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the arguments, which docs/BACKUP.md explains."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Restore a backup into a directory that is removed again, open that as a start of the broker does, "
        "and compare every record with what the backup counted. It takes as much space as the backup has bytes.",
        epilog="Exit codes: 0 as it was, 1 not, 2 usage. See docs/BACKUP.md.",
        allow_abbrev=False,
    )
    add_backup_arguments(parser)
    parser.add_argument("--scratch", metavar="DIR", help="where the copy is made; by default where temporary files are")
    add_destination_options(parser)
    add_config_options(parser)
    return parser


def _verify(arguments: argparse.Namespace) -> int:
    fs, config = PosixFileSystem(), config_of(arguments)
    if arguments.scratch is not None and not Path(arguments.scratch).is_dir():
        raise BackupError(f"{arguments.scratch} is no directory: --scratch names one in which the copy can be made")
    with (
        opened_store(fs, arguments, arguments.backup_place) as store,
        tempfile.TemporaryDirectory(prefix="seglog-verify-", dir=arguments.scratch) as scratch,
    ):
        manifest = store.find(arguments.backup)
        path = str(Path(scratch) / "data")
        progress = Progress("verifying", 2 * manifest.size)
        restore(fs, manifest, store.destination, path, filenames.new_id(uuid.uuid4()), progress)
        differences = compare(fs, SystemClock(), config, path, manifest, progress)
        progress.end()
    if not differences:
        print_lines([f"{manifest.id} is sound: {contents_of(manifest)}, in {progress.seconds:.1f} s"])
    tell_problems(PROGRAM, [*manifest.problems, *differences])
    return EXIT_FAILED if differences else EXIT_OK
