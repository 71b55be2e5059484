"""A full disk: a daemon on a small file system of its own; no acked record is lost."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

import seglog
from seglog_protocol.errors import ClientTimeoutError
from tests.processes import PATIENCE_SECONDS, daemon, wait_until
from tests.processes import seglog as seglog_cli
from tests.small_disks import mounted
from tests.support import numbers_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's"),
]

_SIZE_MIB = 64
_PROBES = ((), ("--ready",), ("--live",))
VALUE_BYTES = 50_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """A directory on a 64 MiB file system inside a mount namespace, and the command to enter it."""
    with mounted(tmp_path / "disk", f"size={_SIZE_MIB}m") as under:
        yield tmp_path / "disk", under


def value(number: int) -> bytes:
    return (b"%d " % number) * (VALUE_BYTES // len(b"%d " % number))


def fill_from_outside(mount_point: Path, under: Sequence[str], name: str = "hog") -> None:
    """Fill the disk to the last byte with another file."""
    hog = [*under, "sh", "-c", 'cat /dev/zero > "$0"', str(mount_point / name)]
    assert subprocess.run(hog, stderr=subprocess.DEVNULL, check=False).returncode != 0, "it ends with a full disk"


def read(client: seglog.Client) -> list[bytes]:
    with client.consumer("t", start="earliest") as consumer:
        return [record.value or b"" for record in consumer]


# --- Killed at 0 bytes ------------------------------------------------------------------------------------------------

_UNMARKED = (
    *("--set", "seglog.disk.free.hard.bytes=0", "--set", "seglog.disk.free.soft.bytes=0"),
    *("--set", "seglog.disk.ballast.bytes=0", "--set", "log.flush.offset.checkpoint.interval.ms=100"),
)


def _is_settled(client: seglog.Client) -> bool:
    """Whether every partition is served, or read while it waits for room."""
    numbers = numbers_of(client)
    return numbers["partitions_recovering"] == numbers["partitions_read_only_until_room"]


def test_a_start_on_a_full_disk_serves_what_there_is(
    small_disk: tuple[Path, Sequence[str]],
) -> None:
    """After a kill on a disk without a free byte; it goes on by itself when there is room."""
    mount_point, under = small_disk
    with daemon(mount_point / "data", *_UNMARKED, under=under) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 6, config={"segment.bytes": 2_000_000})
        with client.producer("t") as producer:
            for number in range(400):
                producer.send(value(number), partition=number % 6).result()
        fill_from_outside(mount_point, under)
        running.kill()
        running.start()
        wait_until(lambda: _is_settled(client), "all partitions to be readable")
        assert sorted(read(client)) == sorted(value(number) for number in range(400))
        assert [seglog_cli(running.address, "ping", *probe).returncode for probe in _PROBES] == [1, 0, 0]
        assert b"recovering" not in seglog_cli(running.address, "ping").stdout
        # What one recovery gives back may be room for another, which is tried again each second.
        wait_until(lambda: _is_steady(partial(_waiting_for_room, client)), "no other partition to find room")
        waiting_for_room = _waiting_for_room(client)
        assert waiting_for_room, "recoveries give some bytes back, when they cut indexes, and take more"
        refused = client.producer("t", delivery_timeout=0.5, idempotent=False)
        with pytest.raises(ClientTimeoutError, match="until there is room on the disk"):
            refused.send(b"refused", partition=waiting_for_room[0]).result()
        refused.close()
        with client.producer("t", delivery_timeout=PATIENCE_SECONDS, idempotent=False) as producer:
            latest = client.offsets("t")[waiting_for_room[0]].latest
            waiting = producer.send(value(400), partition=waiting_for_room[0])
            subprocess.run([*under, "rm", str(mount_point / "hog")], check=True)
            assert waiting.result().offset == latest, "the producer waited, and the partition was recovered by itself"
        wait_until(lambda: not client.ping().problems, "the others")
        assert sorted(read(client)) == sorted(value(number) for number in range(401))
        assert "partition_offline" not in running.log_text()
        assert running.stop() == 0


def _waiting_for_room(client: seglog.Client) -> list[int]:
    """The partitions that can only be read until their recovery finds room."""
    problems = client.ping().problems
    return [n for n in range(6) if any(p.startswith(f"t-{n} is read-only until there is room") for p in problems)]


def _is_steady(look: Callable[[], object]) -> bool:
    before = look()
    time.sleep(3)
    return look() == before


_PLENTY = 10 << 20


@pytest.mark.parametrize(("way", "killed"), [("truncate", False), ("delete", False), ("delete", True)])
def test_deleting_needs_no_free_space(small_disk: tuple[Path, Sequence[str]], way: str, killed: bool) -> None:
    """At exactly 0 bytes, without a ballast: in the living broker, and after a kill and a start that finds no room."""
    mount_point, under = small_disk
    with daemon(mount_point / "data", *_UNMARKED, under=under) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 3, config={"segment.bytes": 2_000_000})
        client.create_topic("kept", 1)
        with client.producer("t") as producer:
            for number in range(400):
                producer.send(value(number), partition=number % 3).result()
        with client.producer("kept") as producer:
            producer.send(b"kept").result()
        fill_from_outside(mount_point, under)
        if killed:
            running.kill()
            running.start()
            wait_until(lambda: _is_settled(client), "all partitions to be readable")
        fill_from_outside(mount_point, under, "hog2")
        wait_until(lambda: numbers_of(client)["disk_free_bytes"] < _PLENTY, "the broker to look at the disk")
        if way == "delete":
            client.delete_topic("t")
        else:
            client.truncate_topic("t", dict.fromkeys(range(3)))
        wait_until(lambda: numbers_of(client)["disk_free_bytes"] > _PLENTY, "room")
        with client.producer("kept", delivery_timeout=PATIENCE_SECONDS) as producer:
            assert producer.send(b"x" * 1_000_000).result().offset == 1
        wait_until(lambda: not client.ping().problems, "everything to be well")
        running.kill()
        running.start()
        wait_until(lambda: not numbers_of(client)["partitions_recovering"], "the recovery")
        assert {topic.name for topic in client.topics()} == ({"kept"} if way == "delete" else {"kept", "t"})
        if way == "truncate":
            assert not read(client)
            assert [o.earliest for o in client.offsets("t")] == [134, 133, 133]
        assert not [name for name in _names_in(mount_point / "data", under) if name.endswith(("-delete", "-stray"))]
        assert not client.ping().problems
        assert running.stop() == 0


def _names_in(directory: Path, under: Sequence[str]) -> list[str]:
    return subprocess.run(
        [*under, "ls", str(directory)], check=True, stdout=subprocess.PIPE, encoding="utf-8"
    ).stdout.split()


@pytest.mark.parametrize("is_remembered", [True, False], ids=["a state", "no state"])
def test_a_truncation_that_was_answered_at_0_bytes_survives_a_kill(
    small_disk: tuple[Path, Sequence[str]], is_remembered: bool
) -> None:
    """With a log start that the state already has, and with one that no file has yet."""
    mount_point, under = small_disk
    with daemon(mount_point / "data", under=under) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 1, config={"segment.bytes": 2_000_000, "retention.ms": -1})
        with client.producer("t") as producer:
            for number in range(400):
                producer.send(value(number)).result()
        if is_remembered:
            assert running.stop() == 0
            running.start()
        wait_until(lambda: numbers_of(client)["ballast_bytes"] > 0, "the ballast")
        fill_from_outside(mount_point, under)
        wait_until(lambda: numbers_of(client)["ballast_bytes"] == 0, "the ballast to be given up")
        fill_from_outside(mount_point, under, "hog2")
        client.truncate_topic("t", {0: 110})
        running.kill()
        running.start()
        wait_until(lambda: not numbers_of(client)["partitions_recovering"], "the recovery")
        assert client.offsets("t")[0].earliest == 110
        assert read(client) == [value(number) for number in range(110, 400)]
        assert not [problem for problem in client.ping().problems if problem.startswith("t-0")]
        assert running.stop() == 0
