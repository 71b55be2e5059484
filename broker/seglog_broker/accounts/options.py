"""What `seglogd user` and `seglogd init` have in common: their options, and how they end."""

import argparse
from collections.abc import Callable
from typing import Final

from seglog_broker.accounts.offline import AccountError, set_password
from seglog_broker.config.command_options import load_config
from seglog_broker.security.credentials import ITERATIONS_MAX, ITERATIONS_MIN
from seglog_broker.standard_output import print_and_end, refuse
from seglog_broker.storage.directory.accounts import AccountStore
from seglog_broker.storage.io.os_errors import why
from seglog_protocol.errors import InvalidConfigError, SeglogError
from seglog_protocol.scram import HASHES, ITERATIONS_DEFAULT

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

Work = Callable[[argparse.Namespace, str], list[str]]
"""What a command does with its arguments and a log directory. It returns what is printed."""


def add_options(parser: argparse.ArgumentParser, work: Work) -> None:
    """Add those of every command, which ``work`` is."""
    parser.add_argument("--data", metavar="DIR", help="the log directory; by default log.dir of the configuration")
    parser.add_argument("--config", metavar="FILE", help="the broker's configuration (or SEGLOG_CONFIG)")
    parser.set_defaults(work=work)


def add_password_options(parser: argparse.ArgumentParser, *, else_: str, can_exist: bool = True) -> None:
    """Add those of a command that sets a password; ``else_`` says where it is from without --password-file."""
    parser.add_argument(
        "--password-file", metavar="FILE", help=f"file with the password, - for standard input; {else_}"
    )
    parser.add_argument(
        "--iterations",
        metavar="N",
        type=_iterations,
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


def _iterations(text: str) -> int:
    if not text.isdecimal() or not ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX:
        raise argparse.ArgumentTypeError(f"must be a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return int(text)


def run(program: str, arguments: argparse.Namespace) -> int:
    """Do what the arguments say; returns the exit code."""
    try:
        path = load_config(arguments.config).log_dir if arguments.data is None else str(arguments.data)
    except InvalidConfigError as error:
        return refuse(program, error.message, EXIT_USAGE)
    try:
        lines = arguments.work(arguments, path)
    except AccountError as error:
        return refuse(program, str(error), EXIT_FAILED)
    except SeglogError as error:
        return refuse(program, error.message, EXIT_FAILED)
    except OSError as error:
        return refuse(program, f"the accounts of {path} could not be changed: {why(error)}", EXIT_FAILED)
    return print_and_end(program, lines, EXIT_OK)


def is_there(arguments: argparse.Namespace, path: str) -> list[str]:
    """The outcome where the account exists already. Raises AccountError, unless that is fine."""
    if not arguments.if_absent:
        raise AccountError(
            f"there is an account {arguments.name} in {path} already: give it another password by `seglogd user passwd`"
        )
    return [f"there is an account {arguments.name} in {path} already, which was not changed"]


def give_password(accounts: AccountStore, arguments: argparse.Namespace, password: str) -> None:
    """Set the password of the account that the arguments name. Raises AccountError, OSError."""
    mechanisms = tuple(dict.fromkeys(arguments.mechanism or HASHES))
    set_password(accounts, arguments.name, password, mechanisms, arguments.iterations)
