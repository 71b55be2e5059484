"""What `seglogd backup`, `restore` and `verify` have in common: their options, how they end, and what they show."""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final

from seglog_broker.backup.destination import Destination, DestinationError
from seglog_broker.backup.encrypted_destination import KeyFileError, read_key_file
from seglog_broker.backup.manifest import BackupError, Manifest
from seglog_broker.backup.opening import open_destination
from seglog_broker.backup.store import BackupStore
from seglog_broker.config import BrokerConfig
from seglog_broker.config.command_options import load_config
from seglog_broker.standard_output import ProgressLine, complain, print_lines, refuse, run_printing
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import FileSystem
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


def add_destination_options(parser: argparse.ArgumentParser) -> None:
    """Add --key-file and --bandwidth."""
    parser.add_argument("--key-file", metavar="FILE", help="the key of an encrypted backup, see `seglogd backup-key`")
    parser.add_argument(
        "--bandwidth",
        metavar="MB",
        type=_megabytes,
        help="megabytes a second at most that are copied, uploaded or downloaded; without it, as fast as it goes",
    )


def add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    """Add BACKUP (``backup_place``) and --backup."""
    parser.add_argument("backup_place", metavar="BACKUP", help="where the backups are, as --to of `seglogd backup`")
    parser.add_argument("--backup", metavar="ID", help="that backup; by default the latest")


def destination_of(fs: FileSystem, arguments: argparse.Namespace, where: str) -> Destination:
    """The destination ``where``, as these options want it. Raises DestinationError, KeyFileError."""
    key = None if arguments.key_file is None else read_key_file(arguments.key_file)
    throttle = None
    if arguments.bandwidth is not None:
        throttle = Throttle(arguments.bandwidth * 1e6, time.monotonic, time.sleep, window_seconds=0.0)
    return open_destination(fs, where, key=key, throttle=throttle)


def _megabytes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.001 <= number <= 1e6:
        raise argparse.ArgumentTypeError("must be a number of megabytes a second, from 0.001 to 1000000")
    return number


def config_of(arguments: argparse.Namespace) -> BrokerConfig:
    """The configuration of the broker that opens the directory. Raises InvalidConfigError."""
    return load_config(arguments.config, arguments.set)


def run(program: str, work: Callable[[], int]) -> int:
    """Call ``work``, which prints, and return its exit code; or that of the error it ends with, in a sentence."""
    with suppress(OSError):
        os.nice(NICENESS)
    try:
        return run_printing(program, work, when_piped=EXIT_FAILED)
    except InvalidConfigError as error:
        return refuse(program, error.message, EXIT_USAGE)
    except (BackupError, DestinationError, KeyFileError) as error:
        return refuse(program, str(error), EXIT_FAILED)
    except SeglogError as error:
        return refuse(program, error.message, EXIT_FAILED)
    except OSError as error:
        what_now = ": make room there, and begin again" if is_no_room(error) else ""
        return refuse(program, f"{why(error)}{what_now}", EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


@contextmanager
def opened_store(fs: FileSystem, arguments: argparse.Namespace, where: str) -> Iterator[BackupStore]:
    """The backups at ``where``, until the block ends."""
    with closing(destination_of(fs, arguments, where)) as destination:
        yield BackupStore(destination)


def list_backups(program: str, store: BackupStore) -> int:
    """Print a line for each backup, the latest first; on standard error which of them cannot be read. The exit code."""
    code = EXIT_OK
    for backup in store.finished_ids():
        try:
            print_lines([described(store.read(backup))])
        except BackupError as error:
            complain(program, str(error))
            code = EXIT_PROBLEMS
    return code


def described(manifest: Manifest) -> str:
    """One line about a backup."""
    partitions, records = counted(len(manifest.logs), "partition"), counted(manifest.records, "record")
    problems = counted(len(manifest.problems), "problem")
    return f"{manifest.id}\t{partitions}\t{records}\t{size_text(manifest.size)}\t{problems}"


def contents_of(manifest: Manifest) -> str:
    """What a backup holds: ``5 records of 1 partition, 1.2 KiB``."""
    records, partitions = counted(manifest.records, "record"), counted(len(manifest.logs), "partition")
    return f"{records} of {partitions}, {size_text(manifest.size)}"


def tell_problems(program: str, problems: Sequence[str]) -> None:
    """Print the problems on standard error."""
    for problem in problems:
        complain(program, problem)


class Progress:
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
