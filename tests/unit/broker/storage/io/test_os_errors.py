"""OSErrors as errors for clients: their type, and a message with a remedy."""

import errno

import pytest

from seglog_broker.storage.io.os_errors import storage_error
from seglog_protocol.errors import DiskFullError, OutOfResourcesError, StorageError


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max"), (errno.ENOMEM, "memory")]
)
def test_an_error_for_lack_of_resources_has_a_remedy_and_is_retriable(code: int, remedy: str) -> None:
    error = storage_error("topic t could not be created", OSError(code, "no more"))
    assert type(error) is OutOfResourcesError
    assert error.retriable
    assert error.message.startswith("topic t could not be created; ")
    assert remedy in error.message
    assert "try again" in error.message


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, StorageError)]
)
def test_other_errors_keep_their_message(code: int, kind: type[StorageError]) -> None:
    error = storage_error("it failed", OSError(code, "no more"))
    assert (type(error), error.message) == (kind, "it failed")
