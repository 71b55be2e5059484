"""Passwords that are kept in files."""

import os
import stat
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import BinaryIO, Final

from seglog.core.security import Secret

_BYTES_MAX: Final = 64 * 1024
"""What is longer is some other file, named by mistake."""


def secret_in(path: str | PathLike[str], *, instead_of: Secret | None = None) -> Secret:
    """The text of a file, read each time it is needed, without the line break at its end.

    What is no file, such as a pipe, can be read once, and is kept. Raises ValueError where there is a secret already.
    """
    if instead_of is not None:
        raise ValueError("password and password_file exclude each other")
    return Secret(partial(_read, fspath(path), []))


def secret_typed_into(source: BinaryIO, place: str) -> Secret:
    """As ``secret_in``, of what can be read once, which ``place`` names in errors. Raises ValueError."""
    return Secret(_checked(Secret(_text(source)), place))


def _read(path: str, kept: list[Secret]) -> str:
    """Raises OSError, and ValueError for a file that is no such text; neither shows what it holds."""
    if kept:
        return kept[0].reveal()
    with Path(path).open("rb") as file:
        text = Secret(_text(file))
        is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    checked = Secret(_checked(text, path))
    if not is_file:
        kept.append(checked)
    return checked.reveal()


def _text(source: BinaryIO) -> str:
    """What it holds, without the line break at its end; what is not UTF-8 is replaced."""
    return source.read(_BYTES_MAX + 1).decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")


def _checked(text: Secret, place: str) -> str:
    """Raises ValueError, in a frame that does not have the text itself."""
    problem = "is empty" if text.problem else _problem_of(text)
    if problem:
        raise ValueError(f"{place} {problem}: it must hold a password, as text in UTF-8, in one line")
    return text.reveal()


def _problem_of(secret: Secret) -> str:
    text = secret.reveal()
    if len(text) > _BYTES_MAX:
        return f"has more than {_BYTES_MAX:,} bytes"
    if "\ufffd" in text:
        return "is not UTF-8"
    return "has several lines" if "\n" in text else ""
