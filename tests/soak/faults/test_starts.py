"""Starts with very many segments."""

import os
import time
from pathlib import Path

import seglog
from seglog_broker.config import load_config
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.logs import append_one, batch_of_size
from tests.processes import Daemon

SEGMENTS = [int(count) for count in os.environ.get("SEGLOG_SOAK_SEGMENTS", "100,1000,10000").split(",")]


def built(path: Path, count: int) -> None:
    """A cleanly stopped partition with so many segments of two batches each."""
    config, _ = load_config(None, "", {}, [f"log.dir={path}", "seglog.disk.ballast.bytes=0"])
    directory = open_log_directory(PosixFileSystem(), SystemClock(), config, str(path))
    directory.topics.create_topic("t", 1, {"segment.bytes": "1024", "retention.ms": "-1"})
    log = directory.logs["t", 0]
    encoded = batch_of_size(400, int(time.time() * 1000))
    for _ in range(2 * count):
        batch = memoryview(bytearray(encoded))
        append_one(log, batch)
    assert len(log.segments) == count
    assert not directory.close()


def started(running: Daemon) -> tuple[float, float]:
    """Start a daemon; returns processor seconds and clock seconds until it serves."""
    began = time.monotonic()
    running.start()
    wall = time.monotonic() - began
    assert running.process is not None
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), wall


def test_starts_with_very_many_segments_in_one_partition(tmp_path: Path) -> None:
    print(f"\n{'segments':>10}  {'':18}{'processor s':>12}{'clock s':>10}")
    for count in [1, *SEGMENTS]:
        path = tmp_path / f"data-{count}"
        built(path, count)
        running = Daemon(path)
        end = 2 * count
        for what in ("after a clean stop", "after a kill"):
            cpu, wall = started(running)
            print(f"{count:>10,}  {what:18}{cpu:>12.2f}{wall:>10.2f}", flush=True)
            with seglog.connect(running.address) as client:
                offsets = client.offsets("t")[0]
                assert (offsets.earliest, offsets.latest) == (0, end)
                for start in {0, end // 2, end - 1}:
                    with client.consumer("t", start=start) as consumer:
                        assert next(iter(consumer)).offset == start
                with client.producer("t") as producer:
                    assert producer.send(b"more").result().offset == end
                end += 1
            running.kill()
        started(running)
        with seglog.connect(running.address) as client:
            client.offsets("t")  # when it is recovered: a stop before is not clean
        assert running.stop() == 0
