"""``seglog user add | passwd | list | delete``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import FILE, Command, Group, Option, flag
from seglog.cli.common import answer, answer_table, can_ask, is_confirmed, open_client, password_typed, warn
from seglog.cli.exits import FAILED, UsageError
from seglog.cli.option_types import POSITIVE
from seglog.cli.parameters import client_command, completed, yes
from seglog_protocol.errors import UserExistsError
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog.core.security import Secret

_STDIN: Final = "-"


def _add(options: Options) -> int:
    password = _new_password(options)
    try:
        with open_client(options) as client, _as_usage():
            client.create_user(options.name, password, iterations=options.iterations)
    except UserExistsError:
        if not options.if_absent:
            raise
        return _done(options, "was there already, and is not changed")
    return _done(options, "added")


def _passwd(options: Options) -> int:
    password = _new_password(options)
    with open_client(options) as client, _as_usage():
        client.set_password(options.name, password, iterations=options.iterations)
    return _done(options, "has another password")


def _list(client: "Client", options: Options) -> int:
    users = client.users()
    rows = [
        (printable(user.name), ", ".join(f"{c.mechanism} ({c.iterations})" for c in user.credentials)) for user in users
    ]
    return answer_table(options, [user.to_wire() for user in users], ("USER", "CREDENTIALS (ITERATIONS)"), rows)


def _delete(client: "Client", options: Options) -> int:
    if not is_confirmed(options, lambda: f"Delete user {options.name} forever?"):
        warn(f"{printable(options.name)} is not deleted")
        return FAILED
    client.delete_user(options.name)
    return _done(options, "deleted")


def _done(options: Options, what: str) -> int:
    return answer(options, {"user": options.name}, f"{printable(options.name)}: {what}")


def _new_password(options: Options) -> "Secret":
    """That of a file, of standard input, or one that is typed twice. Raises UsageError, and OSError for the file."""
    if options.new_password_file is not None:
        from seglog.core.security import Secret
        from seglog.secret_files import secret_in, secret_typed_into

        try:
            if options.new_password_file == _STDIN:
                return secret_typed_into(sys.stdin.buffer, "standard input")
            return Secret(secret_in(options.new_password_file).reveal())
        except ValueError as error:
            raise UsageError(str(error)) from error
    if not can_ask():
        raise UsageError("without a terminal the new password comes from a file: --password-file FILE")
    password = password_typed(f"New password of {printable(options.name)}: ")
    if password.reveal() != password_typed("And again: ").reveal():
        raise UsageError("the two passwords differ")
    return password


@contextmanager
def _as_usage() -> Iterator[None]:
    """What a name or password cannot be is a mistake of whoever typed it."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None


def _name(summary: str) -> click.Argument:
    return click.Argument(["name"], help=summary, shell_complete=completed("users"))


def _password() -> list[click.Parameter]:
    return [
        Option(
            ["--password-file", "new_password_file"],
            type=FILE,
            show_default="it is asked for",
            help="File with the new password, in one line; - is standard input. The file with that of your own account "
            "is given in front: seglog --password-file FILE user ..., or by SEGLOG_PASSWORD_FILE.",
        ),
        Option(
            ["--iterations"],
            type=POSITIVE,
            default=8192,
            help="How much work one guess at the password is, 4096 to 16384.",
        ),
    ]


COMMAND: Final = Group(
    "user",
    [
        Command(
            "add",
            runs=_add,
            help="Make an account.\n\nIt logs in by SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN, on the listeners that take "
            "them. The password does not leave this machine, only what is derived from it.",
            params=[
                click.Argument(["name"], help="Name of the new account."),
                *_password(),
                flag("--if-absent", "Succeed, and change nothing, where there is such an account."),
            ],
            example="seglog --user admin user add alice --password-file alice.password",
        ),
        Command(
            "passwd",
            runs=_passwd,
            help="Give an account another password.",
            params=[_name("Name of the account."), *_password()],
        ),
        client_command("list", _list, "List the accounts, with the mechanisms by which they log in."),
        client_command("delete", _delete, "Delete an account.", _name("Name of the account."), yes()),
    ],
)
