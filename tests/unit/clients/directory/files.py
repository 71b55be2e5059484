"""Segment files made by hand: batches of numbered records, without indexes unless a test adds them."""

from collections.abc import Sequence
from pathlib import Path

from seglog.core.records import ConsumerGap
from seglog.directory.consumer import LogDirectory
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import rewrite_offset_and_epoch
from seglog_protocol.segment_files import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, encode_offset_entry, segment_file_name

SECOND_MS = 1000


def batch_at(offset: int, count: int = 1) -> bytes:
    """A batch of ``count`` records "offset", ..., each a second after the one before."""
    numbers = range(offset, offset + count)
    encoded = bytearray(encode_batch([(number * SECOND_MS, b"key", b"%d" % number, ()) for number in numbers]))
    rewrite_offset_and_epoch(encoded, 0, offset, 0)
    return bytes(encoded)


def make_partition(log_directory: Path, name: str = "t-0") -> Path:
    directory = log_directory / name
    directory.mkdir(parents=True)
    return directory


def write_segment(directory: Path, batches: Sequence[bytes], base: int, *, indexed: Sequence[int] = ()) -> Path:
    """A ``.log`` of these batches; of those numbered in ``indexed`` the index has an entry."""
    path = directory / segment_file_name(base, LOG_SUFFIX)
    path.write_bytes(b"".join(batches))
    entries = []
    for number in indexed:
        position = sum(map(len, batches[:number]))
        last = int.from_bytes(batches[number][:8]) + int.from_bytes(batches[number][23:27])
        entries.append(encode_offset_entry(last - base, position))
    if entries:
        path.with_suffix(OFFSET_INDEX_SUFFIX).write_bytes(b"".join(entries))
    return path


def offsets_read(
    log_directory: Path, start: int = 0, *, piece_bytes: int = 1, gaps: list[ConsumerGap] | None = None
) -> list[int]:
    """The offsets a consumer of ``t-0`` gets; small pieces make it look where it goes on at every batch."""
    met: list[ConsumerGap] = [] if gaps is None else gaps
    with LogDirectory(log_directory).consumer(
        "t", start={0: start}, on_gap=met.append, partition_bytes=piece_bytes
    ) as consumer:
        return [record.offset for batch in consumer.batches() for record in batch.records()]
