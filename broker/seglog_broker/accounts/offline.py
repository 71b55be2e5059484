"""The accounts of a log directory that no broker uses, changed as a broker does: locked, atomically, fsynced."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from getpass import getpass
from pathlib import Path
from typing import Final

from seglog_broker.security.credentials import from_password, why_no_password, why_not_prepared
from seglog_broker.storage.directory.accounts import AccountStore, Change, why_impossible_name
from seglog_broker.storage.directory.log_directory import DirectoryLock
from seglog_broker.storage.directory.opening import may_be_log_directory, prepare_directory
from seglog_broker.storage.io.filenames import ACCOUNTS_FILE
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.scram import PASSWORD_BYTES_MAX

STANDARD_INPUT: Final = "-"


class AccountError(Exception):
    """Nothing was changed; the message says why, and what to do."""


def offline_accounts(fs: FileSystem, path: str) -> AbstractContextManager[AccountStore]:
    """As ``locked_accounts``, for commands. Raises AccountError while a broker uses the directory."""
    prepare_directory(fs, path)
    try:
        lock = DirectoryLock(fs, path)
    except LogDirectoryError as error:
        raise AccountError(
            f"{path} is in use by {error.holder}: change its accounts by `seglog user`, as one of its super.users, or "
            "stop it"
        ) from error
    return _accounts_under(lock, fs, path)


def locked_accounts(fs: FileSystem, path: str) -> AbstractContextManager[AccountStore]:
    """The accounts of the log directory ``path``, which is made if there is none, and locked until the block ends.

    Raises LogDirectoryError while a broker uses it, and when it cannot be used, OSError.
    """
    prepare_directory(fs, path)
    return _accounts_under(DirectoryLock(fs, path), fs, path)


@contextmanager
def _accounts_under(lock: DirectoryLock, fs: FileSystem, path: str) -> Iterator[AccountStore]:
    try:
        yield read_accounts(fs, path)
    finally:
        lock.release()


def refuse_other_directory(fs: FileSystem, path: str) -> None:
    """Raise AccountError where ``path`` is no log directory, and none can come of it as it is empty. Raises OSError."""
    if not may_be_log_directory(fs, path):
        raise AccountError(
            f"{path} is no log directory: name the broker's log.dir by --data, or its configuration by --config; "
            "seglogd init makes a new one, with an administrator"
        )


def read_accounts(fs: FileSystem, path: str) -> AccountStore:
    """The accounts of a log directory, also while a broker uses it. Raises LogDirectoryError, OSError."""
    accounts = AccountStore(fs, f"{path}/{ACCOUNTS_FILE}")
    accounts.load()
    return accounts


def set_password(accounts: AccountStore, name: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
    """Give an account this password by ``mechanisms``, and by no other. Raises AccountError, OSError."""
    problem = why_impossible_name(name) or why_not_prepared(name)
    if problem is not None:
        raise AccountError(f"{name[:100]!r} cannot name an account: {problem}")
    problem = why_no_password(password)
    if problem is not None:
        raise AccountError(f"this cannot be a password: {problem}")
    former = accounts.account(name) or {}
    accounts.change(
        [Change(name, mechanism, None) for mechanism in former]
        + [Change(name, mechanism, from_password(mechanism, password, iterations)) for mechanism in mechanisms]
    )


def ask_password(file: str | None, name: str) -> str:
    """A password: the content of ``file``, without a line break at its end, or what is typed twice on the terminal.

    Raises AccountError.
    """
    if file == STANDARD_INPUT:
        return _line(sys.stdin.buffer.read(4 * PASSWORD_BYTES_MAX), "standard input")
    if file is not None:
        try:
            with Path(file).open("rb") as opened:
                return _line(opened.read(4 * PASSWORD_BYTES_MAX), file)
        except OSError as error:
            raise AccountError(f"the password file {file} cannot be read: {error.strerror}") from None
    if not sys.stdin.isatty():
        raise AccountError("there is no terminal to ask for the password: name a file that has it by --password-file")
    password = getpass(f"Password of {name}: ")
    if getpass("The same again: ") != password:
        raise AccountError("these are two passwords: begin again")
    return password


def _line(content: bytes, place: str) -> str:
    try:
        return content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        pass
    raise AccountError(f"the password in {place} is not UTF-8")
