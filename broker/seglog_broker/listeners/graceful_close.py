"""Closing a connection so that the last thing said on it arrives."""

import contextlib
import socket
from typing import Final

import trio

PART_SECONDS: Final = 1
PART_BYTES_MAX: Final = 256 * 1024
"""How long, and how much, the peer may go on sending; none of it is kept or looked at."""


async def part(sock: socket.socket) -> None:
    """Send no more, and wait a little for the peer to be done; the caller closes ``sock``.

    Closing a socket that holds unread bytes resets the connection, and with it may go the very reply that says why.
    """
    with trio.move_on_after(PART_SECONDS), contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        taken = 0
        while taken < PART_BYTES_MAX:
            await trio.lowlevel.wait_readable(sock)
            size = len(sock.recv(64 * 1024))
            if size == 0:
                return
            taken += size
