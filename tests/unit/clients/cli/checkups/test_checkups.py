"""What ``seglog doctor`` finds: pages of HTTP, mounts, and its lines of a healthy broker and of a sick one."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from seglog import __version__
from seglog.cli.checkups.listeners import http_check
from seglog.cli.checkups.machine import Mount, mount_checks, mount_of
from seglog.cli.checkups.model import Check, Verdict, ok, problem
from seglog.cli.checkups.told import Told, told_checks
from seglog.cli.doctor import lines_of, summary
from seglog.core.dialing import Address
from seglog_protocol.messages import ConfigEntry
from tests.support import each_case
from tests.unit.clients.cli.doctor_answers import description, greeting

# --- Pages for health and metrics -------------------------------------------------------------------------------------


@contextmanager
def pages(statuses: dict[str, int]) -> Iterator[Address]:
    """A server that answers each page with its status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses[self.path])
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@each_case(
    ("ready", "health", "verdict", "found"),
    [
        (200, 200, "ok", "answers probes and Prometheus"),
        (200, 503, "ok", "answers probes and Prometheus"),
        (200, 401, "ok", "/metrics with the token"),
        (503, 200, "warning", "still recovering"),
        (200, 403, "warning", "to nobody here"),
    ],
)
def test_pages_are_judged_by_their_status(ready: int, health: int, verdict: str, found: str) -> None:
    with pages({"/readyz": ready, "/healthz": health}) as address:
        check = http_check("PLAINTEXT", address, None, 5)
    assert check.verdict == verdict
    assert found in check.found
    assert bool(check.remedy) is (verdict != "ok")


def test_what_is_no_http_is_said_to_be_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x00\x00\x00\x04what\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        check = http_check("PLAINTEXT", Address("127.0.0.1", server.getsockname()[1]), None, 5)
        thread.join()
    assert check.verdict == "unknown"
    assert "was not asked" in check.found


# --- The mount of a directory -----------------------------------------------------------------------------------------

MOUNTINFO = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
25 22 0:22 / /proc rw,nosuid - proc proc rw
40 22 8:1 / /data rw,noatime shared:1 master:2 - xfs /dev/sdb1 rw,attr2
41 40 0:40 / /data/nfs rw - nfs4 files.example:/logs rw,vers=4.2
42 22 8:2 / /with\040blank rw - ext4 /dev/sdc1 rw,barrier=0
43 22 8:3 / /data2 rw - ext4 /dev/sdd1 rw
44 40 0:41 / /data/nfs rw - tmpfs covers rw
not a mount
"""


@each_case(
    ("path", "place", "kind"),
    [
        ("/srv/logs", "/", "ext4"),
        ("/data", "/data", "xfs"),
        ("/data/a/b", "/data", "xfs"),
        ("/data/nfs/a", "/data/nfs", "tmpfs"),
        ("/data2/a", "/data2", "ext4"),
        ("/data22", "/", "ext4"),
        ("/with blank/a", "/with blank", "ext4"),
    ],
)
def test_the_mount_is_the_nearest_above_and_the_last_at_its_place(path: str, place: str, kind: str) -> None:
    mount = mount_of(path, MOUNTINFO)
    assert mount is not None
    assert (mount.place, mount.kind) == (place, kind)


def test_without_a_mount_none_is_found() -> None:
    assert mount_of("/data", "") is None


@each_case(
    ("kind", "options", "disk", "mounted"),
    [
        ("ext4", "rw,relatime", Verdict.OK, Verdict.OK),
        ("xfs", "rw", Verdict.OK, Verdict.OK),
        ("tmpfs", "rw", Verdict.PROBLEM, Verdict.OK),
        ("nfs4", "rw", Verdict.WARNING, Verdict.OK),
        ("fuse.sshfs", "rw", Verdict.WARNING, Verdict.OK),
        ("overlay", "rw", Verdict.WARNING, Verdict.OK),
        ("ext4", "ro", Verdict.OK, Verdict.PROBLEM),
        ("ext4", "rw,barrier=0", Verdict.OK, Verdict.PROBLEM),
        ("xfs", "rw,nobarrier", Verdict.OK, Verdict.PROBLEM),
        ("ext4", "rw,sync", Verdict.OK, Verdict.WARNING),
        ("ext4", "rw,strictatime", Verdict.OK, Verdict.WARNING),
    ],
)
def test_kinds_and_options_are_judged(kind: str, options: str, disk: Verdict, mounted: Verdict) -> None:
    checks = list(mount_checks("/data", Mount("/", kind, "/dev/x", frozenset(options.split(",")))))
    assert [check.verdict for check in checks] == [disk, mounted]
    assert all(check.remedy for check in checks if check.verdict is not Verdict.OK)
    if mounted is not Verdict.OK:
        wrong = options.rpartition(",")[2]
        instead = {"ro": "rw", "sync": "async", "strictatime": "noatime"}.get(wrong, "")
        assert (instead or f"without {wrong}") in checks[1].remedy
        _, again = mount_checks("/data", Mount("/", kind, "/dev/x", frozenset({"rw", instead})))
        assert again.verdict is Verdict.OK


# --- Lines in 80 and 160 columns --------------------------------------------------------------------------------------

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
