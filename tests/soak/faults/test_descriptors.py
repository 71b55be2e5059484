"""More segments, partitions and connections than a daemon may have files open: it serves them all, within its limit."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

import seglog
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.frames import Frame, FrameReader, encode_frame
from seglog_protocol.messages import (
    PROTOCOL_NAME,
    AppendPartition,
    AppendRequest,
    FetchPartition,
    FetchRequest,
    HelloRequest,
    OffsetsPartition,
    OffsetsRequest,
    Request,
    request_header,
)
from tests.processes import PATIENCE_SECONDS, Daemon, Lines, clean_environment, daemon, port_of, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc"),
]

NOFILE = 1024
HANDLES_MAX = 512  # the most of so few
OTHERS_MAX = 64  # sockets, the lock, what Python holds
UNDER = ("sh", "-c", f'ulimit -n {NOFILE} && exec "$@"', "sh")


class Wire:
    """A connection on which many requests are sent before any answer is read."""

    def __init__(self, running: Daemon) -> None:
        self.sock = socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_SECONDS)
        self._reader = FrameReader()
        self.ask([(HelloRequest(PROTOCOL_NAME), b"")])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def ask(self, requests: list[tuple[Request, bytes]]) -> list[Frame]:
        self.sock.sendall(b"".join(encode_frame(request_header(n, r), [p]) for n, (r, p) in enumerate(requests)))
        return sorted((self.next() for _ in requests), key=lambda frame: int(frame.header["id"]))

    def next(self) -> Frame:
        while (frame := self._reader.next_frame()) is None:
            data = self.sock.recv(1 << 20)
            assert data, "the broker hung up"
            self._reader.receive_data(data)
        return frame


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


def test_five_thousand_segments_are_served_with_1024_files(tmp_path: Path) -> None:
    """They are read and searched by time."""
    count = 5_000
    with daemon(tmp_path / "data", under=UNDER) as running:
        with seglog.connect(running.address) as client:
            # A batch to a segment, with an index entry in each but the first so that there is something to map.
            client.create_topic("t", 1, config={"segment.bytes": 1400, "index.interval.bytes": 0, "retention.ms": -1})
        with Wire(running) as wire:
            for first in range(0, 2 * count, 100):
                encoded = [batch(number) for number in range(first, first + 100)]
                for frame in wire.ask([(AppendRequest([AppendPartition("t", 0, len(b))], "os"), b) for b in encoded]):
                    assert frame.header["partitions"][0].get("error") is None
        assert len(list((running.directory / "t-0").glob("*.log"))) >= count
        for _ in range(2):
            with Wire(running) as wire:
                _read_all(running, wire, 2 * count)
            assert running.stop() == 0
            running.start()


def _read_all(running: Daemon, wire: Wire, count: int) -> None:
    """Fetch from every offset and search every timestamp, and watch the open files meanwhile."""
    most_files = most_maps = 0
    for first in range(0, count, 50):
        offsets = range(first, first + 50)
        found = wire.ask([(FetchRequest([FetchPartition("t", 0, n, max_bytes=1)]), b"") for n in offsets])
        assert [frame.header["partitions"][0].get("error") for frame in found] == [None] * 50
        assert [frame.header["partitions"][0]["offset"] for frame in found] == list(offsets)
        assert all(len(frame.payload) > 600 for frame in found)
        moments = [OffsetsPartition("t", 0, 1_600_000_000_000 + n) for n in offsets]
        times = wire.ask([(OffsetsRequest([moment]), b"") for moment in moments])
        assert [frame.header["partitions"][0].get("error") for frame in times] == [None] * 50
        assert [frame.header["partitions"][0]["offset"] for frame in times] == list(offsets)
        most_files, most_maps = max(most_files, open_files(running)), max(most_maps, maps_of(running))
    assert HANDLES_MAX / 2 < most_files <= HANDLES_MAX + OTHERS_MAX
    assert 0 < most_maps <= HANDLES_MAX


def test_more_partitions_than_files_are_written_and_read_by_ack_os(tmp_path: Path) -> None:
    count = 1_100
    with daemon(tmp_path / "data", under=UNDER) as running:
        with seglog.connect(running.address) as client:
            client.create_topic("t", count, config={"retention.ms": -1})
        assert open_files(running) <= HANDLES_MAX + OTHERS_MAX, "a partition that nobody writes to needs no file open"
        encoded = batch(0)
        with Wire(running) as wire:
            for round_number in range(2):
                for first in range(0, count, 50):
                    asked_for = [AppendPartition("t", n, len(encoded)) for n in range(first, first + 50)]
                    [frame] = wire.ask([(AppendRequest(asked_for, "os"), encoded * 50)])
                    assert [result.get("error") for result in frame.header["partitions"]] == [None] * 50
                    assert open_files(running) <= NOFILE
                    asked = [FetchPartition("t", n, round_number) for n in range(first, first + 50)]
                    [frame] = wire.ask([(FetchRequest(asked, max_bytes=50_000_000), b"")])
                    assert all(result["size"] for result in frame.header["partitions"])
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
        assert _append_what_can_be(running, 100, 3) == 300, (
            "so that writers have a file open for each, and none is idle"
        )
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.read(4) == b"full"
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read().decode()
        assert (process.wait(), "stop_not_clean" in said) == (0, False), said[-2000:]
    assert (directory / ".kafka_cleanshutdown").exists()


def _append_what_can_be(running: Daemon, partitions: int, rounds: int) -> int:
    """Append to all partitions in turn, without a sync; returns the number of accepted batches."""
    encoded, taken = batch(0), 0
    with Wire(running) as wire:
        for _ in range(rounds):
            asked = AppendRequest([AppendPartition("t", n, len(encoded)) for n in range(partitions)], "os")
            [frame] = wire.ask([(asked, encoded * partitions)])
            results = frame.header["partitions"]
            assert {r["error"]["code"] for r in results if r.get("error")} <= {"OUT_OF_RESOURCES"}
            taken += sum(not r.get("error") for r in results)
    return taken
