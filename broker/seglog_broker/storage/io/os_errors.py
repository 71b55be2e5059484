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


def is_no_room(error: BaseException | None) -> bool:
    """Whether it, or what it was raised from, says that the disk is full."""
    while error is not None:
        if isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in NO_ROOM):
            return True
        error = error.__cause__
    return False


def why(error: BaseException) -> str:
    """What went wrong, as the end of a sentence, and with which file."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error) or type(error).__name__
    return f"{error.strerror} ({error.filename})" if error.filename else error.strerror


@contextmanager
def suppress_no_room() -> Iterator[None]:
    """For what can be done without, or later: an OSError that says that the disk is full ends the block in silence."""
    try:
        yield
    except OSError as error:
        if not is_no_room(error):
            raise


def storage_error(message: str, error: OSError) -> StorageError:
    """The error to raise for ``error``, of the type that says whether trying again can help.

    Where descriptors or memory ran out, what to do about it is added to the message.
    """
    if error.errno in NO_ROOM:
        return DiskFullError(message)
    if error.errno in NO_RESOURCES:
        return OutOfResourcesError(f"{message}; {_REMEDIES[error.errno]}")
    return StorageError(message)
