"""``seglogd init``: the first account of a log directory, which administers.

Exit codes: 0 done; 1 not done, nothing has changed; 2 usage or configuration.
"""

import argparse
import secrets
from collections.abc import Sequence
from typing import Final

from seglog_broker.accounts.offline import ask_password, offline_accounts
from seglog_broker.accounts.options import add_options, add_password_options, give_password, is_there, run
from seglog_broker.storage.io.filesystem import PosixFileSystem

_PASSWORD_BYTES: Final = 18
"""Of a random password: more than anyone can try, and few enough to type."""


def main(argv: Sequence[str]) -> int:
    """`seglogd init`; returns the exit code. Raises SystemExit(2) on wrong usage."""
    return run("seglogd init", make_parser().parse_args(argv))


def make_parser() -> argparse.ArgumentParser:
    """The parser of `seglogd init`, whose arguments docs/REFERENCE.md lists."""
    parser = argparse.ArgumentParser(
        prog="seglogd init",
        description="Make the account of an administrator in a log directory, with a random password that is printed "
        "once, and tell the configuration that goes with it.",
        epilog="Exit codes: 0 done, 1 not done, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("--admin", metavar="NAME", default="admin", dest="name", help="the account's name: admin")
    add_options(parser, _init)
    add_password_options(parser, else_="else it is a random one, which is printed")
    return parser


def _init(arguments: argparse.Namespace, path: str) -> list[str]:
    name, file = arguments.name, arguments.password_file
    with offline_accounts(PosixFileSystem(), path) as accounts:
        if accounts.has(name):
            return is_there(arguments, path)
        password = secrets.token_urlsafe(_PASSWORD_BYTES) if file is None else ask_password(file, name)
        give_password(accounts, arguments, password)
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
