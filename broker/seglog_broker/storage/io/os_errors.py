"""Errors of the disk as replies: whether they are retriable, their message, and the remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from seglog_protocol.errors import DiskFullError, OutOfResourcesError, StorageError

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk, or the user's quota of it, is full."""

_REMEDIES: Final = {
    errno.EMFILE: "the broker may open no more files just now: try again, and if that does not help raise its limit on "
    "open files (ulimit -n; seglog.handles.max is for segments)",
    errno.ENFILE: "this machine may open no more files just now: try again, and if that does not help raise its limit "
    "(sysctl fs.file-max)",
    errno.ENOMEM: "this machine has no memory for the broker just now: try again",
}

NO_RESOURCES: Final = frozenset(_REMEDIES)
"""No descriptor or no memory is left at the moment."""


class LogDirectoryGoneError(OSError):
    """The fsync succeeded, but the log directory is no longer under its path, so no start would find the files."""

    def __init__(self) -> None:
        super().__init__(errno.ENOENT, "the log directory was removed or replaced while the broker was running")


def is_no_room(error: BaseException | None) -> bool:
    """Whether the error, or one of its causes, is that the disk is full."""
    while error is not None:
        if isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in NO_ROOM):
            return True
        error = error.__cause__
    return False


def why(error: BaseException) -> str:
    """The reason and the file of an error, as the end of a sentence."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error) or type(error).__name__
    return f"{error.strerror} ({error.filename})" if error.filename else error.strerror


@contextmanager
def suppress_no_room() -> Iterator[None]:
    """End the block silently when the disk is full. For work that is optional, or can be done later."""
    try:
        yield
    except OSError as error:
        if not is_no_room(error):
            raise


def storage_error(message: str, error: OSError) -> StorageError:
    """The error to raise for ``error``; its type says whether a retry can help.

    Where descriptors or memory ran out, the message ends with a remedy.
    """
    if error.errno in NO_ROOM:
        return DiskFullError(message)
    if error.errno in NO_RESOURCES:
        return OutOfResourcesError(f"{message}; {_REMEDIES[error.errno]}")
    return StorageError(message)
