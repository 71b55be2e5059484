"""What `seglogd backup`, `restore` and `verify` have in common: how they end, and what they show."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from seglog_broker.backup.destination import Destination, DestinationError
from seglog_broker.backup.key_file import KeyFileError
from seglog_broker.backup.manifest import BackupError, Manifest
from seglog_broker.backup.options import destination_of
from seglog_broker.backup.store import BackupStore
from seglog_broker.config import BrokerConfig, ConfigSources
from seglog_broker.standard_output import complain, print_lines, run_printing
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_broker.texts import size_text
from seglog_protocol.errors import InvalidConfigError, SeglogError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_PROBLEMS: Final = 3
EXIT_INTERRUPTED: Final = 130

NICENESS: Final = 10
"""What is added to the priority number of a command: the broker beside it comes first."""

_SHOWN_SECONDS: Final = 0.2
_CLEAR_LINE: Final = "\r\x1b[K"


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add --config and --set, of the broker that opens the directory."""
    parser.add_argument("--config", metavar="FILE", help="the broker's configuration file (or SEGLOG_CONFIG)")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="set one key; repeatable")


def config_of(arguments: argparse.Namespace) -> BrokerConfig:
    """The configuration by these options. Raises InvalidConfigError."""
    file_name = arguments.config or os.environ.get("SEGLOG_CONFIG") or ""
    return ConfigSources(file_name, os.environ, arguments.set).load()[0]


def run(program: str, work: Callable[[], int]) -> int:
    """Call ``work``, which prints, and return its exit code; or that of the error it ends with, in a sentence."""
    with suppress(OSError):
        os.nice(NICENESS)
    try:
        return run_printing(program, work, when_piped=EXIT_FAILED)
    except InvalidConfigError as error:
        complain(program, error.message)
        return EXIT_USAGE
    except (BackupError, DestinationError, KeyFileError) as error:
        complain(program, str(error))
    except SeglogError as error:
        complain(program, error.message)
    except OSError as error:
        what_now = ": make room there, and begin again" if is_no_room(error) else ""
        complain(program, f"{why(error)}{what_now}")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FAILED


@contextmanager
def opened_store(fs: FileSystem, arguments: argparse.Namespace, where: str) -> Iterator[BackupStore]:
    """The backups at ``where``, until the block ends."""
    destination: Destination = destination_of(fs, arguments, where)
    try:
        yield BackupStore(destination)
    finally:
        destination.close()


def list_backups(store: BackupStore) -> int:
    """Print a line for each backup, the latest first."""
    for backup in store.ids():
        print_lines([described(store.read(backup))])
    return EXIT_OK


def described(manifest: Manifest) -> str:
    """One line about a backup."""
    return (
        f"{manifest.id}\t{len(manifest.logs):,} partitions\t{manifest.records:,} records\t{size_text(manifest.size)}"
        f"\t{len(manifest.problems)} problems"
    )


def tell_problems(program: str, problems: Sequence[str]) -> None:
    """Print the problems on standard error."""
    for problem in problems:
        complain(program, problem)


class Progress:
    """A line of progress on standard error, in a terminal. Call it with bytes that are done."""

    def __init__(self, doing: str, size: int | None = None) -> None:
        """``size`` is what there is to do, in bytes, if that is known."""
        self._doing = doing
        self._size = size
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began
        self.done = 0

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def __call__(self, size: int) -> None:
        """So many more bytes are done."""
        self.done += size
        if self._is_shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + _SHOWN_SECONDS
            rate = f"{size_text(int(self.done / max(self.seconds, 0.001)))}/s"
            of = f" of {size_text(self._size)}" if self._size else ""
            sys.stderr.write(f"{_CLEAR_LINE}{self._doing}: {size_text(self.done)}{of}, {rate}")
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._is_shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
