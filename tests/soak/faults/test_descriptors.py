"""More segments, partitions and connections than a daemon may have files open: it serves them all, within its limit."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import seglog
from seglog_protocol.batch_builder import encode_batch
from tests.process.faults.hostile_peer import Peer
from tests.processes import Daemon, Lines, clean_environment, daemon, port_of, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc"),
]

NOFILE = 1024
HANDLES_MAX = 512  # the most of so few
OTHERS_MAX = 64  # sockets, the lock, what Python holds
UNDER = ("sh", "-c", f'ulimit -n {NOFILE} && exec "$@"', "sh")


def open_files(running: Daemon) -> int:
    assert running.process is not None
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def maps_of(running: Daemon) -> int:
    """Maps of index files."""
    assert running.process is not None
    text = Path(f"/proc/{running.process.pid}/maps").read_text()
    return sum(str(running.directory) in line for line in text.splitlines())


def batch(number: int, size: int = 600) -> bytes:
    return encode_batch([(1_600_000_000_000 + number, None, bytes(size), ())])


def test_two_thousand_segments_are_served_with_1024_files(tmp_path: Path) -> None:
    """They are read and searched by time."""
    count = 2_000
    with daemon(tmp_path / "data", under=UNDER) as running:
        with seglog.connect(running.address) as client:
            # A batch to a segment, with an index entry in each but the first so that there is something to map.
            client.create_topic("t", 1, config={"segment.bytes": 1400, "index.interval.bytes": 0, "retention.ms": -1})
        with closing(Peer(running.port)) as peer:
            for number in range(2 * count):
                assert appended(peer, [0], batch(number)) == [None]
        assert len(list((running.directory / "t-0").glob("*.log"))) >= count
        for _ in range(2):
            with closing(Peer(running.port)) as peer:
                _read_all(running, peer, 2 * count)
            assert running.stop() == 0
            running.start()


def appended(peer: Peer, partitions: Sequence[int], encoded: bytes) -> list[Any]:
    """Append a batch to each of these partitions of ``t``, without a sync; their errors."""
    places = [{"topic": "t", "partition": number, "size": len(encoded)} for number in partitions]
    told, _ = peer.ask({"api": "append", "partitions": places, "ack": "os"}, encoded * len(places))
    return [result.get("error") for result in told["partitions"]]


def _read_all(running: Daemon, peer: Peer, count: int) -> None:
    """Fetch from every offset and search every timestamp, and watch the open files meanwhile."""
    most_files = most_maps = 0
    place = {"topic": "t", "partition": 0}
    for number in range(count):
        told, size = peer.ask({"api": "fetch", "partitions": [place | {"offset": number, "max_bytes": 1}]})
        assert (told["partitions"][0]["offset"], size > 600) == (number, True)
        told, _ = peer.ask({"api": "offsets", "partitions": [place | {"timestamp": 1_600_000_000_000 + number}]})
        assert told["partitions"][0]["offset"] == number
        if number % 50 == 0:
            most_files, most_maps = max(most_files, open_files(running)), max(most_maps, maps_of(running))
    assert HANDLES_MAX / 2 < most_files <= HANDLES_MAX + OTHERS_MAX
    assert 0 < most_maps <= HANDLES_MAX


def test_more_partitions_than_files_are_written_and_read_by_ack_os(tmp_path: Path) -> None:
    count = 1_100
    with daemon(tmp_path / "data", under=UNDER) as running:
        with seglog.connect(running.address) as client:
            client.create_topic("t", count, config={"retention.ms": -1})
        assert open_files(running) <= HANDLES_MAX + OTHERS_MAX, "a partition that nobody writes to needs no file open"
        with closing(Peer(running.port)) as peer:
            for round_number in range(2):
                for first in range(0, count, 50):
                    numbers = range(first, first + 50)
                    assert appended(peer, numbers, batch(0)) == [None] * 50
                    assert open_files(running) <= NOFILE
                    asked = [{"topic": "t", "partition": number, "offset": round_number} for number in numbers]
                    told, _ = peer.ask({"api": "fetch", "partitions": asked, "max_bytes": 50_000_000})
                    assert all(result["size"] for result in told["partitions"])
        wait_until(lambda: open_files(running) <= HANDLES_MAX + OTHERS_MAX, "quiet partitions to give files back")


_FILLS_ITSELF = """
import os, signal, sys
from seglog_broker.__main__ import main

def fill(*_):
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        os.write(1, b"full")

signal.signal(signal.SIGUSR1, fill)
sys.exit(main(sys.argv[1:]))
"""


def test_a_stop_is_clean_when_not_one_descriptor_is_left(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    arguments = ("--data", str(directory), "--listen", "127.0.0.1:0", "--log-format", "json")
    with subprocess.Popen(
        [*UNDER, sys.executable, "-c", _FILLS_ITSELF, *arguments],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        running = Daemon(directory)
        running.port = port_of(Lines(process.stderr.fileno()).until("broker_ready")[-1])
        with seglog.connect(running.address) as client:
            client.create_topic("t", 100, config={"index.interval.bytes": 0, "retention.ms": -1})
        with closing(Peer(running.port)) as peer:
            for _ in range(3):  # so that writers have a file open for each, and none is idle
                assert appended(peer, range(100), batch(0)) == [None] * 100
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.read(4) == b"full"
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read().decode()
        assert (process.wait(), "stop_not_clean" in said) == (0, False), said[-2000:]
    assert (directory / ".kafka_cleanshutdown").exists()
