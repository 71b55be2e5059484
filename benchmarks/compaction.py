"""One round of compaction over closed segments, in process: 200-byte records of which a tenth have a key of their own.

Beside it stands what the disk and the page cache need for the same bytes: the sources read once, as many bytes written
and synced as compaction writes. Compaction reads them twice.
"""

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import MB, MIB, Bench, Benchmark, Goal, Row, take_turns
from seglog_broker.storage.compaction.cleaned_segment import remove_cleaned
from seglog_broker.storage.compaction.cleaner import clean
from seglog_broker.storage.compaction.job import CleaningJob, SourceSegment
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.segment_files import LOG_SUFFIX, segment_file_name

_RECORD_BYTES: Final = 200
_VALUE_BYTES: Final = 170
_DISTINCT_SHARE: Final = 0.1
_SEGMENT_BYTES: Final = 128 * MIB
_KAFKA_MB_PER_SECOND: Final = 271 * MIB / MB
_NOW: Final = 1_800_000_000_000


class _Shape(NamedTuple):
    name: str
    batch_bytes: int
    codec: Codec
    share: float
    """Of the full size: compressed logs take longer for each byte."""


_SHAPES: Final = (
    _Shape("16 KiB batches", 16 * 1024, Codec.NONE, 1.0),
    _Shape("256 KiB batches", 256 * 1024, Codec.NONE, 1.0),
    _Shape("16 KiB batches, lz4", 16 * 1024, Codec.LZ4, 0.2),
    _Shape("16 KiB batches, zstd", 16 * 1024, Codec.ZSTD, 0.2),
)


class Log(NamedTuple):
    """Closed segments in ``directory``, by their base offsets, and an empty one from ``end`` on."""

    directory: Path
    bases: list[int]
    end: int
    size: int
    """Bytes of the log, or where it is compressed of the records in it, which is what the rates count."""


class Round(NamedTuple):
    """How long it took, and the bytes it wrote."""

    seconds: float
    written: int


def run(bench: Bench) -> Iterator[Row]:
    """Two rows a shape."""
    for shape in _SHAPES:
        with bench.fresh_directory() as directory:
            log = _build(directory, shape, int(bench.pick(500 * MB, 20 * MB) * shape.share))
            written = clean_once(log).written
            ours, bare = take_turns(bench.rounds, partial(clean_once, log), partial(_bare, log, written))
        goal = Goal("≥", _KAFKA_MB_PER_SECOND, "value") if shape.codec is Codec.NONE else None
        yield Row(
            shape.name,
            "MB/s",
            [log.size / MB / one.seconds for one in ours],
            [log.size / MB / one.seconds for one in bare],
            "read and write",
            goal,
        )
        yield Row(f"{shape.name}: records", "records/s", [log.end / one.seconds for one in ours])


def _build(directory: Path, shape: _Shape, total: int) -> Log:
    """Random keys, and values of words that a codec finds something in."""
    source = random.Random(7)
    count = total // _RECORD_BYTES
    keys = int(count * _DISTINCT_SHARE)
    words = [b"%08x" % source.getrandbits(32) for _ in range(1000)]
    values = [b" ".join(source.choices(words, k=20))[:_VALUE_BYTES] for _ in range(1000)]
    per_batch = shape.batch_bytes // _RECORD_BYTES
    bases: list[int] = []
    offset = size = 0
    file = None
    while offset < count:
        rows = [
            (_NOW - count + offset + number, b"key-%012d" % source.randrange(keys), source.choice(values), ())
            for number in range(per_batch)
        ]
        batch = encode_batch(rows, base_offset=offset, codec=shape.codec)
        if file is None or file.tell() + len(batch) > _SEGMENT_BYTES:
            if file is not None:
                file.close()
            file = (directory / segment_file_name(offset, LOG_SUFFIX)).open("wb")
            bases.append(offset)
        file.write(batch)
        offset += per_batch
        size += len(batch) if shape.codec is Codec.NONE else per_batch * _RECORD_BYTES
    assert file is not None
    file.close()
    (directory / segment_file_name(offset, LOG_SUFFIX)).touch()
    return Log(directory, bases, offset, size)


def clean_once(log: Log) -> Round:
    """One round over all closed segments; what it wrote is removed again."""
    fs = PosixFileSystem()
    job = CleaningJob(
        directory=str(log.directory),
        segments=tuple(SourceSegment(base) for base in log.bases),
        later_segments=(log.end,),
        first_dirty=0,
        upper_bound=log.end,
        now_ms=_NOW,
        delete_retention_ms=86_400_000,
        segment_bytes=1 << 30,
        segment_index_bytes=10 * MIB,
        index_interval_bytes=4096,
        map_bytes=128 * MIB,
        map_load_factor=0.9,
        decompressed_batch_bytes_max=64 * MIB,
        producer_id_expiration_ms=86_400_000,
    )
    began = time.perf_counter()
    result = clean(fs, job, Throttle(None, time.monotonic, time.sleep))
    seconds = time.perf_counter() - began
    assert result.first_dirty == log.end
    remove_cleaned(fs, job.directory)
    return Round(seconds, result.bytes_written)


def _bare(log: Log, written: int) -> Round:
    fs = PosixFileSystem()
    piece = 8 * MIB
    path = str(log.directory / "bare")
    began = time.perf_counter()
    output = fs.open(path, create=True)
    position = 0
    for base in log.bases:
        file = fs.open(str(log.directory / segment_file_name(base, LOG_SUFFIX)))
        at = 0
        while data := file.pread(piece, at):
            at += len(data)
            if position < written:
                position += output.pwritev([memoryview(data)[: written - position]], position)
        file.close()
    output.fdatasync()
    output.close()
    seconds = time.perf_counter() - began
    fs.unlink(path)
    return Round(seconds, position)


BENCHMARK = Benchmark(
    "compaction",
    "one round over 500 MB of 200-byte records (100 MB where compressed), 10 % distinct keys; in process, warm",
    "the same bytes read once and as many written and synced; the goal is Kafka's cleaner",
    run,
)
