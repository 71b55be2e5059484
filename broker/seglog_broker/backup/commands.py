"""The commands of backups: `seglogd backup`, `restore`, `verify` and `backup-key`. Each returns its exit code.

Exit codes: 0 done; 1 not done, or for ``verify`` it differs; 2 usage or configuration; 3 done, with problems or
differences that are named; 130 interrupted. Each raises SystemExit(2) on wrong usage.
"""

import argparse
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from seglog_broker.backup.destination import Destination, DestinationError
from seglog_broker.backup.encrypted_destination import KeyFileError, make_key_file
from seglog_broker.backup.opening import open_destination
from seglog_broker.backup.points import PointStore
from seglog_broker.backup.restoring import compare, restore
from seglog_broker.backup.source import open_source
from seglog_broker.backup.store import BackupError, BackupStore, Manifest, read_manifest, time_of
from seglog_broker.backup.taking import take_backup
from seglog_broker.config.command_options import add_config_options, load_config, time_of_option
from seglog_broker.standard_output import ProgressLine, complain, print_and_end, print_lines, refuse, run_printing
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import SystemClock, Throttle
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_broker.texts import counted, size_text
from seglog_protocol.errors import InvalidConfigError, SeglogError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_PROBLEMS: Final = 3
EXIT_INTERRUPTED: Final = 130

NICENESS: Final = 10
"""What is added to the priority number of a command: the broker beside it comes first."""

_SHOWN_SECONDS: Final = 0.2


def main_backup(argv: Sequence[str]) -> int:
    """``seglogd backup DIR --to DEST``: take a backup of a log directory, whether or not a broker uses it."""
    parser = _parser(
        "seglogd backup",
        "Take a backup of a log directory. A broker that uses it goes on; it is asked over a socket in the "
        "directory. What the last backup in the same place has is not copied again.",
        "Exit codes: 0 taken, 1 not taken, 2 usage, 3 taken, with problems that are named. See docs/BACKUP.md.",
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
    return _run(parser.prog, _backup, _parsed(parser, argv))


def _backup(program: str, arguments: argparse.Namespace) -> int:
    """Take the backup and print what it has."""
    fs, clock, config = PosixFileSystem(), SystemClock(), load_config(arguments.config, arguments.set)
    path = arguments.directory.rstrip("/") or "/"
    if "://" not in arguments.to and Path(arguments.to).resolve().is_relative_to(Path(path).resolve()):
        raise BackupError(f"{arguments.to} lies in {path}, which has room for partitions alone: name another place")
    progress = _Progress("backing up")
    with closing(destination_of(fs, arguments, arguments.to)) as destination:
        with open_source(fs, clock, path, config) as source:
            manifest, removed = take_backup(
                fs,
                source,
                BackupStore(destination),
                clock.now_ms(),
                link=arguments.link,
                take_over=arguments.take_over,
                keep=arguments.keep,
                progress=progress,
            )
        progress.end()
    copied = sum(part.size for file in manifest.files for part in file.parts if manifest.id in part.name)
    gone = f", {removed} older removed" if removed else ""
    what = f"{_contents_of(manifest)}, of which {size_text(copied)} are new"
    print_lines([f"{manifest.id}: {what}, in {progress.seconds:.1f} s{gone}"])
    _tell_problems(program, manifest.problems)
    return EXIT_PROBLEMS if manifest.problems else EXIT_OK


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError("must be a number of backups, at least 1")
    return int(text)


def main_restore(argv: Sequence[str]) -> int:
    """``seglogd restore BACKUP --to DIR``: make a log directory of a backup, and read it as a start does."""
    parser = _parser(
        "seglogd restore",
        "Make a log directory of a backup, open it as a start of the broker does, and compare every record "
        "with what the backup counted.",
        "Exit codes: 0 restored, 1 not restored, 2 usage, 3 restored, with differences that are named. "
        "See docs/BACKUP.md.",
    )
    _add_backup_arguments(parser)
    parser.add_argument("--to", metavar="DIR", help="the new log directory: empty, or not there yet")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="have the place of a continuous backup belong to the new log directory: what the broker of the other one "
        "adds from then on, or has added since, counts for nothing",
    )
    parser.add_argument("--list", action="store_true", help="list the backups, the latest first, and do nothing else")
    arguments = _parsed(parser, argv)
    if not arguments.list and not arguments.to:
        parser.error("name the new log directory by --to DIR, or ask for --list")
    return _run(parser.prog, _restore, arguments)


def _restore(program: str, arguments: argparse.Namespace) -> int:
    fs, config = PosixFileSystem(), load_config(arguments.config, arguments.set)
    with _opened_store(fs, arguments, arguments.backup_place) as store:
        if arguments.list:
            return _list(program, store)
        if arguments.take_over:
            store.marker_to_take_over()
        path, new_id = arguments.to.rstrip("/") or "/", filenames.new_id(uuid.uuid4())
        manifest = _wanted(store, arguments)
        progress = _Progress("restoring", manifest.size)
        restore(fs, manifest, store.destination, path, new_id, progress)
        progress.end()
        reading = _Progress("reading", manifest.size)
        differences = compare(fs, SystemClock(), config, path, manifest, reading)
        reading.end()
        if arguments.take_over:
            store.take_over(new_id, manifest.id)
    what = f"{_contents_of(manifest)}, restored and read in {progress.seconds:.1f} s"
    print_lines([f"{path} is the log directory of {manifest.id}: {what}"])
    _tell_problems(program, [*manifest.problems, *differences])
    return EXIT_PROBLEMS if differences else EXIT_OK


def _wanted(store: PointStore, arguments: argparse.Namespace) -> Manifest:
    """The backup that is asked for by --backup or --until, or the latest. Raises BackupError."""
    if arguments.backup is not None:
        return read_manifest(store.destination, arguments.backup)
    return store.at(arguments.until).manifest()


def _list(program: str, store: PointStore) -> int:
    """Print a line for each backup, the latest first; on standard error which of them cannot be read. The exit code."""
    code, marker = EXIT_OK, store.marker()
    for backup in reversed(store.bases(marker)):
        try:
            manifest = read_manifest(store.destination, backup)
        except BackupError as error:
            complain(program, str(error))
            code = EXIT_PROBLEMS
            continue
        partitions, records = counted(len(manifest.logs), "partition"), counted(manifest.records, "record")
        more = counted(len(manifest.problems), "problem")
        if manifest.is_cut:
            later = store.points_of(marker, backup)
            more = f"{counted(1 + len(later), 'moment')} until {max(later, default=backup, key=time_of)}"
        print_lines([f"{manifest.id}\t{partitions}\t{records}\t{size_text(manifest.size)}\t{more}"])
    return code


def main_verify(argv: Sequence[str]) -> int:
    """``seglogd verify BACKUP``: restore a backup beside, compare every record, and remove the copy."""
    parser = _parser(
        "seglogd verify",
        "Restore a backup into a directory that is removed again, open that as a start of the broker does, "
        "and compare every record with what the backup counted. It takes as much space as the backup has bytes.",
        "Exit codes: 0 as it was, 1 not, 2 usage. See docs/BACKUP.md.",
    )
    _add_backup_arguments(parser)
    parser.add_argument("--scratch", metavar="DIR", help="where the copy is made; by default where temporary files are")
    return _run(parser.prog, _verify, _parsed(parser, argv))


def _verify(program: str, arguments: argparse.Namespace) -> int:
    fs, config = PosixFileSystem(), load_config(arguments.config, arguments.set)
    if arguments.scratch is not None and not Path(arguments.scratch).is_dir():
        raise BackupError(f"{arguments.scratch} is no directory: --scratch names one in which the copy can be made")
    with (
        _opened_store(fs, arguments, arguments.backup_place) as store,
        tempfile.TemporaryDirectory(prefix="seglog-verify-", dir=arguments.scratch) as scratch,
    ):
        manifest = _wanted(store, arguments)
        path = str(Path(scratch) / "data")
        progress = _Progress("verifying", 2 * manifest.size)
        restore(fs, manifest, store.destination, path, filenames.new_id(uuid.uuid4()), progress)
        differences = compare(fs, SystemClock(), config, path, manifest, progress)
        progress.end()
    if not differences:
        print_lines([f"{manifest.id} is sound: {_contents_of(manifest)}, in {progress.seconds:.1f} s"])
    _tell_problems(program, [*manifest.problems, *differences])
    return EXIT_FAILED if differences else EXIT_OK


def main_backup_key(argv: Sequence[str]) -> int:
    """``seglogd backup-key FILE``: a new key for encrypted backups."""
    parser = _parser(
        "seglogd backup-key",
        "Make a random key for encrypted backups, in a new file that its owner alone can read.",
        "Exit codes: 0 done, 1 not done, 2 usage.",
    )
    parser.add_argument("file", metavar="FILE", help="the file to make; it must not exist")
    path: str = parser.parse_args(argv).file
    try:
        key = make_key_file(path)
    except KeyFileError as error:
        return refuse(parser.prog, str(error), EXIT_FAILED)
    except OSError as error:
        return refuse(parser.prog, f"the key file {path} could not be written: {why(error)}", EXIT_FAILED)
    lines = [
        f"Made {path}, a key with the id {key.id.hex()}.",
        "Whoever has it can read the backups that are made with it, and without it nobody can: keep a copy",
        "away from this machine, and away from the backups.",
    ]
    return print_and_end(parser.prog, lines, EXIT_OK)


def _parser(program: str, description: str, epilog: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=program, description=description, epilog=epilog, allow_abbrev=False)


def _add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backup_place", metavar="BACKUP", help="where the backups are, as --to of `seglogd backup`")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--backup", metavar="ID", help="that backup; by default the latest")
    which.add_argument(
        "--until",
        metavar="TIME",
        type=time_of_option,
        help="the latest that is not after this time, as 2026-11-28T14:00, by the clock of this machine, or "
        "2026-11-28T13:00Z: of a broker that backs up continuously, within seconds",
    )


def add_destination_options(parser: argparse.ArgumentParser) -> None:
    """Add --key-file and --bandwidth."""
    parser.add_argument("--key-file", metavar="FILE", help="the key of an encrypted backup, see `seglogd backup-key`")
    parser.add_argument(
        "--bandwidth",
        metavar="MB",
        type=_megabytes,
        help="megabytes a second at most that are copied, uploaded or downloaded; without it, as fast as it goes",
    )


def destination_of(fs: FileSystem, arguments: argparse.Namespace, where: str) -> Destination:
    """The destination ``where``, as these options want it. Raises DestinationError."""
    throttle = None
    if arguments.bandwidth is not None:
        throttle = Throttle(arguments.bandwidth * 1e6, time.monotonic, time.sleep, window_seconds=0.0)
    return open_destination(fs, where, key_file=arguments.key_file, throttle=throttle)


def _megabytes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.001 <= number <= 1e6:
        raise argparse.ArgumentTypeError("must be a number of megabytes a second, from 0.001 to 1000000")
    return number


def _parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with the options that come last in ``--help``."""
    add_destination_options(parser)
    add_config_options(parser)
    return parser.parse_args(argv)


def _run(program: str, work: Callable[[str, argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Call ``work``, which prints, and return its exit code; or that of the error it ends with, in a sentence."""
    with suppress(OSError):
        os.nice(NICENESS)
    try:
        return run_printing(program, partial(work, program, arguments), when_piped=EXIT_FAILED)
    except InvalidConfigError as error:
        return refuse(program, error.message, EXIT_USAGE)
    except (BackupError, DestinationError, SeglogError) as error:
        return refuse(program, str(error), EXIT_FAILED)
    except OSError as error:
        what_now = ": make room there, and begin again" if is_no_room(error) else ""
        return refuse(program, f"{why(error)}{what_now}", EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


@contextmanager
def _opened_store(fs: FileSystem, arguments: argparse.Namespace, where: str) -> Iterator[PointStore]:
    """The backups at ``where``, until the block ends."""
    with closing(destination_of(fs, arguments, where)) as destination:
        yield PointStore(destination)


def _contents_of(manifest: Manifest) -> str:
    """What a backup holds: ``5 records of 1 partition, 1.2 KiB``."""
    records, partitions = counted(manifest.records, "record"), counted(len(manifest.logs), "partition")
    return f"{'up to ' if manifest.is_cut else ''}{records} of {partitions}, {size_text(manifest.size)}"


def _tell_problems(program: str, problems: Sequence[str]) -> None:
    """Print the problems on standard error."""
    for problem in problems:
        complain(program, problem)


class _Progress:
    """Shows on standard error how much is done, in a terminal. Call it with bytes that are done."""

    def __init__(self, doing: str, size: int | None = None) -> None:
        """``size`` is what there is to do, in bytes, if that is known."""
        self._line = ProgressLine(_SHOWN_SECONDS)
        self._doing = doing
        self._size = size
        self._began = time.monotonic()
        self._done = 0

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def __call__(self, size: int) -> None:
        """So many more bytes are done."""
        self._done += size
        self._line.show(self._text)

    def _text(self) -> str:
        of = f" of {size_text(self._size)}" if self._size else ""
        rate = size_text(int(self._done / max(self.seconds, 0.001)))
        return f"{self._doing}: {size_text(self._done)}{of}, {rate}/s"

    def end(self) -> None:
        """Remove the line."""
        self._line.clear()
