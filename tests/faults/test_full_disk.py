"""A disk that is really full: a small file system of its own, a daemon on it, and nothing that was acked is lost."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import seglog
from seglog_protocol.errors import ClientTimeoutError, DiskFullError
from tests.processes import Daemon, daemon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's"),
]

_SIZE_MIB = 64
_SEEN_WITHIN_SECONDS = 60
_SHORT = (
    *("--set", "log.initial.task.delay.ms=0", "--set", "log.retention.check.interval.ms=50"),
    *("--set", "log.flush.offset.checkpoint.interval.ms=100", "--set", "log.segment.delete.delay.ms=50"),
)
VALUE_BYTES = 50_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """A directory on a file system of 64 MiB that only lives in a namespace, and the command to get there."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    script = f'mount -t tmpfs -o size={_SIZE_MIB}m tmpfs "$0" && echo mounted && exec sleep 1000000'
    holder = subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", script, str(mount_point)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip("unshare -rm and a tmpfs in it are not allowed here")
        yield mount_point, ("nsenter", "--preserve-credentials", "-U", "-m", "-t", str(holder.pid))
    finally:
        holder.kill()
        holder.communicate()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SEEN_WITHIN_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def value(number: int) -> bytes:
    return (b"%d " % number) * (VALUE_BYTES // len(b"%d " % number))


def fill(client: seglog.Client, first: int) -> int:
    """Produce until the disk is full; the number behind the last record that was acked."""
    number = first

    with client.producer("t", delivery_timeout=1.0) as producer:
        with pytest.raises(ClientTimeoutError) as caught:  # noqa: PT012 - which of them is refused is the question
            while True:
                assert number < first + 10_000, "the disk is not full after 500 MB"
                producer.send(value(number)).result()
                number += 1
        refusal = caught.value.__cause__
        assert isinstance(refusal, DiskFullError)
        assert refusal.retriable
        assert 0 <= refusal.free < refusal.soft
    return number


def fill_from_outside(mount_point: Path, under: Sequence[str]) -> None:
    """Have somebody else use the disk up to the last byte."""
    hog = [*under, "sh", "-c", 'cat /dev/zero > "$0"', str(mount_point / "hog")]
    assert subprocess.run(hog, stderr=subprocess.DEVNULL, check=False).returncode != 0, "it ends with a full disk"


def fill_from_both_sides(client: seglog.Client, mount_point: Path, under: Sequence[str]) -> None:
    """Produce to topic t, which is there, and one record to another, "kept"; somebody else uses up all the rest."""
    client.create_topic("kept", 1)
    with client.producer("t") as producer:
        for number in range(200):
            producer.send(value(number))
    with client.producer("kept") as producer:
        producer.send(b"kept").result()
    wait_until(lambda: client.metrics()["ballast_bytes"] > 0, "the ballast")
    fill_from_outside(mount_point, under)


def read(client: seglog.Client) -> list[bytes]:
    with client.consumer("t", start="earliest") as consumer:
        return [record.value or b"" for record in consumer]


def test_a_small_disk_fills_refuses_reads_on_and_takes_records_again_when_retention_has_made_room(
    small_disk: tuple[Path, Sequence[str]],
) -> None:
    mount_point, under = small_disk
    with daemon(mount_point / "data", *_SHORT, under=under) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 1, config={"segment.bytes": 2_000_000, "retention.ms": -1})
        acked = 0
        for round_number in range(3):
            start = client.offsets("t")[0].latest
            acked = fill(client, start)
            assert acked > start + 100, "there was room in every round"
            assert client.offsets("t")[0].latest == acked, "what was refused is not in the log"
            earliest = client.offsets("t")[0].earliest
            assert read(client) == [value(number) for number in range(earliest, acked)]
            wait_until(lambda: client.metrics()["disk_full"] == 1, "the mode to be told")
            numbers = client.metrics()
            assert 0 < numbers["disk_free_bytes"] < (_SIZE_MIB << 20) / 10
            assert any("is full" in problem for problem in client.ping().problems)
            if round_number == 1:
                _restart(running)
                assert client.offsets("t")[0].latest == acked
                assert read(client) == [value(number) for number in range(earliest, acked)]
            with client.producer("t", delivery_timeout=_SEEN_WITHIN_SECONDS) as producer:
                waiting = producer.send(value(acked))
                client.alter_topic("t", config={"retention.bytes": 10_000_000})
                assert waiting.result().offset == acked, "the producer waited, and the broker resumed"
            client.alter_topic("t", config={"retention.bytes": -1})
            wait_until(lambda: client.metrics()["disk_full"] == 0, "the end of the mode")
            assert client.offsets("t")[0].earliest > earliest
        earliest = client.offsets("t")[0].earliest
        assert read(client) == [value(number) for number in range(earliest, acked + 1)]
        assert "disk_full" in running.log_text()
        assert "disk_has_room" in running.log_text()
        assert running.stop() == 0


def _restart(running: Daemon) -> None:
    """Kill it and start it again on the full disk."""
    running.kill()
    running.start()


def test_a_topic_can_be_deleted_while_somebody_else_has_filled_the_disk_to_the_last_byte(
    small_disk: tuple[Path, Sequence[str]],
) -> None:
    mount_point, under = small_disk
    with daemon(mount_point / "data", *_SHORT, under=under) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 1)
        fill_from_both_sides(client, mount_point, under)
        wait_until(lambda: client.metrics()["ballast_bytes"] == 0, "the ballast to be given up")
        refused = client.producer("kept", delivery_timeout=0.5)
        with pytest.raises(ClientTimeoutError, match="bytes are free"):
            refused.send(b"refused").result()
        refused.close()
        with client.consumer("kept", start="earliest") as consumer:
            assert [record.value for record in consumer] == [b"kept"]
        client.delete_topic("t")
        with client.producer("kept", delivery_timeout=_SEEN_WITHIN_SECONDS) as producer:
            assert producer.send(b"again").result().offset == 1
        wait_until(lambda: client.metrics()["ballast_bytes"] > 0, "the ballast to be made again")


_WAYS_TO_MAKE_ROOM: dict[str, Callable[[seglog.Client], object]] = {
    "delete a topic": lambda client: client.delete_topic("t"),
    "alter a topic": lambda client: client.alter_topic("t", config={"retention.bytes": 0}),
    "truncate a topic": lambda client: client.truncate_topic("t", {0: None}),
}


@pytest.mark.parametrize("way", _WAYS_TO_MAKE_ROOM)
def test_what_makes_room_takes_the_ballasts_when_nobody_has_seen_yet_that_the_disk_is_full(
    small_disk: tuple[Path, Sequence[str]], way: str
) -> None:
    mount_point, under = small_disk
    unmarked = ("--set", "seglog.disk.free.hard.bytes=0", "--set", "seglog.disk.free.soft.bytes=0")  # it is never seen
    quick = ("--set", "log.initial.task.delay.ms=0", "--set", "log.retention.check.interval.ms=50")
    soon = ("--set", "log.segment.delete.delay.ms=50")
    with (
        daemon(mount_point / "data", *unmarked, *quick, *soon, under=under) as running,
        seglog.connect(running.address) as client,
    ):
        client.create_topic("t", 1, config={"segment.bytes": 2_000_000, "retention.ms": -1})
        fill_from_both_sides(client, mount_point, under)
        assert client.metrics()["ballast_bytes"] > 0
        _WAYS_TO_MAKE_ROOM[way](client)
        with client.producer("kept", delivery_timeout=_SEEN_WITHIN_SECONDS) as producer:
            assert producer.send(b"x" * 1_000_000).result().offset == 1, "more than the ballast had: there is room"
        assert running.stop() == 0
