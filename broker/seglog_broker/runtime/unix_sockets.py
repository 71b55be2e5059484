"""Sockets that are files of a directory: who can open the directory's files can connect, and no one over a network."""

import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_PEER = struct.Struct("3i")
"""pid, uid and gid of a peer, as Linux gives them."""

SOCKET_MODE = 0o600


def listen(path: str) -> socket.socket:
    """A socket at ``path``, in place of any that is there, for this user alone, to which others connect.

    Raises OSError, also where the file system has no sockets.
    """
    opened = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        if sys.platform == "linux":
            os.fchmod(opened.fileno(), SOCKET_MODE)  # before it has a name: Linux makes the file with this mode
        with _short(path) as name:
            opened.bind(name)
        os.chmod(path, SOCKET_MODE)
        opened.listen()
    except OSError:
        opened.close()
        raise
    return opened


def connect(path: str) -> socket.socket:
    """A connection to the socket at ``path``. Raises OSError."""
    opened = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as name:
            opened.connect(name)
    except OSError:
        opened.close()
        raise
    return opened


def is_own_peer(getsockopt: Callable[[int, int, int], bytes]) -> bool:
    """Whether the peer is of this process's user, or root, by the ``getsockopt`` of a connection.

    Where that cannot be asked the mode of the file has to do.
    """
    if sys.platform != "linux":
        return True
    _, uid, _ = _PEER.unpack(getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid in {os.geteuid(), 0}


@contextmanager
def _short(path: str) -> Iterator[str]:
    """Another path of the same file, for system calls that take at most 107 bytes; elsewhere than on Linux the same."""
    if sys.platform != "linux":
        yield path
        return
    directory, _, name = path.rpartition("/")
    descriptor = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
