"""Passwords that are kept in files."""

from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from seglog.core.security import Secret

_BYTES_MAX: Final = 64 * 1024
"""What is longer is some other file, named by mistake."""


def secret_in(path: str | PathLike[str], *, instead_of: Secret | None = None) -> Secret:
    """The text of a file, read each time it is needed, without the line break at its end.

    Raises ValueError where there is a secret already.
    """
    if instead_of is not None:
        raise ValueError("password and password_file exclude each other")
    return Secret(partial(_read, fspath(path)))


def _read(path: str) -> str:
    """Raises OSError, and ValueError for a file that is no such text; neither shows what it holds."""
    with Path(path).open("rb") as file:
        text = file.read(_BYTES_MAX + 1).decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    if not text or len(text) > _BYTES_MAX or "\n" in text or "\ufffd" in text:
        del text  # which a traceback would show with its variables
        raise ValueError(f"{path} must hold a password in UTF-8, in one line")
    return text
