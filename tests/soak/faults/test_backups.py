"""Backups of a daemon that is written to, rolls, compacts, expires and deletes; and ends of both sides in one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import seglog
from seglog_broker.config import load_config
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.errors import CoordinatorLoadingError
from tests.logs import read_around, verify
from tests.process.faults.living_clients import Entry, Ledger, Ledgers
from tests.processes import PACKAGES, SEGLOGD, Daemon, clean_environment, daemon, ended, finished, wait_until
from tests.small_disks import mounted
from tests.soak.faults.test_full_disk import fill_from_outside
from tests.soak.faults.test_kill_under_load import DAEMON, TOPICS, UsualLoad
from tests.support import numbers_of, soak_scaled

pytestmark = [pytest.mark.timeout(1800)]

BACKUPS: Final = max(4, soak_scaled(20))
SOON: Final = ("--set", "log.segment.delete.delay.ms=50")

STRANGER: Final = 12345
"""A user who is neither root nor the one that runs the tests."""

_AT_RENAME: Final = """
import os, signal
replace, left = os.replace, [3]
def replace_and_stop(*arguments, **more):
    replace(*arguments, **more)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGSTOP)
os.replace = replace_and_stop
"""


class Command(NamedTuple):
    """How an offline command ended."""

    code: int
    output: str
    errors: str


def command(*arguments: str | Path, under: Sequence[str] = ()) -> Command:
    """Run ``seglogd`` with these arguments to its end."""
    done = finished([*under, *SEGLOGD, *map(str, arguments)])
    return Command(done.returncode, done.stdout, done.stderr)


def backup(data: Path, to: Path, *more: str, under: Sequence[str] = ()) -> str:
    """Take a backup, which has to end well; its id."""
    done = command("backup", data, "--to", to, *more, under=under)
    assert done.code == 0, done
    return done.output.partition(":")[0]


def started_backup(folder: Path, data: Path, to: Path, under: Sequence[str]) -> "subprocess.Popen[bytes]":
    """A backup that stops itself after three renames: each is the end of one file of the destination."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_AT_RENAME, encoding="utf-8")
    return subprocess.Popen(
        [*under, sys.executable, "-m", "seglog_broker", "backup", str(data), "--to", str(to)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(PYTHONPATH=f"{folder}{os.pathsep}{PACKAGES}"),
    )


@contextmanager
def stopped_amid(
    folder: Path, data: Path, under: Sequence[str] = ()
) -> Iterator[tuple[Daemon, "subprocess.Popen[bytes]"]]:
    """A daemon with closed segments, and a backup of them that is stopped in the middle."""
    with daemon(data, *SOON, under=under) as running:
        fill(running.address, 12)
        to = folder / "backups"
        stopped = started_backup(folder / "hook", data, to, under)
        with ended(stopped):
            wait_until_stopped(stopped)
            yield running, stopped


def wait_until_stopped(process: "subprocess.Popen[bytes]") -> None:
    """Return when the process has stopped; it must not end."""
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert found is not None
    assert found.si_status == signal.SIGSTOP, process.communicate()


def goes_on(process: "subprocess.Popen[bytes]") -> Command:
    """How a stopped process ends when it goes on."""
    process.send_signal(signal.SIGCONT)
    output, errors = process.communicate()
    return Command(process.returncode, output.decode(), errors.decode())


def snapshots(data: Path) -> list[str]:
    """Snapshots in a log directory, whole or not."""
    return [path.name for path in data.glob(f"{filenames.SNAPSHOT_TOPIC}-*")]


def manifests(to: Path) -> list[str]:
    return sorted(path.stem for path in (to / "backups").glob("*"))


def promised(ledgers: Ledgers) -> dict[tuple[str, int], int]:
    """Of each partition the offset behind the last one that was acked, or read by someone, until now."""
    return {place: max(ledger.promised, default=-1) + 1 for place, ledger in ledgers.items()}


def assert_holds(restored: Path, ledgers: Ledgers, begun_at: dict[tuple[str, int], int]) -> None:
    """A restored copy has all that was promised when its backup began, and up to its ends all that was ever sent."""
    fs = PosixFileSystem()
    config, _ = load_config(None, "", {}, [f"log.dir={restored}"])
    directory = open_log_directory(fs, SystemClock(), config, str(restored))
    try:
        assert directory.report.clean
        for place, ledger in ledgers.items():
            log = directory.logs[place]
            verify(fs, log)
            assert log.log_end_offset >= begun_at[place]
            then = Ledger(ledger.policy)
            then.sent = ledger.sent
            then.promised = {offset: entry for offset, entry in ledger.promised.items() if offset < log.log_end_offset}
            found = {record.offset: Entry.of(record.key, record.value, record.headers) for record in read_around(log)}
            then.check(found, log.log_start_offset, log.log_end_offset)
    finally:
        directory.abandon()


def test_backups_under_load_hold_every_record_that_was_acked_when_they_began(tmp_path: Path) -> None:
    ledgers = {(topic, n): Ledger(policy) for topic, (policy, count, _) in TOPICS.items() for n in range(count)}
    data, to = tmp_path / "data", tmp_path / "backups"
    taken: list[tuple[str, dict[tuple[str, int], int], dict[int, int]]] = []
    with daemon(data, *DAEMON) as running:
        with seglog.connect(running.address) as client:
            for topic, (_, partitions, config) in TOPICS.items():
                client.create_topic(topic, partitions, config)
            with (
                UsualLoad(running.address, ledgers) as load,
                client.consumer("kept", group="readers", start="earliest") as member,
            ):
                records = iter(member)
                for _ in range(BACKUPS):
                    load.wait_for_acks(300)
                    next(records)
                    member.commit()
                    committed = {partition: found.offset for partition, found in member.committed().items()}
                    load.take_everything()
                    begun_at = promised(ledgers)
                    taken.append((backup(data, to), begun_at, committed))
                load.finish()
                load.take_everything()
        log = running.log_text()
        wait_until(lambda: not snapshots(data), "the end of the last snapshot")
        assert running.stop() == 0
    assert all(event in log for event in ("partition_compacted", "segment_expired", "topic_deleted", "snapshot_made"))
    assert manifests(to) == [backup_id for backup_id, _, _ in taken]
    for number, (backup_id, begun_at, committed) in enumerate(taken):
        restored = tmp_path / f"restored-{number}"
        done = command("restore", to, "--backup", backup_id, "--to", restored)
        assert done == (0, done.output, ""), "as it was, and not recovered"
        assert_holds(restored, ledgers, begun_at)
        with daemon(restored) as again, seglog.connect(again.address) as client:
            offsets = offsets_of(client, "readers", "kept")
            for partition, offset in committed.items():
                there, latest = offsets[partition]
                assert offset <= there <= latest


def offsets_of(client: seglog.Client, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """By partition the committed offset, and the end of the log, as soon as the broker has read them."""
    found: dict[int, tuple[int, int]] = {}

    def is_known() -> bool:
        with suppress(CoordinatorLoadingError):
            for there in client.group_offsets(group):
                if there.topic == topic and there.offset is not None and there.latest is not None:
                    found[there.partition] = there.offset, there.latest
            return True
        return False

    wait_until(is_known, "the group's offsets")
    return found


def test_a_backup_whose_broker_was_killed_and_started_again_says_so_and_is_none(tmp_path: Path) -> None:
    data, to = tmp_path / "data", tmp_path / "backups"
    with stopped_amid(tmp_path, data) as (running, stopped):
        running.kill()
        running.start()
        wait_until(lambda: not snapshots(data), "the removal of the snapshot")
        done = goes_on(stopped)
        assert done.code == 1
        assert done.errors == f"seglogd backup: the broker on {data} ended while the backup was taken: run it again\n"
        assert manifests(to) == []
        backup(data, to)
        assert command("verify", to).code == 0
        assert running.stop() == 0


def test_a_disk_that_fills_while_a_backup_is_taken_ends_the_snapshot_and_the_backup(tmp_path: Path) -> None:
    disk, to = tmp_path / "disk", tmp_path / "backups"
    data = disk / "data"
    with mounted(disk, "size=64m") as under, stopped_amid(tmp_path, data, under) as (running, stopped):
        fill_from_outside(disk, under)
        wait_until(lambda: "snapshot_given_up" in running.log_text(), "the end of the snapshot")
        inside = Path(f"/proc/{running.process.pid if running.process else 0}/root{data}")
        wait_until(lambda: not snapshots(inside), "its removal")
        done = goes_on(stopped)
        assert done.code == 1
        assert done.errors == (
            f"seglogd backup: the broker on {data} has given up the snapshot: the broker's disk is full, and the "
            "snapshot would keep removed segments on it\n"
        )
        assert manifests(to) == []
        (inside.parent / "hog").unlink()
        with seglog.connect(running.address) as client:
            wait_until(lambda: numbers_of(client)["disk_full"] == 0, "the end of the mode")
        backup(data, to, under=under)
        assert command("verify", to).code == 0
        assert running.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_stranger_gets_no_snapshot_even_where_modes_would_let_him(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with daemon(data) as running:
        fill(running.address, 1)
        path = data / filenames.BACKUP_SOCKET
        assert path.stat().st_mode & 0o777 == 0o600
        assert _heard_by_a_stranger(path) == "PermissionError"
        path.chmod(0o666)
        data.chmod(0o711)
        assert _heard_by_a_stranger(path) == "b''", "cut off without a word"
        data.chmod(0o700)
        assert "snapshot_made" not in running.log_text()
        backup(data, tmp_path / "backups")
        assert running.stop() == 0


_STRANGER: Final = """
import os, socket, sys
os.setgroups([])
os.setgid(STRANGER)
os.setuid(STRANGER)
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(sys.argv[1])
    print(connection.recv(100))
except OSError as error:
    print(type(error).__name__)
""".replace("STRANGER", str(STRANGER))


def _heard_by_a_stranger(path: Path) -> str:
    """What a user hears who connects and is not the broker's: the bytes, or the error."""
    done = subprocess.run(
        [sys.executable, "-c", _STRANGER, path.name], cwd=path.parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def fill(address: str, count: int) -> None:
    """A topic with so many closed segments, and one more that is active."""
    with seglog.connect(address) as client:
        client.create_topic("t", 1, config={"segment.bytes": 65_536, "retention.ms": -1})
        with client.producer("t", ack="disk") as producer:
            for _ in range(count + 1):
                producer.send(os.urandom(40_000)).result()
