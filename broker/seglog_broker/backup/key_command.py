"""``seglogd backup-key``: a new key for encrypted backups.

Exit codes: 0 done; 1 not done; 2 usage.
"""

import argparse
from collections.abc import Sequence
from typing import Final

from seglog_broker.backup.encrypted_destination import KeyFileError, make_key_file
from seglog_broker.standard_output import print_and_end, refuse
from seglog_broker.storage.io.os_errors import why

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

_PROGRAM: Final = "seglogd backup-key"


def main(argv: Sequence[str]) -> int:
    """`seglogd backup-key`; returns the exit code. Raises SystemExit(2) on wrong usage."""
    path: str = make_parser().parse_args(argv).file
    try:
        key = make_key_file(path)
    except KeyFileError as error:
        return refuse(_PROGRAM, str(error), EXIT_FAILED)
    except OSError as error:
        return refuse(_PROGRAM, f"the key file {path} could not be written: {why(error)}", EXIT_FAILED)
    lines = [
        f"Made {path}, a key with the id {key.id.hex()}.",
        "Whoever has it can read the backups that are made with it, and without it nobody can: keep a copy",
        "away from this machine, and away from the backups.",
    ]
    return print_and_end(_PROGRAM, lines, EXIT_OK)


def make_parser() -> argparse.ArgumentParser:
    """The parser of `seglogd backup-key`."""
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Make a random key for encrypted backups, in a new file that its owner alone can read.",
        epilog="Exit codes: 0 done, 1 not done, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="the file to make; it must not exist")
    return parser
