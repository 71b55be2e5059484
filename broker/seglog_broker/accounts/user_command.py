"""``seglogd user add|passwd|list|delete``: the accounts in a log directory, while no broker uses it.

Exit codes: 0 done; 1 not done, nothing has changed; 2 usage or configuration.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from seglog_broker.accounts.offline import (
    AccountError,
    ask_password,
    offline_accounts,
    read_accounts,
    refuse_other_directory,
)
from seglog_broker.accounts.options import Work, add_options, add_password_options, give_password, is_there, run
from seglog_broker.storage.directory.accounts import AccountStore, Change
from seglog_broker.storage.io.filesystem import PosixFileSystem


def main(argv: Sequence[str]) -> int:
    """`seglogd user`; returns the exit code. Raises SystemExit(2) on wrong usage."""
    return run("seglogd user", make_parser().parse_args(argv))


def make_parser() -> argparse.ArgumentParser:
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
    add_options(parser, work)
    if has_password:
        add_password_options(parser, else_="else the terminal is asked", can_exist=name == "add")


@contextmanager
def _accounts(path: str) -> Iterator[AccountStore]:
    """As ``offline_accounts``, of a directory that is there."""
    fs = PosixFileSystem()
    refuse_other_directory(fs, path)
    with offline_accounts(fs, path) as accounts:
        yield accounts


def _add(arguments: argparse.Namespace, path: str) -> list[str]:
    with _accounts(path) as accounts:
        if accounts.has(arguments.name):
            return is_there(arguments, path)
        give_password(accounts, arguments, ask_password(arguments.password_file, arguments.name))
    return [f"account {arguments.name} was made in {path}"]


def _passwd(arguments: argparse.Namespace, path: str) -> list[str]:
    with _accounts(path) as accounts:
        _refuse_unknown(accounts, arguments.name, path)
        give_password(accounts, arguments, ask_password(arguments.password_file, arguments.name))
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
