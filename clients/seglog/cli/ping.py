"""``seglog ping``: who answers and how it is, for people, for containers and for probes."""

from typing import TYPE_CHECKING, Final

from seglog.cli.arguments import Options
from seglog.cli.commands import Choice, Command, flag
from seglog.cli.common import answer, open_client, print_json
from seglog.cli.exits import FAILED, OK
from seglog.cli.terminal import print_line
from seglog.core.errors import count_of, duration_of
from seglog_protocol.errors import RequestError, SeglogError, StorageError, error_to_wire
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog_protocol.messages import HelloReply

_ANONYMOUS: Final = "User:ANONYMOUS"


def run(options: Options) -> int:
    """Show who answers; the exit code is the verdict."""
    try:
        with open_client(options) as client:
            broker, server = client.broker, client.server
            principal, tls = client.principal, client.tls_version
    except SeglogError as error:
        refusal = _refusal(error)
        if refusal is None or not options.live:
            raise
        shown = {"server": options.server, "ok": True, "refusal": error_to_wire(refusal)}
        return answer(options, shown, f"a broker answers at {options.server}: {refusal.message}")
    has_failed = bool(broker.problems)
    if options.live or options.ready:
        has_failed = not options.live and broker.partitions > 0 and not _serving(broker)
    verdict = FAILED if has_failed else OK
    if options.json:
        who = {"server": options.server, "principal": principal or None, "tls": tls or None}
        print_json(who | {"ok": verdict == OK, "serving": _serving(broker)} | broker.to_wire())
    else:
        _print(broker, server)
        if tls or principal not in {"", _ANONYMOUS}:
            print_line(f"as {printable(principal) or _ANONYMOUS}, {tls or 'without TLS'}")
    return verdict


def _serving(broker: "HelloReply") -> int:
    """How many partitions can be read: they are neither offline nor still to be recovered.

    One that takes no records until its disk has room counts: to make room, clients have to reach the broker.
    """
    return broker.partitions - broker.offline - (broker.recovery or {}).get("partitions", 0)


def _print(broker: "HelloReply", server: str) -> None:
    recovery = ""
    if broker.recovery:
        done, size = broker.recovery.get("read_bytes", 0), broker.recovery.get("bytes", 0)
        left = broker.recovery.get("partitions", 0)
        recovery = f"{left} of them still recovering ({done / 1e6:,.0f} of {size / 1e6:,.0f} MB read), "
    if broker.read_only_until_room:
        recovery += f"{broker.read_only_until_room} of them read-only until there is room on the disk, "
    if broker.awaited:
        still = broker.awaited.get("bytes", 0) / 1e6
        recovery += f"{count_of(broker.awaited.get('segments', 0), 'segment')} ({still:,.0f} MB) still in a backup, "
    problems = count_of(len(broker.problems), "problem") if broker.problems else "no problems"
    if not (broker.problems or broker.log_dir):  # both are kept from this account: problems name topics
        problems = "problems are shown to who may DESCRIBE the cluster"
    partitions = count_of(broker.partitions, "partition")
    print_line(f"{broker.broker} at {server}, up {duration_of(broker.uptime_ms)}, {partitions}, {recovery}{problems}")
    print_line(f"{f'data in {broker.log_dir}, ' if broker.log_dir else ''}cluster id {broker.cluster_id or '?'}")
    if broker.backup is not None:
        from seglog.cli.figures import loss_of

        print_line(f"backup to {printable(broker.backup.place)}: {loss_of(broker.backup)}")
    for problem in broker.problems:
        print_line(f"problem: {printable(problem)}", fg="red")


def _refusal(error: BaseException | None) -> RequestError | StorageError | None:
    """The error of a broker that answered and refused the connection; None when nothing answered."""
    while error is not None and not isinstance(error, RequestError | StorageError):
        error = error.__cause__
    return error


COMMAND: Final = Command(
    "ping",
    runs=run,
    help="Also its version, uptime, partitions and data directory. It exits with 0 when the broker has no problems, 1 "
    "when it has some, 3 when none answers.",
    params=[
        flag(
            "--ready",
            "Exit with 0 when at least one partition can be read, or there is none, whatever the problems; "
            "else with 1.",
        ),
        flag("--live", "Exit with 0 when a broker answers at all; else with 3."),
    ],
    choices=[Choice(("ready", "live"))],
)
