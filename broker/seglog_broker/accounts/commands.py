"""`seglogd user add|passwd|list|delete` and `seglogd init`: accounts in a log directory, while no broker uses it.

Exit codes: 0 done; 1 not done, nothing has changed; 2 usage or configuration. Both raise SystemExit(2) on wrong usage.
"""

import argparse
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from getpass import getpass
from pathlib import Path
from typing import Final

from seglog_broker.config.command_options import load_config, number_of_option
from seglog_broker.security.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    from_password,
    why_no_password,
    why_not_prepared,
)
from seglog_broker.standard_output import EXIT_FAILED, EXIT_OK, EXIT_USAGE, print_and_end, refuse
from seglog_broker.storage.directory.accounts import AccountStore, Change, why_impossible_name
from seglog_broker.storage.directory.log_directory import DirectoryLock
from seglog_broker.storage.directory.opening import may_be_log_directory, prepare_directory
from seglog_broker.storage.io.filenames import ACCOUNTS_FILE
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_protocol.errors import InvalidConfigError, LogDirectoryError, SeglogError
from seglog_protocol.scram import HASHES, ITERATIONS_DEFAULT, PASSWORD_BYTES_MAX

STANDARD_INPUT: Final = "-"

_PASSWORD_BYTES: Final = 18
"""Of a random password: more than anyone can try, and few enough to type."""

Work = Callable[[argparse.Namespace, str], list[str]]
"""What a command does with its arguments and a log directory. It returns what is printed."""


class AccountError(Exception):
    """Nothing was changed; the message says why, and what to do."""


@contextmanager
def locked_accounts(fs: FileSystem, path: str) -> Iterator[AccountStore]:
    """The accounts of the log directory ``path``, which is made if there is none, and locked until the block ends.

    Raises LogDirectoryError while a broker uses it, and when it cannot be used, OSError.
    """
    prepare_directory(fs, path)
    lock = DirectoryLock(fs, path)
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


def main_user(argv: Sequence[str]) -> int:
    """`seglogd user`; returns the exit code."""
    return _run("seglogd user", make_user_parser().parse_args(argv))


def make_user_parser() -> argparse.ArgumentParser:
    """The parser of `seglogd user`, whose arguments docs/REFERENCE.md lists."""
    parser = argparse.ArgumentParser(
        prog="seglogd user",
        description="Make, change, list and delete the accounts in a log directory while no broker uses it. While one "
        "does, `seglog user` changes its accounts.",
        epilog="Exit codes: 0 done, 1 not done, 2 usage.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _command(commands, "add", _add, "make an account", has_password=True)
    _command(commands, "passwd", _passwd, "give an account another password", has_password=True)
    _command(commands, "delete", _delete, "delete an account", has_name=True)
    _command(commands, "list", _list, "list the accounts, also while a broker uses the directory")
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    work: Work,
    what: str,
    *,
    has_name: bool = False,
    has_password: bool = False,
) -> None:
    parser = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False)
    if has_name or has_password:
        parser.add_argument("name", metavar="NAME", help="the account's name")
    _add_options(parser, work)
    if has_password:
        _add_password_options(parser, else_="else the terminal is asked", can_exist=name == "add")


@contextmanager
def _accounts(path: str) -> Iterator[AccountStore]:
    """As ``locked_accounts``, of a directory that is there."""
    fs = PosixFileSystem()
    refuse_other_directory(fs, path)
    with locked_accounts(fs, path) as accounts:
        yield accounts


def _add(arguments: argparse.Namespace, path: str) -> list[str]:
    with _accounts(path) as accounts:
        if accounts.has(arguments.name):
            return _is_there(arguments, path)
        _give_password(accounts, arguments, ask_password(arguments.password_file, arguments.name))
    return [f"account {arguments.name} was made in {path}"]


def _passwd(arguments: argparse.Namespace, path: str) -> list[str]:
    with _accounts(path) as accounts:
        _refuse_unknown(accounts, arguments.name, path)
        _give_password(accounts, arguments, ask_password(arguments.password_file, arguments.name))
    return [f"account {arguments.name} has another password"]


def _delete(arguments: argparse.Namespace, path: str) -> list[str]:
    with _accounts(path) as accounts:
        _refuse_unknown(accounts, arguments.name, path)
        accounts.change([Change(arguments.name, each, None) for each in accounts.account(arguments.name) or ()])
    return [f"account {arguments.name} was deleted"]


def _refuse_unknown(accounts: AccountStore, name: str, path: str) -> None:
    if not accounts.has(name):
        raise AccountError(f"there is no account {name[:100]!r} in {path}; `seglogd user list` shows all")


def _list(arguments: argparse.Namespace, path: str) -> list[str]:
    del arguments
    fs = PosixFileSystem()
    refuse_other_directory(fs, path)
    accounts = read_accounts(fs, path)
    shown = [(name, accounts.account(name) or {}) for name in accounts.names()]
    return [
        f"{name}\t{', '.join(f'{each.mechanism} ({each.iterations} iterations)' for each in account.values())}"
        for name, account in shown
    ]


def main_init(argv: Sequence[str]) -> int:
    """`seglogd init`: the first account of a log directory, which administers. Returns the exit code."""
    return _run("seglogd init", make_init_parser().parse_args(argv))


def make_init_parser() -> argparse.ArgumentParser:
    """The parser of `seglogd init`, whose arguments docs/REFERENCE.md lists."""
    parser = argparse.ArgumentParser(
        prog="seglogd init",
        description="Make the account of an administrator in a log directory, with a random password that is printed "
        "once, and tell the configuration that goes with it.",
        epilog="Exit codes: 0 done, 1 not done, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("--admin", metavar="NAME", default="admin", dest="name", help="the account's name: admin")
    _add_options(parser, _init)
    _add_password_options(parser, else_="else it is a random one, which is printed")
    return parser


def _init(arguments: argparse.Namespace, path: str) -> list[str]:
    name, file = arguments.name, arguments.password_file
    with locked_accounts(PosixFileSystem(), path) as accounts:
        if accounts.has(name):
            return _is_there(arguments, path)
        password = secrets.token_urlsafe(_PASSWORD_BYTES) if file is None else ask_password(file, name)
        _give_password(accounts, arguments, password)
    shown = [] if file is not None else ["", "Its password, which is shown this once:", "", f"    {password}"]
    return [
        f"Account {name} was made in {path}.",
        *shown,
        "",
        "So that clients have to log in, and it administers, set in the broker's configuration, before it starts:",
        "",
        f"    super.users=User:{name}",
        "    seglog.listen=SASL_SSL://0.0.0.0:9192",
        "    listeners=SASL_SSL://0.0.0.0:9092",
        "    ssl.keystore.location=FILE      (the broker's key and certificates, as PEM: see seglogd certificates)",
        "",
        "On this machine alone, without TLS: SASL_PLAINTEXT://127.0.0.1:9192 and SASL_PLAINTEXT://127.0.0.1:9092.",
        f"More accounts: seglogd user add NAME --data {path}, or seglog user add NAME while the broker runs.",
    ]


def _add_options(parser: argparse.ArgumentParser, work: Work) -> None:
    """Add those of every command, which ``work`` is."""
    parser.add_argument("--data", metavar="DIR", help="the log directory; by default log.dir of the configuration")
    parser.add_argument("--config", metavar="FILE", help="the broker's configuration (or SEGLOG_CONFIG)")
    parser.set_defaults(work=work)


def _add_password_options(parser: argparse.ArgumentParser, *, else_: str, can_exist: bool = True) -> None:
    """Add those of a command that sets a password; ``else_`` says where it is from without --password-file."""
    parser.add_argument(
        "--password-file", metavar="FILE", help=f"file with the password, - for standard input; {else_}"
    )
    parser.add_argument(
        "--iterations",
        metavar="N",
        type=partial(number_of_option, ITERATIONS_MIN, ITERATIONS_MAX),
        default=ITERATIONS_DEFAULT,
        help=f"how costly it is to try a password: {ITERATIONS_MIN} to {ITERATIONS_MAX}, else {ITERATIONS_DEFAULT}",
    )
    parser.add_argument(
        "--mechanism",
        action="append",
        choices=list(HASHES),
        help="a mechanism that the account can use; repeatable, by default both",
    )
    if can_exist:
        parser.add_argument(
            "--if-absent", action="store_true", help="succeed, and change nothing, where there is such an account"
        )


def _run(program: str, arguments: argparse.Namespace) -> int:
    """Do what the arguments say; returns the exit code."""
    try:
        path = load_config(arguments.config).log_dir if arguments.data is None else str(arguments.data)
    except InvalidConfigError as error:
        return refuse(program, error.message, EXIT_USAGE)
    try:
        lines = arguments.work(arguments, path)
    except (AccountError, SeglogError) as error:
        holder = error.holder if isinstance(error, LogDirectoryError) else ""
        others = "change its accounts by `seglog user`, as one of its super.users, or stop it"
        why_not = f"{path} is in use by {holder}: {others}" if holder else str(error)
        return refuse(program, why_not, EXIT_FAILED)
    except OSError as error:
        return refuse(program, f"the accounts of {path} could not be changed: {why(error)}", EXIT_FAILED)
    return print_and_end(program, lines, EXIT_OK)


def _is_there(arguments: argparse.Namespace, path: str) -> list[str]:
    """The outcome where the account exists already. Raises AccountError, unless that is fine."""
    if not arguments.if_absent:
        raise AccountError(
            f"there is an account {arguments.name} in {path} already: give it another password by `seglogd user passwd`"
        )
    return [f"there is an account {arguments.name} in {path} already, which was not changed"]


def _give_password(accounts: AccountStore, arguments: argparse.Namespace, password: str) -> None:
    """Set the password of the account that the arguments name. Raises AccountError, OSError."""
    mechanisms = tuple(dict.fromkeys(arguments.mechanism or HASHES))
    set_password(accounts, arguments.name, password, mechanisms, arguments.iterations)
