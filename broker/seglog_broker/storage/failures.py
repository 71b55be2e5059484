"""What an OSError of the disk means for whoever asked: whether it passes, and by what name it is told."""

import errno
from typing import Final

from seglog_protocol.errors import DiskFullError, OutOfResourcesError, StorageError

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk, or what somebody may use of it, is full."""

NO_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""No descriptor or no memory is left at the moment."""


def storage_error(message: str, error: OSError) -> StorageError:
    """The error to raise for ``error``, of the type that says whether trying again can help."""
    if error.errno in NO_ROOM:
        return DiskFullError(message)
    if error.errno in NO_RESOURCES:
        return OutOfResourcesError(message)
    return StorageError(message)
