"""A reader that catches up on data the page cache has forgotten, and what others notice of it.

The reader is a process of its own (``python -m benchmarks.cold``) that goes through a topic as fast as it can, again
and again; cold means that it drops the file from the cache before each pass. Meanwhile this process appends to and
fetches from another topic at a steady pace.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.batches import batch_of, one_record
from benchmarks.fetch import requests_through
from benchmarks.harness import MB, MIB, Bench, Benchmark, Goal, Row, percentile, take_turns
from benchmarks.processes import Daemon, answer_of, daemon, worker
from benchmarks.raw_client import Connection, append_frame, connect, exchange, fetch_frame, fill
from seglog_protocol.messages import Ack

TOPIC: Final = "bench-cold"
OTHER: Final = "bench-others"
_BATCH_BYTES: Final = 16 * 1024
_PACE_SECONDS: Final = 0.002
_PAGE: Final = 4096
_PROBES: Final = 256
KINDS: Final = ("append", "fetch")


def run(bench: Bench) -> Iterator[Row]:
    """The reader's speed, and the others' p50 and p99 beside a warm reader and beside none."""
    batch, _ = batch_of(_BATCH_BYTES)
    seconds = bench.pick(3.0, 0.6)
    with daemon(bench) as running, connect(running.port) as connection:
        connection.create_topic(TOPIC)
        fill(connection, TOPIC, iter([batch] * (bench.pick(512, 48) * MIB // len(batch))))
        connection.create_topic(OTHER)
        connection.ask_frame(append_frame(OTHER, [one_record()], "disk"))
        cold, warm, alone = take_turns(
            bench.rounds,
            lambda: _round(running, connection, seconds, "cold"),
            lambda: _round(running, connection, seconds, "warm"),
            lambda: _round(running, connection, seconds, None),
        )
    left = max(one["cached_share"] for one in cold)
    note = "" if left < 0.05 else f"up to {left:.0%} of the file stayed in the cache: this is not cold"
    speed = [[one["bytes_per_second"] / MB for one in rounds] for rounds in (cold, warm)]
    yield Row("catch-up reader, cold", "MB/s", speed[0], speed[1], "warm", note=note)
    for kind in KINDS:
        for part, share in (("p50", 0.5), ("p99", 0.99)):
            micros = [[percentile(one[kind], share) * 1e6 for one in rounds] for rounds in (cold, warm, alone)]
            goal = Goal("≤", 2, "ratio") if part == "p99" else None
            yield Row(f"others' {kind} {part}, reader cold", "µs", micros[0], micros[1], "reader warm", goal)
            yield Row(f"others' {kind} {part}, reader warm", "µs", micros[1], micros[2], "no reader")


def _round(running: Daemon, connection: Connection, seconds: float, reader: str | None) -> dict[str, Any]:
    """Seconds of every append and fetch of the others, and what the reader did meanwhile."""
    if reader is None:
        return others(connection, time.perf_counter() + seconds)
    segment = running.directory / f"{TOPIC}-0" / f"{0:020}.log"
    with worker("benchmarks.cold", str(running.port), str(segment), str(seconds), reader) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has prepared its requests
        times = others(connection, time.perf_counter() + seconds)
        times.update(answer_of(process))
        return times


def others(connection: Connection, ends: float, pace_seconds: float = _PACE_SECONDS, ack: Ack = "os") -> dict[str, Any]:
    """Append and fetch in turn, at a pace, so that waiting for one is not hidden by sending fewer."""
    buffer = memoryview(bytearray(MIB))
    frames = (append_frame(OTHER, [one_record()], ack), fetch_frame(OTHER, 0, partition_bytes=1))
    times: dict[str, Any] = {kind: [] for kind in KINDS}
    clock = time.perf_counter
    due, number = clock(), 0
    while due < ends:
        ahead = due - clock()
        if ahead > 0:
            time.sleep(ahead)
            began = clock()
        else:
            began = due  # late because the one before took long: that counts
        exchange(connection.sock, frames[number % 2], buffer)
        times[KINDS[number % 2]].append(clock() - began)
        number += 1
        due += pace_seconds
    return times


# --- The reader -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Read a topic again and again; prints bytes a second and how much of the file was still cached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold")
    parser.add_argument("port", type=int)
    parser.add_argument("segment", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("cache", choices=("cold", "warm"))
    options = parser.parse_args()
    batch, records = batch_of(_BATCH_BYTES)
    with connect(options.port) as connection:
        frames, _ = requests_through(connection, TOPIC, MIB, batch_size=len(batch), records=records)
        print("prepared", flush=True)
        print(json.dumps(_read(connection, frames, options.segment, options.seconds, is_cold=options.cache == "cold")))


def _read(
    connection: Connection, frames: Sequence[bytes], segment: Path, seconds: float, *, is_cold: bool
) -> dict[str, float]:
    buffer = memoryview(bytearray(4 * MIB))
    ends = time.perf_counter() + seconds
    received, spent, cached = 0, 0.0, 0.0
    while time.perf_counter() < ends:
        if is_cold:
            cached = max(cached, drop_from_cache(segment))
        began = now = time.perf_counter()
        for frame in frames:
            received += exchange(connection.sock, frame, buffer)
            now = time.perf_counter()
            if now >= ends:
                break
        spent += now - began
    return {"bytes_per_second": received / spent, "cached_share": cached}


def drop_from_cache(path: Path) -> float:
    """Ask the system to forget a file's pages; the share (0 to 1) that it kept nevertheless."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)  # a dirty page cannot be dropped
        size = os.fstat(file).st_size
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        step = max(_PAGE, size // _PROBES // _PAGE * _PAGE)
        kept = [_is_cached(file, position) for position in range(0, size, step)]
    finally:
        os.close(file)
    return sum(kept) / len(kept)


def _is_cached(file: int, position: int) -> bool:
    try:
        return os.preadv(file, [bytearray(1)], position, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


BENCHMARK = Benchmark(
    "cold",
    "a reader catching up at full speed beside clients that append and fetch at 500/s",
    "the same with a warm reader, and with none",
    run,
)

if __name__ == "__main__":
    main()
