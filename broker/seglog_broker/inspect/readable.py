"""Facts as text: headings, aligned tables, damage and notes between rows, findings with advice. Times are UTC."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from seglog_broker.inspect import facts as f
from seglog_broker.inspect.findings import Finding, PartitionCounts, Remaining, Repaired, Severity, Totals
from seglog_broker.texts import bytes_text, counted, range_text, size_text, time_text
from seglog_protocol.tables import Column, Table, columns
from seglog_protocol.texts import printable

_RECORD_INDENT: Final = " " * 12
_SHOWN_MAX: Final = 4
"""Epochs and snapshots shown of a partition: the newest."""
_HEADINGS: Final = {Severity.DAMAGE: "DAMAGED", Severity.DERIVED: "WRONG", Severity.NOTE: "note"}


class _Layout(NamedTuple):
    """The table columns of one kind of fact."""

    columns: Sequence[Column]
    cells: Callable[[Any], Sequence[str]]
    indent: str = ""


def readable(facts: Iterable[f.Fact], width: int | None = None) -> Iterator[str]:
    """Lines without their newlines, in ``width`` columns (None: any).

    Streamed, except that the first rows of a table wait until its widths are known.
    """
    for line in _Writer(width).lines(facts):
        if width is None or len(line) <= width:
            yield line
        else:
            indent = " " * (len(line) - len(line.lstrip()) + 2)
            yield from textwrap.wrap(
                line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )


class _Writer:
    def __init__(self, width: int | None) -> None:
        self._width = width
        self._table: Table | None = None
        self._table_of: type[f.Fact] | None = None
        self._path = ""  # what the last heading named
        self._indent = ""
        self._is_first = True

    def lines(self, facts: Iterable[f.Fact]) -> Iterator[str]:
        for fact in facts:
            kind = type(fact)
            if kind in _TABLES:
                yield from self._row(fact, kind)
            elif isinstance(fact, f.Damage | f.Note | f.RecordFound):
                yield from self._between(fact)
            else:
                yield from self._end_table()
                yield from self._other(fact)
        yield from self._end_table()

    def _row(self, fact: f.Fact, kind: type[f.Fact]) -> Iterator[str]:
        layout = _TABLES[kind]
        if self._table is None or self._table_of is not kind:
            yield from self._end_table()
            self._table, self._table_of = Table(layout.columns, self._indent + layout.indent, self._width), kind
            if kind in _TITLES:
                yield ""
                yield self._indent + _TITLES[kind]
        yield from self._table.row(layout.cells(fact))

    def _between(self, fact: f.Damage | f.Note | f.RecordFound) -> Iterator[str]:
        if isinstance(fact, f.RecordFound):
            line = f"{_RECORD_INDENT}{_record(fact)}"
        else:
            line = self._indent + ("  " if self._table else "") + self._remark(fact)
        if self._table is None:
            yield line
        else:
            yield from self._table.between(line)

    def _remark(self, fact: f.Damage | f.Note) -> str:
        where = ""
        if fact.path != self._path:
            below = f"{self._path}/" if self._path else ""  # before the first heading the whole path is shown
            where = f"{printable(fact.path.removeprefix(below))}: "
        if isinstance(fact, f.Note):
            return f"note: {where}{printable(fact.text)}"
        if fact.position is not None and fact.end_position is not None:
            where += f"{range_text(fact.position, fact.end_position)}: "
        return f"DAMAGED: {where}{printable(fact.reason)}"

    def _end_table(self) -> Iterator[str]:
        if self._table is not None:
            yield from self._table.flush()
            self._table = self._table_of = None

    def _heading(self, path: str, text: str, indent: str) -> Iterator[str]:
        if not self._is_first:
            yield ""
        self._is_first = False
        self._path, self._indent = path, indent
        yield text

    def _other(self, fact: f.Fact) -> Iterator[str]:
        if isinstance(fact, f.FileFound):
            yield from self._heading(fact.path, f"{printable(fact.path)}: {fact.type}, {size_text(fact.size)}", "")
        elif isinstance(fact, f.LogDirectoryFound):
            version = "no seglog-format yet" if fact.format is None else f"seglog format {printable(fact.format)}"
            yield from self._heading(fact.path, f"{printable(fact.path)}: log directory, {version}", "")
            yield "  " + (
                "stopped cleanly" if fact.clean else "no marker of a clean stop: a broker is running, or was killed"
            )
            for name, value in fact.identity.items():
                yield f"  {printable(name):<14}{printable(value)}"
        elif isinstance(fact, f.PartitionFound):
            yield from self._heading(fact.path, _partition(fact), "  ")
            if more := _more_of_partition(fact):
                yield f"  {more}"
        elif isinstance(fact, f.StateFound):
            yield self._indent + _state(fact)
        elif isinstance(fact, f.LogTotals):
            end = "no offset" if fact.next_offset is None else f"end offset {fact.next_offset}"
            bad = f", {size_text(fact.damaged_bytes)} damaged" if fact.damaged_bytes else ""
            yield (
                f"{counted(fact.batches, 'batch', 'batches')}, {counted(fact.records, 'record')}, {end}, "
                f"largest timestamp {time_text(fact.max_timestamp)}{bad}"
            )
        elif isinstance(fact, f.IndexTotals):
            compared = "compared with the log" if fact.verified else "not compared with the log (--verify does)"
            yield f"{counted(fact.entries, 'entry', 'entries')}, {compared}"
        elif isinstance(fact, Finding):
            yield f"{_HEADINGS[fact.severity]}: {_place(fact)}: {printable(fact.what)} [{fact.code}]"
            yield f"  {fact.remedy}"
        elif isinstance(fact, Remaining):
            finding = fact.finding
            yield f"STILL {_HEADINGS[finding.severity]}: {_place(finding)}: {printable(finding.what)}"
        elif isinstance(fact, Repaired):
            yield f"repaired: {printable(fact.path)}: {printable(fact.what)}"
        elif isinstance(fact, PartitionCounts):
            yield _counts_of_partition(fact)
        elif isinstance(fact, Totals):
            yield ""
            yield _counts(fact)
            yield _verdict(fact)


# --- Sentences of a dump ----------------------------------------------------------------------------------------------


def _partition(fact: f.PartitionFound) -> str:
    aside = {
        "-delete": ", of a deleted topic",
        "-stray": ", set aside: no topic knows it",
        "-future": ", Kafka's, being moved",
    }
    name = printable(fact.path.rpartition("/")[2])
    return f"{name}{aside.get(fact.marker, '')}: {counted(fact.segments, 'segment')}, {size_text(fact.size)}"


def _more_of_partition(fact: f.PartitionFound) -> str:
    parts = []
    if fact.topic_id is not None:
        parts.append(f"topic id {fact.topic_id}")
    if fact.log_start is not None:
        parts.append(f"log start {fact.log_start}")
    if fact.recovery_point is not None:
        parts.append(f"recovery point {fact.recovery_point}")
    if fact.high_watermark is not None:
        parts.append(f"high watermark {fact.high_watermark}")
    if fact.epochs:
        shown = [f"{epoch} from {start}" for epoch, start in fact.epochs[-_SHOWN_MAX:]]
        parts.append("leader epoch " + _with_earlier(shown, len(fact.epochs)))
    if fact.snapshots:
        parts.append(
            "snapshots at " + _with_earlier([str(at) for at in fact.snapshots[-_SHOWN_MAX:]], len(fact.snapshots))
        )
    return ", ".join(parts)


def _with_earlier(shown: Sequence[str], count: int) -> str:
    earlier = f"({count - len(shown)} earlier) " if count > len(shown) else ""
    return earlier + ", ".join(shown)


def _state(fact: f.StateFound) -> str:
    parts = []
    if fact.first_append_ms is not None:
        parts.append(f"active segment begun {time_text(fact.first_append_ms)}")
    if fact.last_append_ms is not None:
        parts.append(f"last append {time_text(fact.last_append_ms)}")
    if fact.log_start_reason is not None:
        parts.append(f"log start moved: {printable(fact.log_start_reason)}")
    if fact.compacted_before:
        parts.append(f"compacted before {fact.compacted_before}")
    return "state: " + (", ".join(parts) or "nothing to remember")


def _record(fact: f.RecordFound) -> str:
    head = f"{fact.offset}  {time_text(fact.timestamp)}"
    if fact.marker is not None:
        return f"{head}  {fact.marker} marker, coordinator epoch {fact.coordinator_epoch}"
    headers = "".join(f"  {printable(name)}={bytes_text(content)}" for name, content in fact.headers)
    return f"{head}  {bytes_text(fact.key)}  {bytes_text(fact.value)}{headers}"


def _more_of_batch(fact: f.Batch) -> str:
    parts = []
    if fact.timestamp_type != "CreateTime":
        parts.append("append time")
    if fact.producer_id != -1:
        parts.append(f"producer {fact.producer_id} epoch {fact.producer_epoch}")
    if fact.base_sequence != -1:
        parts.append(f"sequence {_span(fact.base_sequence, fact.last_sequence)}")
    if fact.is_transactional:
        parts.append("transactional")
    if fact.is_control:
        parts.append("control")
    if fact.delete_horizon is not None:
        parts.append(f"tombstones go after {time_text(fact.delete_horizon)}")
    return ", ".join(parts)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _index_text(entries: int | None, padding: int | None) -> str:
    if entries is None:
        return "missing"
    return f"{entries}" + (f" + {size_text(padding)} of zeros" if padding else "")


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


# --- Sentences of a check ---------------------------------------------------------------------------------------------


def _place(finding: Finding) -> str:
    place = printable(finding.path)
    if finding.position is not None and finding.end_position is not None:
        place += f", {range_text(finding.position, finding.end_position)}"
    if finding.start_offset is not None and finding.end_offset is not None:
        last = finding.end_offset - 1
        span = f"offset {last}" if last == finding.start_offset else f"offsets {finding.start_offset} to {last}"
        place += f", {span}"
    return place


def _counts_of_partition(counts: PartitionCounts) -> str:
    offsets = (
        f"offsets {counts.start_offset} to {counts.end_offset - 1}"
        if counts.start_offset < counts.end_offset
        else "no records"
    )
    closed = max(0, counts.segments - 1)
    covered = f", checksums for {counts.covered} of {closed} closed" if closed else ""
    return (
        f"{printable(counts.path)}: {offsets}, {counted(counts.batches, 'batch', 'batches')} in "
        f"{counted(counts.segments, 'segment')}, {size_text(counts.bytes)}{covered}"
    )


def _counts(totals: Totals) -> str:
    return (
        f"{counted(totals.partitions, 'partition')}, {counted(totals.segments, 'segment')}, "
        f"{counted(totals.batches, 'batch', 'batches')}, {counted(totals.records, 'record')}, "
        f"{size_text(totals.bytes)} read" + (f", {counted(totals.repairs, 'repair')}" if totals.repairs else "")
    )


def _verdict(totals: Totals) -> str:
    damage, derived, notes = (totals.findings[severity] for severity in Severity)
    beside = f" ({counted(notes, 'note')})" if notes else ""
    if totals.is_sound:
        return f"{printable(totals.path)} is sound{beside}."
    parts = []
    if damage:
        parts.append(f"damaged in {counted(damage, 'place')}")
    if derived:
        parts.append(
            f"has {counted(derived, 'file')} to rebuild" if not damage else f"{counted(derived, 'file')} to rebuild"
        )
    return f"{printable(totals.path)} is not sound: " + ", ".join(parts) + beside + "."


# --- Tables -----------------------------------------------------------------------------------------------------------


def _batch(fact: f.Batch) -> Sequence[str]:
    return (
        str(fact.position),
        str(fact.size),
        str(fact.base_offset),
        str(fact.last_offset),
        str(fact.record_count),
        fact.codec,
        time_text(fact.max_timestamp),
        str(fact.leader_epoch),
        "ok" if fact.crc_ok else "WRONG",
        _more_of_batch(fact),
    )


def _segment(fact: f.SegmentFound) -> Sequence[str]:
    others = [name.partition(".")[2] for name in fact.other_files]
    return (
        str(fact.base_offset),
        _or_dash(fact.next_offset),
        _or_dash(fact.records),
        _or_dash(fact.batches),
        size_text(fact.size),
        time_text(fact.first_timestamp),
        time_text(fact.max_timestamp),
        _index_text(fact.offset_index_entries, fact.offset_index_padding),
        _index_text(fact.time_index_entries, fact.time_index_padding),
        ", ".join(fact.codecs or ()),
        ", ".join(others),
    )


def _topic(fact: f.TopicFound) -> Sequence[str]:
    config = " ".join(f"{name}={value}" for name, value in sorted(fact.config.items()))
    return (fact.name, str(fact.partitions), _or_dash(fact.id), printable(config))


def _producer(fact: f.ProducerFound) -> Sequence[str]:
    known = fact.last_offset >= 0
    return (
        str(fact.producer_id),
        str(fact.producer_epoch),
        _span(fact.first_sequence, fact.last_sequence) if known else "-",
        str(fact.last_offset) if known else "-",
        time_text(fact.timestamp),
        str(fact.coordinator_epoch) if fact.coordinator_epoch >= 0 else "-",
        _or_dash(fact.current_txn_first_offset),
    )


_TABLES: Final[dict[type[f.Fact], _Layout]] = {
    f.Batch: _Layout(
        columns(
            *(">position", ">size", ">base offset", ">last offset", ">records", "codec"),
            *("largest timestamp", ">epoch", "crc", ""),
        ),
        _batch,
    ),
    f.SegmentFound: _Layout(
        columns(
            *(">base offset", ">end offset", ">records", ">batches", ">size", "first batch", "largest timestamp"),
            *(">index", ">timeindex", "codecs", ""),
        ),
        _segment,
    ),
    f.OffsetEntryFound: _Layout(
        columns(">entry", ">offset", ">position", ""),
        lambda fact: (str(fact.number), str(fact.offset), str(fact.log_position), fact.problem or ""),
    ),
    f.TimeEntryFound: _Layout(
        columns(">entry", "timestamp", ">offset", ""),
        lambda fact: (str(fact.number), time_text(fact.timestamp), str(fact.offset), fact.problem or ""),
    ),
    f.AbortedFound: _Layout(
        columns(">entry", ">producer", ">first offset", ">marker", ">last stable offset"),
        lambda fact: tuple(
            map(str, (fact.number, fact.producer_id, fact.first_offset, fact.last_offset, fact.last_stable_offset))
        ),
    ),
    f.ProducerFound: _Layout(
        columns(
            *(">producer", ">epoch", ">sequence", ">last offset", "timestamp", ">coordinator epoch"),
            ">open transaction from",
        ),
        _producer,
    ),
    f.CheckpointEntry: _Layout(
        columns("topic", ">partition", ">offset"),
        lambda fact: (printable(fact.topic), str(fact.partition), str(fact.offset)),
    ),
    f.EpochFound: _Layout(columns(">epoch", ">start offset"), lambda fact: (str(fact.epoch), str(fact.start_offset))),
    f.Property: _Layout(columns("name", "value"), lambda fact: (printable(fact.name), printable(fact.value))),
    f.TopicFound: _Layout(columns("topic", ">partitions", "id", "configuration"), _topic, "  "),
    f.CheckpointFound: _Layout(
        columns("file", ">entries"),
        lambda fact: (fact.name, "unreadable" if fact.entries is None else str(fact.entries)),
        "  ",
    ),
    f.DamagedOffsets: _Layout(
        columns(">from offset", ">to offset", ">segment", ">position", ">size", "reason"),
        lambda fact: (
            *(str(fact.start_offset), str(fact.end_offset - 1), str(fact.segment), str(fact.position)),
            *(str(fact.end_position - fact.position), printable(fact.reason)),
        ),
    ),
}

_TITLES: Final[dict[type[f.Fact], str]] = {f.TopicFound: "topics", f.CheckpointFound: "checkpoints"}
