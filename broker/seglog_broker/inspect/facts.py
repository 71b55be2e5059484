"""What a dump or a check reports: one small value for each thing found, in the order in which it was found.

Here are those of a dump; ``findings`` has those of a check. All are printed by ``readable``, or as lines of JSON.
``kind`` is the JSON object's ``kind``, the fields are its other keys. Offsets count records, positions and sizes are
bytes, times are milliseconds since 1970. Numbers are as on disk: in Kafka's fields -1 means none. A field that is None
has no value. ``Damage`` makes the exit code 1; a ``Note`` is information, not damage.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Self, dataclass_transform

from msgspec import Struct, field
from msgspec.structs import asdict

from seglog_protocol.texts import bytes_as_json


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Fact(Struct, frozen=True, tag_field="kind"):
    """The base class of all facts; the ``tag`` of each is its kind."""

    @property
    def kind(self) -> str:
        """The JSON object's ``kind``."""
        return str(self.__struct_config__.tag)

    @classmethod
    def of(cls, found: object, **others: Any) -> Self:
        """A fact whose fields are the attributes of ``found`` that have their names, and ``others``."""
        names = cls.__struct_fields__
        return cls(
            **{name: getattr(found, name) for name in names if name not in others and hasattr(found, name)}, **others
        )

    def as_json(self) -> dict[str, Any]:
        """The keys of the JSON object beside ``kind``: the fields, in their order."""
        return asdict(self)


def json_lines(facts: Iterable[Fact]) -> Iterator[str]:
    """A line for every fact, without its newline: one object, ``kind`` first, so that any number can be streamed."""
    for fact in facts:
        yield json.dumps({"kind": fact.kind} | fact.as_json(), ensure_ascii=False)


class Damage(Fact, tag="damage"):
    """Bytes [position, end_position) of ``path``, or all of it, are wrong."""

    path: str
    position: int | None
    end_position: int | None
    reason: str


class Note(Fact, tag="note"):
    """Information about ``path``, in a sentence."""

    path: str
    text: str


class FileFound(Fact, tag="file"):
    """A file, whose contents are the next facts; ``type`` is its type in words."""

    path: str
    type: str
    size: int


# --- Segment files ----------------------------------------------------------------------------------------------------


class Batch(Fact, tag="batch"):
    """A batch header; ``problem`` is set for an invalid batch."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    record_count: int
    leader_epoch: int
    codec: str
    timestamp_type: str
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    is_transactional: bool
    is_control: bool
    delete_horizon: int | None
    crc: int
    crc_ok: bool
    problem: str | None = None


class RecordFound(Fact, tag="record"):
    """A record of the preceding batch; ``marker`` is the type of a control record, such as "COMMIT"."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    marker: str | None = None
    coordinator_epoch: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Bytes are text, or ``key_base64`` and ``value_base64`` if they are not UTF-8, as in the client's output."""
        shown: dict[str, Any] = {
            "offset": self.offset,
            "timestamp": self.timestamp,
            **bytes_as_json("key", self.key),
            **bytes_as_json("value", self.value),
            "headers": [{"key": name, **bytes_as_json("value", content)} for name, content in self.headers],
        }
        if self.marker is not None:
            shown |= {"marker": self.marker, "coordinator_epoch": self.coordinator_epoch}
        return shown


class LogTotals(Fact, tag="log_totals"):
    """The end of a ``.log``: totals of its valid batches. ``next_offset`` None: there is no batch."""

    path: str
    batches: int
    records: int
    next_offset: int | None
    max_timestamp: int
    damaged_bytes: int


class OffsetEntryFound(Fact, tag="offset_entry"):
    """An offset index entry: the batch that begins at ``log_position`` ends with ``offset``."""

    number: int
    offset: int
    log_position: int
    problem: str | None = None


class TimeEntryFound(Fact, tag="time_entry"):
    """A time index entry: no record up to ``offset`` has a later timestamp."""

    number: int
    timestamp: int
    offset: int
    problem: str | None = None


class IndexTotals(Fact, tag="index_totals"):
    """The end of an index; ``verified``: its entries were compared with the log."""

    path: str
    entries: int
    padding_bytes: int
    verified: bool


class AbortedFound(Fact, tag="aborted_transaction"):
    """An aborted transaction."""

    number: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerFound(Fact, tag="producer"):
    """A producer in a snapshot."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int | None


# --- Small files ------------------------------------------------------------------------------------------------------


class CheckpointEntry(Fact, tag="checkpoint_entry"):
    """One line of an offset checkpoint."""

    topic: str
    partition: int
    offset: int


class EpochFound(Fact, tag="leader_epoch"):
    """One line of a leader epoch checkpoint."""

    epoch: int
    start_offset: int


class Property(Fact, tag="property"):
    """A name and a value of a small text file."""

    name: str
    value: str


class TopicFound(Fact, tag="topic"):
    """A topic; ``id`` is None if no file has it."""

    name: str
    id: str | None
    partitions: int
    config: dict[str, str]
    notes: list[str]


class DamagedOffsets(Fact, tag="damaged_offsets"):
    """Offsets that the broker knows to be lost, from ``seglog-partition.json``."""

    start_offset: int
    end_offset: int
    segment: int
    position: int
    end_position: int
    reason: str


class StateFound(Fact, tag="partition_state"):
    """The contents of ``seglog-partition.json``."""

    read_only: str | None
    first_append_ms: int | None
    last_append_ms: int | None
    log_start_reason: str | None
    compacted_before: int


# --- Directories ------------------------------------------------------------------------------------------------------


class LogDirectoryFound(Fact, tag="log_directory"):
    """A log directory. ``format`` is None if seglog has not served it; ``clean``: the marker of a clean stop exists."""

    path: str
    format: str | None
    clean: bool
    identity: dict[str, str]


class CheckpointFound(Fact, tag="checkpoint"):
    """A checkpoint file of the log directory; ``entries`` is their number, None if it is malformed."""

    name: str
    size: int
    entries: int | None


class PartitionFound(Fact, tag="partition"):
    """A partition directory.

    ``epochs`` are (epoch, start offset), ``snapshots`` the offsets of producer snapshots. The last three are the log
    directory's checkpoints, None where they name no offset.
    """

    path: str
    topic: str | None
    partition: int | None
    marker: str
    topic_id: str | None
    segments: int
    size: int
    epochs: list[tuple[int, int]] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    log_start: int | None = None
    recovery_point: int | None = None
    high_watermark: int | None = None


class SegmentFound(Fact, tag="segment"):
    """A segment. Counts come from batch headers, without checksums; None if nothing was counted.

    ``first_timestamp`` is the maxTimestamp of its first batch. A missing index has None entries; its padding is the
    number of zero bytes after them.
    """

    base_offset: int
    next_offset: int | None
    size: int
    batches: int | None
    records: int | None
    codecs: list[str] | None
    first_timestamp: int | None
    max_timestamp: int | None
    offset_index_entries: int | None
    offset_index_padding: int | None
    time_index_entries: int | None
    time_index_padding: int | None
    other_files: list[str] = field(default_factory=list)
