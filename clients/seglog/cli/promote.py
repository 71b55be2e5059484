"""``seglog promote DIR``: a standby of this machine takes over, asked at the socket in its directory."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Command, flag
from seglog.cli.common import answer, warn
from seglog.cli.exits import FAILED, NOT_REACHABLE
from seglog.cli.terminal import print_line

if TYPE_CHECKING:
    import socket

SOCKET: Final = "seglog-standby.sock"


def run(options: Options) -> int:
    """Have it promoted, or show its state; the exit code tells whether it serves."""
    want = {"want": "status" if options.status else "promote", "without_lease": options.without_lease}
    try:
        for line in _asked(options.directory, want):
            if "done" in line:
                return answer(options, line, line["done"])
            if "failed" in line:
                warn(line["failed"])
                return FAILED
            if not options.json:
                print_line(line.get("said", ""))
    except OSError as error:
        warn(
            f"no standby answers at {Path(options.directory) / SOCKET} ({error.strerror}): seglogd --standby makes it, "
            "for its own user and root"
        )
        return NOT_REACHABLE
    warn("the standby ended the connection before it served: its log says why; started again it goes on")
    return FAILED


def _asked(directory: str, want: dict[str, str | bool]) -> Iterator[dict[str, str]]:
    """The lines that are answered. Raises OSError."""
    with closing(_connected(directory)) as connection, connection.makefile("rb") as lines:
        connection.sendall(json.dumps(want).encode() + b"\n")
        yield from map(json.loads, lines)


def _connected(directory: str) -> "socket.socket":
    import socket

    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX)
    try:
        # Not by its whole path: an address of a socket has 107 bytes at most.
        connection.connect(f"/proc/self/fd/{opened}/{SOCKET}" if sys.platform == "linux" else f"{directory}/{SOCKET}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(opened)
    return connection


COMMAND: Final = Command(
    "promote",
    runs=run,
    talks=False,
    help="It takes over the lease of the first machine and waits until that cannot acknowledge any more, applies the "
    "newest state of the place, and serves. It exits with 0 when it serves, 1 when it does not, 3 when no standby "
    "answers. Interrupted, it leaves the standby to go on.",
    params=[
        click.Argument(["directory"], metavar="DIR", help="The log directory of seglogd --standby."),
        flag("--status", "Show how far the standby is, and do nothing else."),
        flag(
            "--without-lease",
            "Where the first machine has no lease: you have made sure that it is off, and stays off.",
        ),
        flag("--json", "Print JSON, for programs."),
    ],
    example="seglog promote /var/lib/seglog",
)
