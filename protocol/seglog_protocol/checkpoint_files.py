"""Kafka's checkpoint text files: recovery points, log starts, high watermarks, leader epochs.

    line 1   version, "0"
    line 2   number of entries
    line 3+  one entry a line; fields separated by one space when writing, by any white space when reading

Reader and writer work on plain bytes, for the broker and for tools that inspect a log directory. The broker treats a
malformed file as empty and reports it: a checkpoint only caches what can be recomputed by reading the logs.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from seglog_protocol.segment_files import OFFSET_MAX
from seglog_protocol.steps import Steps, finished

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"

_VERSION: Final = "0"
_OFFSETS_A_STEP: Final = 1_000

TopicPartition = tuple[str, int]


class MalformedCheckpointError(ValueError):
    """A checkpoint file that violates its grammar; the message names line and reason."""


def encode_checkpoint(entries: Iterable[tuple[object, ...]]) -> bytes:
    """The whole text of a checkpoint with these entries."""
    return _encode_lines([" ".join(map(str, entry)) for entry in entries])


def _encode_lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (_VERSION, len(lines), *lines)).encode()


def decode_checkpoint(content: bytes, fields: int) -> list[list[str]]:
    """The entries, each of exactly ``fields`` strings; empty for an empty file or one with only a version line.

    Raises MalformedCheckpointError.
    """
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise MalformedCheckpointError("it is not UTF-8 text") from error
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    if lines[0].strip() != _VERSION:
        raise MalformedCheckpointError(f"line 1 is {lines[0][:20]!r}, not version {_VERSION}")
    if len(lines) == 1:
        return []
    entries = [line.split() for line in lines[2:]]
    for number, entry in enumerate(entries, start=3):
        if len(entry) != fields:
            raise MalformedCheckpointError(f"line {number} has {len(entry)} fields, not {fields}")
    if lines[1].strip() != str(len(entries)):
        raise MalformedCheckpointError(f"line 2 announces {lines[1][:20]!r} entries, there are {len(entries)}")
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """An offset checkpoint, sorted by partition."""
    return finished(encoding_offsets(offsets))


def encoding_offsets(offsets: Mapping[TopicPartition, int]) -> Steps[bytes]:
    """``encode_offsets`` in steps of a thousand partitions, so that an event loop can serve others between them."""
    keys = sorted(offsets)  # not pairs, at each of which Python's garbage collector would look again and again
    lines: list[str] = []
    for start in range(0, len(keys), _OFFSETS_A_STEP):
        yield
        lines += [f"{key[0]} {key[1]} {offsets[key]}" for key in keys[start : start + _OFFSETS_A_STEP]]
    yield
    return _encode_lines(lines)


def decode_offsets(content: bytes) -> dict[TopicPartition, int]:
    """The offsets of an offset checkpoint. Raises MalformedCheckpointError."""
    try:
        found = {(topic, int(partition)): int(offset) for topic, partition, offset in decode_checkpoint(content, 3)}
    except ValueError as error:
        raise MalformedCheckpointError(str(error)) from error
    for (topic, partition), offset in found.items():
        if partition < 0 or not 0 <= offset <= OFFSET_MAX:
            raise MalformedCheckpointError(f"{topic} {partition} {offset} is not a valid partition and offset")
    return found
