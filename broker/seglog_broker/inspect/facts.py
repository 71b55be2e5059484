"""Values that a dump or a check reports, one for each thing found, with their text, in the order of finding.

Here are those of a dump; ``findings`` has those of a check. All are printed by ``readable``, or as lines of JSON.
``kind`` is the JSON object's ``kind``, the fields are its other keys. Offsets count records, positions and sizes are
bytes, times are milliseconds since 1970. Numbers are as on disk: in Kafka's fields -1 means none. A field that is None
has no value. ``Damage`` makes the exit code 1; a ``Note`` is information, not damage.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, Self, dataclass_transform

from msgspec import Struct, field
from msgspec.structs import asdict, astuple

from seglog_broker.texts import bytes_text, counted, range_text, size_text, time_text
from seglog_protocol.record_batch import NO_TIMESTAMP
from seglog_protocol.tables import Column, columns
from seglog_protocol.texts import bytes_as_json, printable

_SHOWN_MAX: Final = 4
"""Epochs and snapshots shown of a partition: the newest."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Fact(Struct, frozen=True, tag_field="kind"):
    """The base class of all facts; the ``tag`` of each is its kind. As text, a fact is a row of a table, or lines."""

    table: ClassVar[tuple[Column, ...]] = ()
    """Columns of the table whose rows are the facts of this kind; none for a fact that is lines."""
    title: ClassVar[str] = ""
    """A line above the table, two columns to its left."""

    def row(self) -> list[str]:
        """A cell for each column."""
        cells = zip(self.table, self._cells(), strict=True)
        return [("-" if column.title else "") if cell is None else printable(str(cell)) for column, cell in cells]

    def lines(self) -> Iterator[str]:
        """The text of a fact that is no row of a table, line by line."""
        return self._lines()

    def _cells(self) -> Iterable[object]:
        return astuple(self)

    def _lines(self) -> Iterator[str]:
        raise NotImplementedError

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

    def remark(self, where: str) -> str:
        """Its line; ``where``: what the path adds to the heading above."""
        if self.position is not None and self.end_position is not None:
            where += f"{range_text(self.position, self.end_position)}: "
        return f"DAMAGED: {where}{printable(self.reason)}"


class Note(Fact, tag="note"):
    """Information about ``path``, in a sentence."""

    path: str
    text: str

    def remark(self, where: str) -> str:
        """Its line; ``where``: what the path adds to the heading above."""
        return f"note: {where}{printable(self.text)}"


class FileFound(Fact, tag="file"):
    """A file, whose contents are the next facts; ``type`` is its type in words."""

    path: str
    type: str
    size: int

    def _lines(self) -> Iterator[str]:
        yield f"{printable(self.path)}: {self.type}, {size_text(self.size)}"


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
    table = columns(
        *(">position", ">size", ">base offset", ">last offset", ">records", "codec"),
        *("largest timestamp", ">epoch", "crc", ""),
    )

    def _cells(self) -> Iterable[object]:
        return (
            *(self.position, self.size, self.base_offset, self.last_offset, self.record_count, self.codec),
            *(time_text(self.max_timestamp), self.leader_epoch, "ok" if self.crc_ok else "WRONG", self._more()),
        )

    def _more(self) -> str:
        parts = {
            "append time": self.timestamp_type != "CreateTime",
            f"producer {self.producer_id} epoch {self.producer_epoch}": self.producer_id != -1,
            f"sequence {_span(self.base_sequence, self.last_sequence)}": self.base_sequence != -1,
            "transactional": self.is_transactional,
            "control": self.is_control,
            f"tombstones go after {time_text(self.delete_horizon)}": self.delete_horizon is not None,
        }
        return ", ".join(part for part, is_so in parts.items() if is_so)


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

    def _lines(self) -> Iterator[str]:
        if self.marker is None:
            headers = "".join(f"  {printable(name)}={bytes_text(content)}" for name, content in self.headers)
            text = f"{bytes_text(self.key)}  {bytes_text(self.value)}{headers}"
        else:
            text = f"{self.marker} marker, coordinator epoch {self.coordinator_epoch}"
        yield f"{self.offset}  {time_text(self.timestamp)}  {text}"


class LogTotals(Fact, frozen=False, tag="log_totals"):  # type: ignore[misc]  # it counts
    """The end of a ``.log``: totals of its valid batches. ``next_offset`` None: there is no batch."""

    path: str
    batches: int = 0
    records: int = 0
    next_offset: int | None = None
    max_timestamp: int = NO_TIMESTAMP
    damaged_bytes: int = 0

    def _lines(self) -> Iterator[str]:
        end = "no offset" if self.next_offset is None else f"end offset {self.next_offset}"
        bad = f", {size_text(self.damaged_bytes)} damaged" if self.damaged_bytes else ""
        yield (
            f"{counted(self.batches, 'batch', 'batches')}, {counted(self.records, 'record')}, {end}, "
            f"largest timestamp {time_text(self.max_timestamp)}{bad}"
        )


class OffsetEntryFound(Fact, tag="offset_entry"):
    """An offset index entry: the batch that begins at ``log_position`` ends with ``offset``."""

    number: int
    offset: int
    log_position: int
    problem: str | None = None
    table = columns(">entry", ">offset", ">position", "")


class TimeEntryFound(Fact, tag="time_entry"):
    """A time index entry: no record up to ``offset`` has a later timestamp."""

    number: int
    timestamp: int
    offset: int
    problem: str | None = None
    table = columns(">entry", "timestamp", ">offset", "")

    def _cells(self) -> Iterable[object]:
        return (self.number, time_text(self.timestamp), self.offset, self.problem)


class IndexTotals(Fact, tag="index_totals"):
    """The end of an index; ``verified``: its entries were compared with the log."""

    path: str
    entries: int
    padding_bytes: int
    verified: bool

    def _lines(self) -> Iterator[str]:
        compared = "compared with the log" if self.verified else "not compared with the log (--verify does)"
        yield f"{counted(self.entries, 'entry', 'entries')}, {compared}"


class AbortedFound(Fact, tag="aborted_transaction"):
    """An aborted transaction."""

    number: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    table = columns(">entry", ">producer", ">first offset", ">marker", ">last stable offset")


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
    table = columns(
        *(">producer", ">epoch", ">sequence", ">last offset", "timestamp", ">coordinator epoch"),
        ">open transaction from",
    )

    def _cells(self) -> Iterable[object]:
        known = self.last_offset >= 0
        return (
            *(self.producer_id, self.producer_epoch),
            _span(self.first_sequence, self.last_sequence) if known else None,
            *(self.last_offset if known else None, time_text(self.timestamp)),
            self.coordinator_epoch if self.coordinator_epoch >= 0 else None,
            self.current_txn_first_offset,
        )


# --- Small files ------------------------------------------------------------------------------------------------------


class CheckpointEntry(Fact, tag="checkpoint_entry"):
    """One line of an offset checkpoint."""

    topic: str
    partition: int
    offset: int
    table = columns("topic", ">partition", ">offset")


class EpochFound(Fact, tag="leader_epoch"):
    """One line of a leader epoch checkpoint."""

    epoch: int
    start_offset: int
    table = columns(">epoch", ">start offset")


class Property(Fact, tag="property"):
    """A name and a value of a small text file."""

    name: str
    value: str
    table = columns("name", "value")


class TopicFound(Fact, tag="topic"):
    """A topic; ``id`` is None if no file has it."""

    name: str
    id: str | None
    partitions: int
    config: dict[str, str]
    notes: list[str]
    table, title = columns("topic", ">partitions", "id", "configuration"), "topics"

    def _cells(self) -> Iterable[object]:
        config = " ".join(f"{name}={value}" for name, value in sorted(self.config.items()))
        return (self.name, self.partitions, self.id, config)


class DamagedOffsets(Fact, tag="damaged_offsets"):
    """Offsets that the broker knows to be lost, from ``seglog-partition.json``."""

    start_offset: int
    end_offset: int
    segment: int
    position: int
    end_position: int
    reason: str
    table = columns(">from offset", ">to offset", ">segment", ">position", ">size", "reason")

    def _cells(self) -> Iterable[object]:
        size = self.end_position - self.position
        return (self.start_offset, self.end_offset - 1, self.segment, self.position, size, self.reason)


class StateFound(Fact, tag="partition_state"):
    """The contents of ``seglog-partition.json``."""

    read_only: str | None
    first_append_ms: int | None
    last_append_ms: int | None
    log_start_reason: str | None
    compacted_before: int

    def _lines(self) -> Iterator[str]:
        parts = {
            f"active segment begun {time_text(self.first_append_ms)}": self.first_append_ms is not None,
            f"last append {time_text(self.last_append_ms)}": self.last_append_ms is not None,
            f"log start moved: {printable(self.log_start_reason or '')}": self.log_start_reason is not None,
            f"compacted before {self.compacted_before}": bool(self.compacted_before),
        }
        yield "state: " + (", ".join(part for part, is_so in parts.items() if is_so) or "nothing to remember")


# --- Directories ------------------------------------------------------------------------------------------------------


class LogDirectoryFound(Fact, tag="log_directory"):
    """A log directory. ``format`` is None if seglog has not served it; ``clean``: the marker of a clean stop exists."""

    path: str
    format: str | None
    clean: bool
    identity: dict[str, str]

    def _lines(self) -> Iterator[str]:
        version = "no seglog-format yet" if self.format is None else f"seglog format {printable(self.format)}"
        yield f"{printable(self.path)}: log directory, {version}"
        yield "  stopped cleanly" if self.clean else "  no marker of a clean stop: a broker is running, or was killed"
        yield from (f"  {printable(name):<14}{printable(value)}" for name, value in self.identity.items())


class CheckpointFound(Fact, tag="checkpoint"):
    """A checkpoint file of the log directory; ``entries`` is their number, None if it is malformed."""

    name: str
    size: int
    entries: int | None
    table, title = columns("file", ">entries"), "checkpoints"

    def _cells(self) -> Iterable[object]:
        return (self.name, "unreadable" if self.entries is None else self.entries)


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

    def _lines(self) -> Iterator[str]:
        name = printable(self.path.rpartition("/")[2])
        yield f"{name}{_ASIDE.get(self.marker, '')}: {counted(self.segments, 'segment')}, {size_text(self.size)}"
        parts = [
            f"{label} {value}"
            for label, value in (
                *(("topic id", self.topic_id), ("log start", self.log_start)),
                *(("recovery point", self.recovery_point), ("high watermark", self.high_watermark)),
                ("leader epoch", _newest([f"{epoch} from {start}" for epoch, start in self.epochs])),
                ("snapshots at", _newest([str(offset) for offset in self.snapshots])),
            )
            if value is not None
        ]
        if parts:
            yield f"  {', '.join(parts)}"


class SegmentFound(Fact, kw_only=True, tag="segment"):
    """A segment. Counts come from batch headers, without checksums; None if nothing was counted.

    ``first_timestamp`` is the maxTimestamp of its first batch. A missing index has None entries; its padding is the
    number of zero bytes after them.
    """

    base_offset: int
    next_offset: int | None = None
    size: int
    batches: int | None = None
    records: int | None = None
    codecs: list[str] | None = None
    first_timestamp: int | None = None
    max_timestamp: int | None = None
    offset_index_entries: int | None
    offset_index_padding: int | None
    time_index_entries: int | None
    time_index_padding: int | None
    other_files: list[str] = field(default_factory=list)
    table = columns(
        *(">base offset", ">end offset", ">records", ">batches", ">size", "first batch", "largest timestamp"),
        *(">index", ">timeindex", "codecs", ""),
    )

    def _cells(self) -> Iterable[object]:
        return (
            *(self.base_offset, self.next_offset, self.records, self.batches, size_text(self.size)),
            *(time_text(self.first_timestamp), time_text(self.max_timestamp)),
            _index_text(self.offset_index_entries, self.offset_index_padding),
            _index_text(self.time_index_entries, self.time_index_padding),
            ", ".join(self.codecs or ()),
            ", ".join(name.partition(".")[2] for name in self.other_files),
        )


_ASIDE: Final = {
    "-delete": ", of a deleted topic",
    "-stray": ", set aside: no topic knows it",
    "-future": ", Kafka's, being moved",
}


def _newest(shown: Sequence[str]) -> str | None:
    earlier = f"({len(shown) - _SHOWN_MAX} earlier) " if len(shown) > _SHOWN_MAX else ""
    return earlier + ", ".join(shown[-_SHOWN_MAX:]) if shown else None


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _index_text(entries: int | None, padding: int | None) -> str:
    if entries is None:
        return "missing"
    return f"{entries}" + (f" + {size_text(padding)} of zeros" if padding else "")
