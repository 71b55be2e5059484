"""Archives: a topic as Parquet by `seglog archive`, beside a loop written by hand and the same job on Spark.

Commands are measured whole, with their start; Spark's is a JVM's. All write the same columns, compressed alike.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import seglog
from benchmarks.batches import RECORD_BYTES
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.processes import Daemon, daemon, environment
from benchmarks.spark import BATCH_BYTES, CORES, what_is_missing

PARTITIONS: Final = 4
_TOPIC: Final = "bench-archive"
_PIECE: Final = 100_000
_FIRST_MS: Final = 1_546_300_800_000
_STEP_MS: Final = 500
"""Between two records: a month has five million of them."""


def run(bench: Bench) -> Iterator[Row]:
    """Rows/s of each way, in rounds that take turns; Spark's is skipped by name where it is missing."""
    count = bench.pick(5_000_000, 200_000)
    with daemon(bench) as running, bench.fresh_directory() as scratch:
        with seglog.connect(running.address) as client:
            client.create_topic(_TOPIC, PARTITIONS, {"retention.ms": -1})  # the records are old
            for first in range(0, count, _PIECE):
                seglog.write_arrow(client, _TOPIC, _table(first), ack="os", batch_bytes=BATCH_BYTES, compression="zstd")
        command = partial(_command, running, scratch, count)
        sides = {
            "by hand": partial(_by_hand, running, scratch, count),
            "seglog archive": partial(command, "archive"),
            "seglog archive --partition-by month": partial(command, "archive", "--partition-by", "month"),
        }
        why = what_is_missing()
        if not why:
            sides["seglog spark archive"] = partial(command, "spark", "archive", "--master", f"local[{CORES}]")
        taken = dict(zip(sides, take_turns(bench.rounds, *sides.values()), strict=True))
        beside = taken.pop("by hand")
        yield Row("read_arrow into a ParquetWriter, one loop", "rows/s", beside)
        for name, values in taken.items():
            yield Row(name, "rows/s", values, beside, "the loop")
        if why:
            yield Row("seglog spark archive", "rows/s", note=why)


def _table(first: int) -> pa.Table:
    numbers = pa.array(range(first, first + _PIECE), pa.int64())
    texts = pc.cast(numbers, pa.string())
    value = pc.utf8_rpad(pc.binary_join_element_wise('{"reading": ', texts, "}", ""), RECORD_BYTES)
    times = pc.add(pc.multiply(numbers, _STEP_MS), _FIRST_MS)
    return pa.table({"key": texts, "value": value, "timestamp": times.cast(pa.timestamp("ms", "UTC"))})


def _by_hand(running: Daemon, scratch: Path, count: int) -> float:
    began = time.perf_counter()
    with (
        seglog.read_arrow(running.address, _TOPIC, headers=True) as reader,
        pq.ParquetWriter(scratch / "by-hand.parquet", reader.schema, compression="zstd", compression_level=1) as writer,
    ):
        for batch in reader:
            writer.write_batch(batch)
    return count / (time.perf_counter() - began)


def _command(running: Daemon, scratch: Path, count: int, *words: str) -> float:
    out = scratch / "archive"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "seglog.cli", "--server", running.address, *words, "--topic", _TOPIC]
    began = time.perf_counter()
    done = subprocess.run([*command, "--out", out], env=environment(), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise BenchmarkError(done.stderr.strip()[-300:])
    return count / seconds


BENCHMARK = Benchmark(
    "archiving",
    f"values of {RECORD_BYTES} bytes, zstd, {PARTITIONS} partitions, batches of up to {BATCH_BYTES // 1024} KiB",
    "a loop of read_arrow into one Parquet file, in one thread; commands are measured with their start",
    run,
    seconds=1800,
)
