"""What others notice while a large topic is compacted: clients that append to and fetch from another one at a pace.

A topic of 200-byte records, a tenth of them with distinct keys, is filled while its policy is ``delete`` and turns
compact when the clock starts. It ends when the cleaner's checkpoint names the topic, which is after the last swap.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.batches import one_record
from benchmarks.cold import KINDS, OTHER, others
from benchmarks.harness import MB, MIB, Bench, Benchmark, BenchmarkError, Goal, Row, percentile
from benchmarks.processes import Daemon, daemon
from benchmarks.raw_client import Connection, append_frame, connect, encode, fill
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.messages import AlterTopicRequest

TOPIC: Final = "bench-compacted"
_RECORD_BYTES: Final = 200
_RECORDS_A_BATCH: Final = 80
_WRITTEN_TIMES: Final = 10
"""How often each key is written: a tenth of the records stays."""

_SLICE_SECONDS: Final = 0.2
_COMPACTION_SECONDS_MAX: Final = 120
_P99_MICROS_MAX: Final = 10_000
_FLAGS: Final = ("--set", "log.initial.task.delay.ms=0", "--set", "log.cleaner.backoff.ms=50")
_SEGMENT_BYTES: Final = 8 * MIB


def run(bench: Bench) -> Iterator[Row]:
    """The others' p50 and p99 with and without a compaction beside them, and how long that took."""
    size = bench.pick(300, 30) * MB
    batches = _batches(size // _WRITTEN_TIMES)
    busy: list[dict[str, Any]] = []
    quiet: list[dict[str, Any]] = []
    with daemon(bench, *_FLAGS) as running, connect(running.port) as connection:
        connection.create_topic(OTHER)
        connection.ask_frame(append_frame(OTHER, [one_record()], "disk"))
        for number in range(bench.rounds):
            topic = f"{TOPIC}-{number}"
            connection.create_topic(topic, segment_bytes=_SEGMENT_BYTES, file_delete_delay_ms=1000)
            fill(connection, topic, (batch for _ in range(_WRITTEN_TIMES) for batch in batches))
            if number % 2:
                quiet.append(_alone(connection, bench))
            busy.append(_beside(running, connection, topic))
            if not number % 2:
                quiet.append(_alone(connection, bench))
            connection.delete_topic(topic)
    yield Row("compaction, from turning compact to the end", "MB/s", [size / MB / one["seconds"] for one in busy])
    for kind in KINDS:
        for part, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            micros = [[percentile(one[kind], share) * 1e6 for one in rounds] for rounds in (busy, quiet)]
            goal = Goal("≤", 3, "ratio") if part == "p99" else None
            yield Row(f"others' {kind} {part}, compacting", "µs", micros[0], micros[1], "not compacting", goal)
            if part == "p99":
                yield Row(f"others' {kind} {part} again", "µs", micros[0], goal=Goal("≤", _P99_MICROS_MAX, "value"))


def _batches(size: int) -> list[bytes]:
    """Batches of together ``size`` bytes, in which no key comes twice."""
    value = bytes(range(256)) * (_RECORD_BYTES // 256 + 1)
    batches: list[bytes] = []
    total = 0
    while total < size:
        first = len(batches) * _RECORDS_A_BATCH
        keys = (b"key-%012d" % number for number in range(first, first + _RECORDS_A_BATCH))
        batches.append(encode_batch([(1_700_000_000_000, key, value[: _RECORD_BYTES - len(key)], ()) for key in keys]))
        total += len(batches[-1])
    return batches


def _alone(connection: Connection, bench: Bench) -> dict[str, Any]:
    return others(connection, time.perf_counter() + bench.pick(3.0, 0.6))


def _beside(running: Daemon, connection: Connection, topic: str) -> dict[str, Any]:
    """What ``others`` gives, from the moment the topic turns compact to the end of its compaction."""
    config: dict[str, str | int | float | bool] = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    began = time.perf_counter()
    connection.ask_frame(encode(AlterTopicRequest(topic, config=config)))
    times: dict[str, Any] = {kind: [] for kind in KINDS}
    while not _is_compacted(running.directory, topic):
        if time.perf_counter() > began + _COMPACTION_SECONDS_MAX:
            raise BenchmarkError(f"{topic} was not compacted within {_COMPACTION_SECONDS_MAX} s")
        for kind, more in others(connection, time.perf_counter() + _SLICE_SECONDS).items():
            times[kind] += more
    return {**times, "seconds": time.perf_counter() - began}


def _is_compacted(directory: Path, topic: str) -> bool:
    try:
        return f"{topic} 0 " in (directory / "cleaner-offset-checkpoint").read_text()
    except FileNotFoundError:
        return False


BENCHMARK = Benchmark(
    "beside-compaction",
    "clients that append and fetch at 500/s beside the compaction of 300 MB",
    "the same without compaction",
    run,
)
