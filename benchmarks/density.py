"""How dense should an index be? The same records, indexed from every one to every 64 KiB; ``PartitionLog`` in process.

Batches of one record are the worst case: nothing is cheaper to skip. Each density is built by one process and sought
in by another (``python -m benchmarks.density``), so that memory can be told apart.
"""

import argparse
import gc
import json
import os
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from benchmarks.batches import dated, one_record
from benchmarks.harness import MB, MIB, Bench, Benchmark, Row, percentile, take_turns
from benchmarks.processes import resident_bytes, run_worker
from benchmarks.seek import seek_offset, seek_time, time_seeks
from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import File, PosixFileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_files import make_partition
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.record_batch import parse_header

_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
_INDEX_BYTES_MAX: Final = 1_073_741_824
"""Out of the way: here the index, not the roll, is looked at."""


class _Density(NamedTuple):
    name: str
    interval: int


def _densities() -> tuple[_Density, ...]:
    size = len(one_record())
    return (
        _Density("every record", 0),
        _Density("100 records", 100 * size - 1),
        _Density("4,096 B", 4096),
        _Density("64 KiB", 64 * 1024),
    )


def run(bench: Bench) -> Iterator[Row]:
    """Size, memory and seeks of each density; beside each value that of the default, 4,096 bytes."""
    count, seeks = bench.pick(400_000, 10_000), bench.pick(2_000, 200)
    with bench.fresh_directory() as directory:
        densities = _densities()
        built = {}
        for density in densities:
            place = directory / str(density.interval)
            place.mkdir()
            built[density] = run_worker("benchmarks.density", "build", str(place), str(density.interval), str(count))
        sides = [
            partial(
                run_worker,
                *("benchmarks.density", "seek", str(directory / str(density.interval))),
                *(str(density.interval), str(count), "--seeks", str(seeks)),
            )
            for density in densities
        ]
        found = dict(zip(densities, take_turns(bench.rounds, *sides), strict=True))
    default = next(density for density in densities if density.interval == 4096)
    for name, unit, key in (
        ("index size per GB", "MB", "megabytes_per_gb"),
        ("entries per GB", "entries", "entries_per_gb"),
        ("building, per batch", "µs", "append_us"),
    ):
        for density in densities:
            yield Row(f"{name}: {density.name}", unit, [built[density][key]], [built[default][key]], "4,096 B")
    for name, unit, key in (
        ("memory after seeks", "MiB more", "resident_mib"),
        ("read per offset seek", "B", "offset_bytes"),
        ("read per time seek", "B", "time_bytes"),
        ("seek by offset p50", "µs", "offset_us"),
        ("seek by time p50", "µs", "time_us"),
    ):
        for density in densities:
            yield Row(
                f"{name}: {density.name}",
                unit,
                [one[key] for one in found[density]],
                [one[key] for one in found[default]],
                "4,096 B",
            )


# --- The worker -------------------------------------------------------------------------------------------------------


class _CountedFile:
    """Counts what is read of a file; everything else is the file's own."""

    def __init__(self, file: File, counter: "CountingFileSystem") -> None:
        self._file = file
        self._counter = counter

    def pread(self, size: int, position: int) -> bytes:
        data = self._file.pread(size, position)
        self._counter.bytes_read += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class CountingFileSystem(PosixFileSystem):
    """The machine's file system, with a count of the bytes read of ``.log`` files; index maps are not counted."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        """As it is, counted if it is a log."""
        file = super().open(path, create=create, writable=writable)
        counted: Any = _CountedFile(file, self)
        return counted if path.endswith(".log") else file


def main() -> None:
    """Build a log, or open it and seek in it; prints what was measured as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.density")
    parser.add_argument("step", choices=("build", "seek"))
    parser.add_argument("directory")
    parser.add_argument("interval", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--seeks", type=int, default=0)
    options = parser.parse_args()
    directory = f"{options.directory}/density-0"
    config = TopicConfig(index_interval_bytes=options.interval, segment_index_bytes=_INDEX_BYTES_MAX)
    if options.step == "build":
        print(json.dumps(_build(directory, config, options.count)))
    else:
        print(json.dumps(_seek(directory, config, options.count, options.seeks)))


def _open(fs: PosixFileSystem, directory: str, config: TopicConfig) -> PartitionLog:
    return PartitionLog(load(fs, HandlePool(fs), SystemClock(), directory, config, clean=True))


def _build(directory: str, config: TopicConfig, count: int) -> dict[str, float]:
    fs = PosixFileSystem()
    make_partition(fs, directory, _TOPIC_ID)
    log = _open(fs, directory, config)
    views = [memoryview(bytearray(batch)) for batch in dated(one_record(), count)]
    (seconds,) = time_seeks(lambda _: _append_all(log, views), [0])
    size = log.size
    entries = sum(segment.offset_index.count for segment in log.segments)
    indexes = sum(segment.offset_index.size + segment.time_index.size for segment in log.segments)
    log.close()
    scale = 1e9 / size
    return {
        "megabytes_per_gb": indexes * scale / MB,
        "entries_per_gb": entries * scale,
        "append_us": seconds / count * 1e6,
    }


def _append_all(log: PartitionLog, views: list[memoryview]) -> None:
    for view in views:
        log.append([view], [parse_header(view)])


def _seek(directory: str, config: TopicConfig, count: int, seeks: int) -> dict[str, float]:
    source = random.Random(7)
    offsets = [source.randrange(count) for _ in range(seeks)]
    log = _open(PosixFileSystem(), directory, config)
    first = log.find_timestamp(0)  # of another process, so not FIRST_TIMESTAMP
    assert first is not None
    timestamps = [first.timestamp + source.randrange(count) for _ in range(seeks)]
    log.release()
    gc.collect()
    before = resident_bytes(os.getpid())
    log = _open(PosixFileSystem(), directory, config)
    by_offset = time_seeks(partial(seek_offset, log), offsets)
    by_time = time_seeks(partial(seek_time, log), timestamps)
    resident = resident_bytes(os.getpid()) - before
    log.release()
    counting = CountingFileSystem()
    counted = _open(counting, directory, config)
    read = []
    for seek, places in ((seek_offset, offsets), (seek_time, timestamps)):
        counting.bytes_read = 0
        for place in places:
            seek(counted, place)
        read.append(counting.bytes_read / seeks)
    counted.release()
    return {
        "resident_mib": resident / MIB,
        "offset_us": percentile(by_offset, 0.5) * 1e6,
        "time_us": percentile(by_time, 0.5) * 1e6,
        "offset_bytes": read[0],
        "time_bytes": read[1],
    }


BENCHMARK = Benchmark(
    "density",
    "batches of one 100-byte record; in process, warm, after opening anew",
    "the default, index.interval.bytes = 4096",
    run,
)

if __name__ == "__main__":
    main()
