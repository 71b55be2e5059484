"""Starts under hard conditions, many of them: very many segments, and a disk that is full each time."""

import os
import random
import subprocess
import time
from pathlib import Path

import seglog
from seglog_broker.config import load_config
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.errors import ClientTimeoutError
from tests.logs import append_one, batch_of_size
from tests.processes import PATIENCE_SECONDS, Daemon, daemon, wait_until
from tests.small_disks import mounted
from tests.soak.faults.test_full_disk import fill_from_outside
from tests.support import numbers_of, soak_scaled, soak_seed

SEGMENTS = [int(count) for count in os.environ.get("SEGLOG_SOAK_SEGMENTS", "100,1000,10000").split(",")]
ROUNDS = int(os.environ.get("SEGLOG_SOAK_ROUNDS") or soak_scaled(20))
VALUE_BYTES = 200_000
OTHERS = 8
"""Partitions to which little is written: each has to be recovered, too."""


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


def value(number: int) -> bytes:
    return (b"%d " % number) * (VALUE_BYTES // len(b"%d " % number))


def test_a_small_disk_that_is_filled_and_killed_keeps_what_was_acked(tmp_path: Path) -> None:
    """Every second time the rest of the disk is filled as well, so that no recovery has room."""
    seed = soak_seed()
    rng = random.Random(seed)
    print(f"\nseed {seed}, {ROUNDS} rounds")
    mount_point = tmp_path / "disk"
    with mounted(mount_point, "size=96m") as under, daemon(mount_point / "data", under=under) as running:
        acked = earliest = 0
        with seglog.connect(running.address) as client:
            client.create_topic("t", 1, config={"segment.bytes": 4_000_000, "retention.ms": -1})
            client.create_topic("others", OTHERS)
        for number in range(ROUNDS):
            is_to_the_last_byte = number % 2 == 1
            began = acked
            with seglog.connect(running.address) as client:
                with client.producer("others") as producer:
                    for partition in range(OTHERS):
                        producer.send(b"%d" % number, partition=partition)
                acked = _filled(client, acked)
                filled = acked - began
                if is_to_the_last_byte:
                    wait_until(lambda: numbers_of(client)["ballast_bytes"] == 0, "the ballast to be given up")
            running.kill()
            if is_to_the_last_byte:
                fill_from_outside(mount_point, under)
            cpu, wall = started(running)
            with seglog.connect(running.address) as client:
                read = _read(client, acked)
                assert read == list(range(earliest, acked)), f"round {number}"
                with client.consumer("others", start="earliest") as consumer:
                    others = sorted(int(record.value or b"") for record in consumer)
                assert others == sorted([*range(number + 1)] * OTHERS)
                assert numbers_of(client)["partitions"] + numbers_of(client)["partitions_recovering"] == 1 + OTHERS
                views = int(numbers_of(client)["partitions_read_only_until_room"])
                if is_to_the_last_byte:
                    subprocess.run([*under, "rm", str(mount_point / "hog")], check=True)
                earliest = _made_room(client, rng, earliest, acked)
                with client.producer("t", delivery_timeout=PATIENCE_SECONDS) as producer:
                    receipt = producer.send(value(acked)).result()
                    assert receipt.offset == acked
                acked += 1
            print(
                f"round {number:>2}: {filled:>5} acked, all of {len(read):>5} read; ready in {cpu:.2f} s of "
                f"processor time, {wall:.2f} s; {views} partitions waited for room",
                flush=True,
            )
        assert running.stop() == 0


def _filled(client: seglog.Client, first: int) -> int:
    """Produce until an append is refused; returns the number after the last acked record."""
    number = first
    with client.producer("t", delivery_timeout=2.0) as producer:
        while number < first + 10_000:
            try:
                producer.send(value(number)).result()
            except ClientTimeoutError:
                return number
            number += 1
    raise AssertionError("the disk is not full after 400 MB")


def _read(client: seglog.Client, behind: int) -> list[int]:
    """Offset -> value of all records that can be read."""
    offsets = []
    with client.consumer("t", start="earliest") as consumer:
        for record in consumer:
            assert record.value == value(record.offset)
            offsets.append(record.offset)
            if record.offset == behind - 1:
                break
    return offsets


def _made_room(client: seglog.Client, rng: random.Random, earliest: int, acked: int) -> int:
    """Delete some of the oldest records as soon as possible; returns the new log start."""
    offset = rng.randrange((earliest + acked) // 2, acked + 1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            client.truncate_topic("t", {0: offset})
        except seglog.errors.SeglogError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return client.offsets("t")[0].earliest
