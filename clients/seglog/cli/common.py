"""What several commands share: connecting, offsets and times, JSON, settings.

Neither this nor a command imports the client before it runs, so that help and completion are quick.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any

from seglog.cli import complain
from seglog.cli.arguments import Options
from seglog.cli.exits import OK, UsageError
from seglog.cli.tables import print_table
from seglog.cli.terminal import is_terminal, print_line
from seglog.core.moments import EXAMPLES, Moment, parse_moment
from seglog_protocol.texts import disarmed_json, printable

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog.core.security import Secret, Target
    from seglog_protocol.messages import ConfigEntry


def open_client(options: Options) -> "Client":
    """Connect to ``--server``. Raises UsageError for what is not an address, or does not fit together."""
    from seglog.client import connect

    ask_for_password(options)
    try:
        return connect(
            options.server, connect_timeout=options.connect_timeout, client_id="seglog-cli", **options.security
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def ask_for_password(options: Options) -> None:
    """Ask, on a terminal, for the password of an account that was named without one; it is kept in the options."""
    security = options.security
    if "user" not in security or "password" in security or "password_file" in security:
        return
    if not can_ask():
        if options.values.get("new_password_file") is not None:
            raise UsageError(
                f"--password-file behind the command is the new password's; that of user {security['user']!r} belongs "
                "in front: seglog --password-file FILE user ..., or in SEGLOG_PASSWORD_FILE"
            )
        raise UsageError(
            f"there is no password for user {security['user']!r}: give --password-file, or SEGLOG_PASSWORD_FILE"
        )
    security["password"] = password_typed(f"Password of {printable(security['user'])}: ")


def target_of(options: Options) -> "Target":
    """The broker of the options, and the account and the files for it. Raises OSError, ValueError for those."""
    from seglog.core import security
    from seglog.secret_files import secret_in

    given = dict(options.security)
    password, file = security.hidden(given.pop("password", None)), given.pop("password_file", None)
    return security.target_of(options.server, password=password if file is None else secret_in(file), **given)


def password_typed(prompt: str) -> "Secret":
    """Ask for a password, which is not shown."""
    from getpass import getpass

    from seglog.core.security import Secret

    return Secret(getpass(prompt))


def zone_of(options: Options) -> tzinfo | None:
    """UTC, or with ``--local`` None: the machine's own zone."""
    return None if options.local else UTC


def moment_of(text: str, options: Options, examples: str = EXAMPLES) -> Moment:
    """Parse an offset or a time. Raises UsageError with examples."""
    try:
        return parse_moment(text, now_ms=time.time_ns() // 1_000_000, zone=zone_of(options), examples=examples)
    except ValueError as error:
        raise UsageError(str(error)) from error


def print_json(value: Any) -> None:
    """One JSON value on a line of its own."""
    import json

    line = json.dumps(value, ensure_ascii=False)
    print(disarmed_json(line) if is_terminal() else line)  # noqa: T201 - not cut, nor in colours


def answer(options: Options, value: Any, *lines: str) -> int:
    """Print an answer in lines, or with ``--json`` as a value. Returns the exit code, which is 0."""
    if options.json:
        print_json(value)
    else:
        for line in lines:
            print_line(line)
    return OK


def answer_table(options: Options, value: Any, titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
    """Print rows, if there are any, as a table, or with ``--json`` as a value. Returns the exit code, which is 0."""
    if options.json:
        print_json(value)
    elif rows:
        print_table(titles, rows)
    return OK


def print_config(config: "Mapping[str, ConfigEntry]") -> None:
    """Print every value, durations and sizes also with units, its origin, and why it has no effect if it has none."""
    from seglog_protocol.quantities import with_reading

    print_table(
        ("KEY", "VALUE", "FROM", "EFFECT"),
        [
            (key, with_reading(key, entry.value), f"{entry.origin} {entry.where}".strip(), entry.shortfall or "")
            for key, entry in sorted(config.items())
        ],
    )


def is_confirmed(options: Options, question: Callable[[], str]) -> bool:
    """Ask for confirmation. True with ``--yes``, without a terminal, or if the answer is yes."""
    return options.yes or not can_ask() or is_yes(question())


def can_ask() -> bool:
    """Whether somebody sits at a terminal to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def is_yes(question: str) -> bool:
    """Ask, on a terminal; whether the answer is yes."""
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def warn(sentence: str) -> None:
    """Flush standard output, then print a sentence to stderr."""
    sys.stdout.flush()
    complain(sentence)
