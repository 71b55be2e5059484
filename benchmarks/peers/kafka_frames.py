"""Requests to Apache Kafka as bytes, and what their replies say. Made by hand, so that no client is measured.

Layouts are those of Kafka's protocol guide. Produce is version 9, whose lengths are varints; the others are the newest
versions before that. All are understood by Kafka 2.4 and newer, 4.3 included. A frame is its length, four bytes, and
that many bytes.
"""

import struct
from collections.abc import Mapping
from typing import Final

from benchmarks.harness import BenchmarkError
from seglog_protocol.records import unsigned_varint

CORRELATION_ID: Final = 7
"""One id for all: Kafka answers a connection's requests in their order."""

CLIENT_ID: Final = b"bench"
LATEST: Final = -1
"""As a timestamp: the log end offset."""

TIMEOUT_MS: Final = 30_000
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
_TOPIC_RESOURCE: Final = 2
_SET: Final = 0

NOT_READY: Final = frozenset({3, 5, 6, 38})
"""Errors that pass: a new topic is not known here yet, has no leader, is not led here yet; no broker can have it yet.

The last is said of a node that had no processor time for its own heartbeats.
"""

_UNKNOWN_TOPIC: Final = 3

NEEDED: Final[Mapping[str, tuple[int, int]]] = {
    "Produce": (0, 9),
    "Fetch": (1, 11),
    "ListOffsets": (2, 5),
    "CreateTopics": (19, 4),
    "DeleteTopics": (20, 3),
}
"""Number and version of what every server is asked."""


class KafkaError(BenchmarkError):
    """Kafka answered with an error; ``code`` is its number in Kafka's table of errors."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} was answered with error {code}")
        self.code = code


# --- Requests ---------------------------------------------------------------------------------------------------------


def produce_frame(topic: str, batch: bytes, acks: int = ACKS_LEADER) -> bytes:
    """Append one batch to partition 0."""
    name = topic.encode()
    body = b"".join(
        (
            b"\0",  # no transactional id
            struct.pack(">hi", acks, TIMEOUT_MS),
            b"\2",  # one topic; counts and lengths of this version are one more than they count
            unsigned_varint(len(name) + 1),
            name,
            b"\2",  # one partition
            struct.pack(">i", 0),
            unsigned_varint(len(batch) + 1),
            batch,
            b"\0\0\0",  # no tagged fields: of the partition, of the topic, of the request
        )
    )
    return _frame(0, 9, b"\0" + body)  # no tagged fields in the header either


def fetch_frame(topic: str, offset: int, *, partition_bytes: int) -> bytes:
    """Fetch from ``offset`` of partition 0 on, without a session and without waiting."""
    body = b"".join(
        (
            struct.pack(">iiii", -1, 0, 1, partition_bytes),  # replica, max wait ms, min bytes, max bytes
            struct.pack(">bii", 0, 0, -1),  # isolation, session id, session epoch
            struct.pack(">i", 1),
            _string(topic),
            struct.pack(">i", 1),
            struct.pack(">iiqqi", 0, -1, offset, -1, partition_bytes),  # .., leader epoch, .., log start, ..
            struct.pack(">i", 0),  # no forgotten topics
            _string(""),  # rack
        )
    )
    return _frame(1, 11, body)


def time_frame(topic: str, timestamp: int) -> bytes:
    """ListOffsets: the first record of partition 0 from ``timestamp`` (ms) on, or with LATEST its end."""
    body = struct.pack(">ib", -1, 0) + struct.pack(">i", 1) + _string(topic)
    return _frame(2, 5, body + struct.pack(">iiiq", 1, 0, -1, timestamp))


def versions_frame() -> bytes:
    """ApiVersions."""
    return _frame(18, 0, b"")


def create_topic_frame(topic: str, config: Mapping[str, str], partitions: int = 1) -> bytes:
    """A topic whose partitions have one replica each."""
    body = struct.pack(">i", 1) + _string(topic) + struct.pack(">ihi", partitions, 1, 0)
    body += struct.pack(">i", len(config)) + b"".join(_string(key) + _string(value) for key, value in config.items())
    return _frame(19, 4, body + struct.pack(">i?", TIMEOUT_MS, False))


def delete_topic_frame(topic: str) -> bytes:
    """And all its data."""
    return _frame(20, 3, struct.pack(">i", 1) + _string(topic) + struct.pack(">i", TIMEOUT_MS))


def alter_topic_frame(topic: str, config: Mapping[str, str]) -> bytes:
    """IncrementalAlterConfigs: set these keys of a topic."""
    body = struct.pack(">ib", 1, _TOPIC_RESOURCE) + _string(topic) + struct.pack(">i", len(config))
    body += b"".join(_string(key) + struct.pack(">b", _SET) + _string(value) for key, value in config.items())
    return _frame(44, 0, body + b"\0")  # not to be validated only


def _frame(api: int, version: int, rest: bytes) -> bytes:
    header = struct.pack(">hhih", api, version, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID
    return struct.pack(">i", len(header) + len(rest)) + header + rest


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


# --- Replies: whole ones, their length included; KafkaError for an error ----------------------------------------------

_HEAD: Final = 8  # length and correlation id


def not_offered(reply: bytes, needed: Mapping[str, tuple[int, int]]) -> list[str]:
    """What of ``needed`` a reply to ApiVersions does not offer."""
    code, count = struct.unpack_from(">hi", reply, _HEAD)
    _refuse(code, "ApiVersions")
    offered = {key: (first, last) for key, first, last in struct.iter_unpack(">hhh", reply[_HEAD + 6 :][: 6 * count])}
    return [
        f"{name} {version}"
        for name, (key, version) in needed.items()
        if not offered.get(key, (1, 0))[0] <= version <= offered.get(key, (1, 0))[1]
    ]


def produced(reply: bytes, topic: str) -> int:
    """Base offset of what was appended."""
    # Behind the header: no tagged fields, one topic, its name, one partition, its index.
    at = _HEAD + 2 + 1 + len(topic.encode()) + 1 + 4
    code, base_offset = struct.unpack_from(">hq", reply, at)
    _refuse(code, "Produce")
    return int(base_offset)


def fetched(reply: bytes, topic: str) -> int:
    """Bytes of records; the last batch may be cut off."""
    _, code, _ = struct.unpack_from(">ihi", reply, _HEAD)  # throttle time, .., session id
    _refuse(code, "Fetch")
    at = _HEAD + 10 + 4 + 2 + len(topic.encode()) + 4
    _, code, _, _, _, aborted = struct.unpack_from(">ihqqqi", reply, at)
    _refuse(code, "Fetch")
    at += 34 + 16 * max(0, aborted) + 4  # preferred read replica
    return max(0, int.from_bytes(reply[at : at + 4], "big", signed=True))


def listed(reply: bytes, topic: str) -> tuple[int, int]:
    """Timestamp (ms) and offset of the record found, (-1, -1) when there is none; for LATEST -1 and the end."""
    at = _HEAD + 4 + 4 + 2 + len(topic.encode()) + 4
    _, code, timestamp, offset = struct.unpack_from(">ihqq", reply, at)
    _refuse(code, "ListOffsets")
    return timestamp, offset


def created(reply: bytes, topic: str) -> None:
    """Nothing to return."""
    _refuse(_topic_error(reply, topic), "CreateTopics")


def deleted(reply: bytes, topic: str) -> None:
    """Nothing to return; a topic that is not there is as good."""
    code = _topic_error(reply, topic)
    if code != _UNKNOWN_TOPIC:
        _refuse(code, "DeleteTopics")


def altered(reply: bytes) -> None:
    """Nothing to return."""
    (code,) = struct.unpack_from(">h", reply, _HEAD + 4 + 4)
    _refuse(code, "IncrementalAlterConfigs")


def _topic_error(reply: bytes, topic: str) -> int:
    at = _HEAD + 4 + 4 + 2 + len(topic.encode())
    return int.from_bytes(reply[at : at + 2], "big", signed=True)


def _refuse(code: int, what: str) -> None:
    if code:
        raise KafkaError(code, what)
