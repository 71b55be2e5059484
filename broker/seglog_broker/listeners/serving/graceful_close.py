"""Closing a connection so that the last frame sent on it arrives."""

import contextlib
import socket
from typing import Final

import trio

CLOSE_SECONDS_MAX: Final = 1
CLOSE_BYTES_MAX: Final = 256 * 1024
"""Time, and bytes, that the peer may go on sending; the bytes are discarded."""


async def close_gracefully(sock: socket.socket) -> None:
    """Shut down sending, and read until the peer closes or a limit is reached; the caller closes ``sock``.

    Closing a socket that holds unread bytes resets the connection, and the last reply may be lost with it.
    """
    with trio.move_on_after(CLOSE_SECONDS_MAX), contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        taken = 0
        while taken < CLOSE_BYTES_MAX:
            await trio.lowlevel.wait_readable(sock)
            size = len(sock.recv(64 * 1024))
            if size == 0:
                return
            taken += size
