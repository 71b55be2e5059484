"""The options that every command has which writes to a destination of backups, or reads one."""

import argparse
import time

from seglog_broker.backup.destination import Destination
from seglog_broker.backup.key_file import read_key_file
from seglog_broker.backup.opening import open_destination
from seglog_broker.storage.io.clock import SharedThrottle
from seglog_broker.storage.io.filesystem import FileSystem


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
    """The destination ``where``, as these options want it. Raises DestinationError, KeyFileError."""
    key = None if arguments.key_file is None else read_key_file(arguments.key_file)
    throttle = None
    if arguments.bandwidth is not None:
        throttle = SharedThrottle(arguments.bandwidth * 1e6, time.monotonic, time.sleep)
    return open_destination(fs, where, key=key, throttle=throttle)


def _megabytes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.001 <= number <= 1e6:
        raise argparse.ArgumentTypeError("must be a number of megabytes a second, from 0.001 to 1000000")
    return number
