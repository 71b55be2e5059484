"""``seglog doctor``: is this broker set up well, and its machine, and is it reached as it says."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from seglog.cli.arguments import Options
from seglog.cli.checkups.model import Check, Verdict, problem
from seglog.cli.commands import Command
from seglog.cli.common import answer, open_client, target_of
from seglog.cli.exits import FAILED, OK, REFUSED, exit_code_of
from seglog.cli.tables import wrapped
from seglog.cli.terminal import columns_of_terminal, print_line
from seglog.core.errors import count_of
from seglog_protocol.errors import AuthenticationError, AuthorizationError, SeglogError, TlsRequiredError
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog.cli.checkups.told import Told

_STYLES: Final = {Verdict.UNKNOWN: {"fg": "cyan"}, Verdict.WARNING: {"fg": "yellow"}, Verdict.PROBLEM: {"fg": "red"}}
_VERDICT_WIDTH: Final = 9
_NAME_WIDTH: Final = 15
_NO_BROKER: Final = (
    "start it, or name its address: --server HOST:PORT, or SEGLOG_SERVER; its log says where it listens (broker_ready)"
)
_ACCOUNT: Final = (
    "give an account that it knows: --user NAME with --password-file FILE, or a profile; where it asks for none, none"
)
_RIGHTS: Final = "give an account that may ask this (--user, --password-file), as one in super.users"
_TLS: Final = "connect with TLS: --server seglogs://HOST:PORT, with --ca FILE where its authority is not the system's"
_SEE_LOG: Final = "see the broker's log"


def run(options: Options) -> int:
    """Print what was found; the exit code is the verdict."""
    from seglog.cli.checkups.told import ask

    checks: list[Check] = []
    code = OK
    try:
        with open_client(options) as client:
            told = ask(client)
        for check in examine(told, options):
            checks.append(check)
            if not options.json:
                _print(check)
    except SeglogError as error:
        code = exit_code_of(error)
        checks.append(problem("broker", error.message, _remedy(error) if not checks else _SEE_LOG))
        if not options.json:
            _print(checks[-1])
    if code == OK and any(check.verdict is Verdict.PROBLEM for check in checks):
        code = FAILED
    shown = {"server": options.server, "ok": code == OK, "checks": [check._asdict() for check in checks]}
    answer(options, shown, summary(checks))
    return code


def examine(told: "Told", options: Options) -> Iterator[Check]:
    """What the broker tells, its machine where that is this one, and its listeners as they are seen from here."""
    from seglog.cli.checkups.listeners import listener_checks
    from seglog.cli.checkups.machine import machine_checks
    from seglog.cli.checkups.told import told_checks

    yield from told_checks(told)
    yield from machine_checks(told.hello, told.described)
    if told.described is not None:
        yield from listener_checks(told.hello, told.described.listeners, target_of(options))


def _remedy(error: SeglogError) -> str:
    """What to do where nothing could be examined: one that refuses has been reached."""
    cause: BaseException | None = error
    while cause is not None:
        match cause:
            case AuthenticationError():
                return _ACCOUNT
            case AuthorizationError():
                return _RIGHTS
            case TlsRequiredError():
                return _TLS
        cause = cause.__cause__
    return _SEE_LOG if exit_code_of(error) == REFUSED else _NO_BROKER


def lines_of(check: Check, width: int | None) -> Iterator[str]:
    """A check in lines of at most ``width`` columns (None: any), the remedy on lines of its own."""
    head = f"{check.verdict:<{_VERDICT_WIDTH}}{check.name:<{_NAME_WIDTH}}"
    for text, before in ((check.found, head), (f"-> {check.remedy}" if check.remedy else "", " " * len(head))):
        if text:
            yield from [before + printable(text)] if width is None else wrapped(text, width, head=before)


def summary(checks: Sequence[Check]) -> str:
    """``12 checks: 10 ok, 1 warning, 1 problem``."""
    counted = Counter(check.verdict for check in checks)
    parts = [f"{counted[verdict]} {verdict}" for verdict in (Verdict.OK, Verdict.UNKNOWN) if counted[verdict]]
    parts += [count_of(counted[v], str(v)) for v in (Verdict.WARNING, Verdict.PROBLEM) if counted[v]]
    return f"{count_of(len(checks), 'check')}: {', '.join(parts)}"


def _print(check: Check) -> None:
    style = _STYLES.get(check.verdict, {})
    for line in lines_of(check, columns_of_terminal()):
        if line.lstrip().startswith("->"):
            style = {}  # the remedy, to its end
        print_line(line, **style)


COMMAND: Final = Command(
    "doctor",
    runs=run,
    help="Problems that it tells, versions, clock, limits, disk and mount options, permissions, configuration, ports, "
    "and what Kafka's clients are told to connect to. What needs the broker's disk is looked at where its log "
    "directory is on this machine. It exits with 0 when there is no problem, 1 when there is one, 3 when no broker "
    "answers.",
)
