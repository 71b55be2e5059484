"""The lock on a log directory: one broker at a time, and none while workers of a killed one still write."""

from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol.errors import LogDirectoryError


class DirectoryLock:
    """A log directory that this process holds, until ``release``."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        """Raises LogDirectoryError when another broker, or a worker process of one that was killed, holds ``path``."""
        try:
            self._lock = fs.lock(f"{path}/{filenames.LOCK_FILE}")
        except BlockingIOError as error:
            raise LogDirectoryError(
                f"{path} is in use by another broker (its {filenames.LOCK_FILE} is held): stop that one, or "
                "choose another directory with --set log.dir=DIRECTORY",
                path=path,
            ) from error
        try:
            self._hold = fs.hold(path)
        except BlockingIOError as error:
            self._lock.release()
            raise LogDirectoryError(
                f"processes of a broker that was killed still work in {path}, perhaps waiting for its disk: try "
                "again when they have ended",
                path=path,
            ) from error
        except OSError:
            self._lock.release()
            raise

    @property
    def is_in_place(self) -> bool:
        """Whether the path is still the directory that was locked, neither removed nor replaced."""
        return self._lock.is_in_place()

    @property
    def worker_descriptors(self) -> tuple[int, ...]:
        """Descriptors that worker processes writing into the directory inherit: see ``Hold``."""
        return self._hold.descriptors

    def release(self) -> None:
        """Let another broker have the directory. A second call does nothing."""
        self._hold.release()
        self._lock.release()
