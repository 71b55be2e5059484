"""The archive itself: gzipped tar, readable by its owner alone, in which every text went through the redaction."""

import io
import json
import os
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from seglog.cli.bundle.redaction import redacted


class ArchiveError(Exception):
    """The archive cannot be written; ``cause`` is why. No OSError: what collects goes on after one of its sources."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Archive:
    """A file that is not there yet. Raises FileExistsError where it is.

    Nothing is left of it where the ``with`` block, or writing, fails: what raises ArchiveError.
    """

    def __init__(self, path: str, folder: str, secrets: Sequence[str] = ()) -> None:
        """``folder`` is the one in the archive; ``secrets`` are some that must not be in it."""
        self._path = Path(path)
        self._folder = folder
        self._secrets = secrets
        self.names: list[str] = []
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            try:
                self._tar.close()
            finally:
                self._file.close()  # writes what is buffered
        except OSError as failure:
            self._path.unlink(missing_ok=True)
            if kind is None:
                raise ArchiveError(failure) from failure
        if kind is not None:
            self._path.unlink(missing_ok=True)

    def add(self, name: str, content: str | bytes) -> None:
        """Add a file. Bytes that are no text are kept as escapes: secrets are found in text. Raises ArchiveError."""
        text = content.decode(errors="backslashreplace") if isinstance(content, bytes) else content
        data = redacted(text, self._secrets).encode(errors="backslashreplace")
        info = tarfile.TarInfo(f"{self._folder}/{name}")
        info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
        try:
            self._tar.addfile(info, io.BytesIO(data))
        except OSError as failure:
            raise ArchiveError(failure) from failure
        self.names.append(name)

    def add_json(self, name: str, value: Any) -> None:
        """Add a value, in lines for people."""
        self.add(name, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
