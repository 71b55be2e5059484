"""``seglog promote DIR``: a standby of this machine takes over, asked at the socket in its directory."""

import os
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Command, flag
from seglog.cli.common import answer, warn
from seglog.cli.exits import FAILED, NOT_REACHABLE
from seglog.cli.terminal import print_line

if TYPE_CHECKING:
    import socket

SOCKET: Final = "seglog-standby.sock"

LOOK_SECONDS: Final = 0.2
"""Between two looks at how far a promotion is."""


def run(options: Options) -> int:
    """Have it promoted, or show its state; the exit code tells whether it serves."""
    want = "status" if options.status else "promote"
    shown: int | None = None
    while True:
        try:
            state = _asked(options.directory, {"want": want, "without_lease": options.without_lease})
        except (OSError, ValueError) as error:
            return _unanswered(options.directory, error, has_begun=shown is not None)
        if not options.json:
            for sentence in state["said"][shown or 0 :] if not options.status else ():
                print_line(sentence)
        if options.status or state["stage"] == "serving":
            return answer(options, state, state["sentence"])
        if state["refused"]:
            warn(state["refused"])
            return FAILED
        want, shown = "status", len(state["said"])
        time.sleep(LOOK_SECONDS)


def _unanswered(directory: str, error: Exception, *, has_begun: bool) -> int:
    if has_begun:
        warn("the standby ended before it served: its log says why; started again it goes on")
        return FAILED
    where = f"{directory}/{SOCKET} ({getattr(error, 'strerror', error)})"
    warn(f"no standby answers at {where}: seglogd --standby makes it, for its own user and root")
    return NOT_REACHABLE


def _asked(directory: str, want: dict[str, str | bool]) -> dict[str, Any]:
    """The state that is answered. Raises OSError, ValueError where it is cut off."""
    import json

    with closing(_connected(directory)) as connection, connection.makefile("rb") as lines:
        connection.sendall(json.dumps(want).encode() + b"\n")
        state: dict[str, Any] = json.loads(lines.readline())
        return state


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
