"""The lines of ``seglog doctor`` in 80 and 160 columns, of a healthy broker and of a sick one, as looked at."""

from pathlib import Path
from typing import Any

from seglog import __version__
from seglog.cli.checkups.machine import Mount, mount_checks
from seglog.cli.checkups.model import Check, Verdict, ok, problem
from seglog.cli.checkups.told import Told, told_checks
from seglog.cli.doctor import lines_of, summary
from seglog_protocol.messages import ConfigEntry
from tests.support import each_case
from tests.unit.clients.cli.doctor_answers import description, greeting

CAPTURES = Path(__file__).parent / "captures"
VERSIONS = {"seglogd": "0", "build": "compiled", "python": "3.13.5", "kernel": "Linux 6.12.48 x86_64"}


def healthy() -> list[Check]:
    config = {
        "seglog.connections.max": ConfigEntry("10000", "default"),
        "log.dir": ConfigEntry("/var/lib/seglog", "file", '/etc/seglog.toml: "log.dir"'),
    }
    disk = {"free_bytes": 321e9, "size_bytes": 500e9, "full": 0.0, "free_inodes": 30e6, "full_in_seconds": float("inf")}
    told = Told(
        *("logs.example:9192", "User:admin", "TLSv1.3", hello()),
        *(description(config=config, versions=VERSIONS), disk, 0.004, 0.002),
    )
    return [
        *told_checks(told),
        *mount_checks("/var/lib/seglog", Mount("/var", "xfs", "/dev/nvme0n1p2", frozenset({"rw", "noatime"}))),
        ok("advertised", "EXTERNAL tells Kafka's clients to connect to logs.example:9092, where this broker answers"),
    ]


def sick() -> list[Check]:
    config = {
        "seglog.connections.max": ConfigEntry("10000", "default"),
        "num.io.threads": ConfigEntry("16", "environment", "SEGLOG_NUM_IO_THREADS", "no effect here: one loop"),
    }
    described = description(
        config=config,
        versions=VERSIONS,
        limits={"open_files": 1024, "connections": 384, "processors": 2, "memory_bytes": 1 << 33},
        warnings=["seglog.listen is open to everyone who reaches 0.0.0.0:9192 (seglog.open.to.everyone=true)."],
    )
    disk = {"free_bytes": 1.2e9, "size_bytes": 500e9, "full": 1.0, "free_inodes": 30e6}
    problems = ["clicks-0 is offline: Input/output error", "the disk is full: 1.2 GB of 500.0 GB are free"]
    told = Told(
        *(
            "logs.example:9192",
            "",
            "",
            hello(problems=problems, problem_kinds=["disk", "disk-full"], recovery={"partitions": 3}),
        ),
        *(described, disk, -4000.0, 0.002),
    )
    return [
        *told_checks(told),
        *mount_checks("/data", Mount("/data", "tmpfs", "tmpfs", frozenset({"rw"}))),
        problem(
            "advertised",
            "EXTERNAL tells Kafka's clients to connect to logs.internal:9092, and that fails from here: unknown host",
            "set advertised.listeners to an address that its clients can reach, for each of listeners",
        ),
    ]


def hello(**changes: Any) -> Any:
    return greeting(f"seglogd/{__version__}", uptime_ms=273_600_000, partitions=12, **changes)


BROKERS = {"healthy": healthy, "sick": sick}


@each_case("columns", [80, 160])
@each_case("name", list(BROKERS))
def test_the_lines_are_as_they_were_looked_at(name: str, columns: int) -> None:
    """A changed page is to be looked at again; the version is that of any."""
    shown = drawn(name, columns)
    assert shown == (CAPTURES / f"{name}-{columns}.txt").read_text(encoding="utf-8")
    assert max(map(len, shown.splitlines())) <= columns


def drawn(name: str, columns: int) -> str:
    checks = [check._replace(found=check.found.replace(__version__, "9.9.9")) for check in BROKERS[name]()]
    lines = [line for check in checks for line in lines_of(check, columns)]
    return "\n".join([*lines, summary(checks), ""])


def test_a_healthy_broker_needs_nothing_and_a_sick_one_has_a_remedy_for_each_line() -> None:
    assert {check.verdict for check in healthy()} == {Verdict.OK}
    assert {check.verdict for check in sick()} == {Verdict.OK, Verdict.WARNING, Verdict.PROBLEM}
    assert all(check.remedy for check in sick() if check.verdict is not Verdict.OK)
