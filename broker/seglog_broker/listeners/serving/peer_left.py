"""Notices that a peer has left while its connection is not read."""

import select
import socket
from typing import Final

import trio

CHECK_SECONDS: Final = 1
"""The pause between two looks at a peer whose next requests wait to be read: its socket is readable all the time."""

_READ_HANGUP: Final = getattr(select, "POLLRDHUP", 0)
"""Linux tells that no more will come, whatever waits to be read. Elsewhere only a reset is noticed behind that."""


async def wait_until_left(sock: socket.socket) -> None:
    """Return when the peer of a non-blocking ``sock`` has closed its side, or is lost. Reads nothing."""
    while True:
        await trio.lowlevel.wait_readable(sock)
        if _has_left(sock):
            return
        await trio.sleep(CHECK_SECONDS)


def _has_left(sock: socket.socket) -> bool:
    events = select.poll()
    events.register(sock, _READ_HANGUP)
    if events.poll(0):
        return True
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
