"""Reads topics and partitions from Kafka's metadata log, if it is in the log directory.

Kafka keeps it in the first of its ``log.dirs``; every broker of a cluster has a full copy. The value of a record is a
frame: its version (1), the kind of record and its version as unsigned varints, then the fields. Three kinds are read:

    2 TopicRecord         name: length + 1 as unsigned varint, then UTF-8; topic id: 16 bytes
    3 PartitionRecord     partition: int32; topic id: 16 bytes; and more
    9 RemoveTopicRecord   topic id: 16 bytes

A snapshot, ``<offset>-<epoch>.checkpoint``, holds the same records and replaces those of the log below that offset.
"""

import struct
from collections.abc import Iterator
from typing import Final

from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_protocol import segment_files as names
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import iter_records

METADATA_DIRECTORY: Final = "__cluster_metadata-0"
METADATA_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The topic id of the metadata log itself, the same in every cluster."""

SNAPSHOT_SUFFIX: Final = ".checkpoint"

_FRAME: Final = 1
_TOPIC, _PARTITION, _REMOVE_TOPIC = 2, 3, 9
_ID_BYTES: Final = 16
_INT32 = struct.Struct(">i")


def partitions_of_kafka(fs: FileSystem, path: str) -> set[tuple[str, int]]:
    """All (topic, partition) in the metadata log of the log directory ``path``; empty without one.

    Unreadable records are skipped: the result only serves to find missing partitions, beside other files.
    """
    directory = f"{path}/{METADATA_DIRECTORY}"
    if not fs.exists(directory):
        return set()
    found = fs.list_directory(directory)
    snapshots = sorted(name for name in found if name.endswith(SNAPSHOT_SUFFIX))
    topics: dict[bytes, str] = {}
    partitions: dict[bytes, set[int]] = {}
    first = 0
    if snapshots:
        first = int(snapshots[-1].partition("-")[0])
        _apply(_values(read_file(fs, f"{directory}/{snapshots[-1]}"), 0), topics, partitions)
    for name in sorted(name for name in found if name.endswith(names.LOG_SUFFIX)):
        _apply(_values(read_file(fs, f"{directory}/{name}"), first), topics, partitions)
    return {(topics[topic], number) for topic, numbers in partitions.items() if topic in topics for number in numbers}


def _values(log: bytes, first: int) -> Iterator[bytes]:
    """The values of all records from offset ``first`` on, up to the first invalid batch."""
    try:
        for header, batch in iter_batches(log):
            if not header.is_control:
                yield from (r.value for r in iter_records(header, batch) if r.offset >= first and r.value is not None)
    except CorruptRecordError:
        return


def _apply(values: Iterator[bytes], topics: dict[bytes, str], partitions: dict[bytes, set[int]]) -> None:
    for value in values:
        try:
            frame, at = _varint(value, 0)
            kind, at = _varint(value, at)
            _, at = _varint(value, at)
            if frame != _FRAME:
                continue
            if kind == _TOPIC:
                size, at = _varint(value, at)
                end = at + size - 1
                topics[_id(value, end)] = value[at:end].decode()
            elif kind == _PARTITION:
                [number] = _INT32.unpack_from(value, at)
                partitions.setdefault(_id(value, at + _INT32.size), set()).add(number)
            elif kind == _REMOVE_TOPIC:
                topics.pop(_id(value, at), None)
        except (IndexError, ValueError, struct.error):
            continue  # of an unknown version


def _id(value: bytes, at: int) -> bytes:
    found = value[at : at + _ID_BYTES]
    if len(found) < _ID_BYTES:
        raise ValueError("a record ends within a topic id")
    return found


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint and the position after it. Raises IndexError if it does not end."""
    number = shift = 0
    while value[at] & 0x80:
        number |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | value[at] << shift, at + 1
