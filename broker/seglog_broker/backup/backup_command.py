"""``seglogd backup DIR --to DEST``: take a backup of a log directory, whether or not a broker uses it.

Exit codes: 0 taken; 1 not taken; 2 usage or configuration; 3 taken, with problems that are named; 130 interrupted.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from seglog_broker.backup.commands import (
    EXIT_OK,
    EXIT_PROBLEMS,
    Progress,
    add_destination_options,
    config_of,
    contents_of,
    opened_store,
    run,
    tell_problems,
)
from seglog_broker.backup.manifest import BackupError
from seglog_broker.backup.source import open_source
from seglog_broker.backup.taking import take_backup
from seglog_broker.config.command_options import add_config_options
from seglog_broker.standard_output import print_lines
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.texts import size_text

PROGRAM: Final = "seglogd backup"


def main(argv: Sequence[str]) -> int:
    """Take a backup; returns the exit code. Raises SystemExit(2) on wrong usage."""
    arguments = make_parser().parse_args(argv)
    return run(PROGRAM, lambda: _backup(arguments))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the arguments, which docs/BACKUP.md explains."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Take a backup of a log directory. A broker that uses it goes on; it is asked over a socket in the "
        "directory. What the last backup in the same place has is not copied again.",
        epilog="Exit codes: 0 taken, 1 not taken, 2 usage, 3 taken, with problems that are named. See docs/BACKUP.md.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="the log directory")
    parser.add_argument("--to", metavar="DEST", required=True, help="a directory, or s3://BUCKET/PATH, gs://, az://")
    parser.add_argument("--keep", metavar="N", type=_count, help="then remove all but the latest N backups")
    parser.add_argument(
        "--link",
        action="store_true",
        help="on the same file system, keep closed segments as second names of the broker's files: no space, but no "
        "second copy of their bytes",
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="continue the backups of the log directory that this one was restored from",
    )
    add_destination_options(parser)
    add_config_options(parser)
    return parser


def _backup(arguments: argparse.Namespace) -> int:
    """Take the backup and print what it has; returns the exit code."""
    fs, clock, config = PosixFileSystem(), SystemClock(), config_of(arguments)
    path = arguments.directory.rstrip("/") or "/"
    if "://" not in arguments.to and Path(arguments.to).resolve().is_relative_to(Path(path).resolve()):
        raise BackupError(f"{arguments.to} lies in {path}, which has room for partitions alone: name another place")
    progress = Progress("backing up")
    with opened_store(fs, arguments, arguments.to) as store:
        with open_source(fs, clock, path, config) as source:
            manifest, removed = take_backup(
                fs,
                source,
                store,
                clock.now_ms(),
                link=arguments.link,
                take_over=arguments.take_over,
                keep=arguments.keep,
                progress=progress,
            )
        progress.end()
    copied = sum(part.size for file in manifest.files for part in file.parts if manifest.id in part.name)
    gone = f", {removed} older removed" if removed else ""
    what = f"{contents_of(manifest)}, of which {size_text(copied)} are new"
    print_lines([f"{manifest.id}: {what}, in {progress.seconds:.1f} s{gone}"])
    tell_problems(PROGRAM, manifest.problems)
    return EXIT_PROBLEMS if manifest.problems else EXIT_OK


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError("must be a number of backups, at least 1")
    return int(text)
