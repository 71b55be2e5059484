"""The golden directories: log directories that Kafka 4.3.1 wrote, what Kafka said of them, and what seglog says.

Their README, beside them, has the facts' meaning. A case is unpacked, edited as its facts say, opened with our storage
engine (which adopts a directory of Kafka's), and asked the same questions.
"""

import base64
import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from seglog_broker.config import load_config
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.errors import CorruptRecordError, OffsetOutOfRangeError
from seglog_protocol.internal_topics import TRANSACTIONS_TOPIC
from seglog_protocol.record_batch import BatchHeader, iter_batches, verify_crc
from seglog_protocol.records import Record, decode_records
from tests.support import shared_data

CASES = (
    "plain", "codecs", "append-time", "compacted", "transactions", "unclean", "unclean-recovered",
    "unclean-recovered-from-zero", "retention", "damaged", "damaged-clean-start", "damaged-unclean-start",
    "timestamps", "groups",
)  # fmt: skip
AS_KAFKA_LEFT_THEM = tuple(name for name in CASES if not name.endswith(("-recovered", "-zero", "-start")))
"""Cases in which nothing was done to the files afterwards."""
LARGE = ("unclean", "unclean-recovered", "unclean-recovered-from-zero")
"""The largest directories, with hundreds of look-ups by time."""
MOST_CASES = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in LARGE else []) for name in CASES]
)
"""Each case, the largest in ``make soak``."""

INDEX_INTERVAL = 512
"""``index.interval.bytes`` of every topic in the archives but Kafka's own two; it is not in the directory."""

FETCH_BYTES = 1 << 20

Row = list[Any]
"""A record as the facts list it: [offset, timestamp, timestamp type, key, value, headers], bytes in base64."""


@dataclass(frozen=True)
class Case:
    """One case's facts; ``partitions`` by directory name, such as ``events-0``, as far as they are in the archive."""

    name: str
    archive: str
    clean: bool
    keeps_recovery_points: bool
    partitions: Mapping[str, Any]

    @property
    def answered(self) -> dict[str, Any]:
        """Kafka's answers, of the partitions it was asked about."""
        return {name: facts["answers"] for name, facts in self.partitions.items() if facts["answers"] is not None}


@cache
def load_case(name: str) -> Case:
    """Read the facts. Skips the test where the folder is absent."""
    facts = json.loads(shared_data("kafka-golden", f"{name}.json").read_bytes())
    archive = facts["archive"]
    packed = {path.partition("/")[0] for path in _packed(archive)}
    partitions = {partition: told for partition, told in facts["partitions"].items() if partition in packed}
    return Case(name, archive, facts["clean"], facts.get("recovery_points", True), partitions)


class _Packed(NamedTuple):
    """A file of an archive; the zeros at its end, megabytes in an index that was not trimmed, are only counted."""

    content: bytes
    size: int


@cache
def _packed(archive: str) -> dict[str, _Packed]:
    files = {}
    with tarfile.open(shared_data("kafka-golden", archive)) as packed:
        for member in packed:
            file = packed.extractfile(member)
            if file is not None:
                content = file.read()
                files[member.name.removeprefix("./")] = _Packed(content.rstrip(b"\0"), len(content))
    return files


def packed_names(archive: str) -> list[str]:
    """Paths of the files in an archive."""
    return list(_packed(archive))


def packed_bytes(archive: str, path: str) -> bytes:
    """A file as Kafka left it."""
    content, size = _packed(archive)[path]
    return content + bytes(size - len(content))


def unpack(case: Case, directory: Path) -> None:
    """Put the case's log directory there, edited and marked as it was when Kafka was started on it."""
    for name, (content, size) in _packed(case.archive).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(content)
            file.truncate(size)
    for name, facts in case.partitions.items():
        for edit in facts.get("edits", ()):
            _apply(directory / name / edit["file"], edit)
    if not case.clean:
        (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
    if not case.keeps_recovery_points:
        (directory / "recovery-point-offset-checkpoint").unlink()


def unpack_open_transactions(directory: Path) -> None:
    """Put the case "transactions" there without what its coordinator knew, which would end the open transaction."""
    unpack(load_case("transactions"), directory)
    for folder in directory.glob(f"{TRANSACTIONS_TOPIC}-*"):
        shutil.rmtree(folder)
    for checkpoint in directory.glob("*-offset-checkpoint"):
        lines = checkpoint.read_text().splitlines()  # a version, how many entries, the entries; or nothing yet
        others = [entry for entry in lines[2:] if not entry.startswith(f"{TRANSACTIONS_TOPIC} ")]
        if lines:
            checkpoint.write_text("".join(f"{line}\n" for line in (lines[0], len(others), *others)))


def _apply(path: Path, edit: Mapping[str, Any]) -> None:
    what = edit["do"]
    if what == "delete":
        path.unlink()
    elif what == "create":
        path.write_bytes(bytes.fromhex(edit["hex"]))
    else:
        with path.open("r+b") as file:
            if what == "truncate":
                file.truncate(edit["size"])
            else:
                file.seek(edit["at"] if what == "overwrite" else path.stat().st_size)
                file.write(bytes.fromhex(edit["hex"]))


@contextmanager
def adopted(directory: Path, index_interval: int = INDEX_INTERVAL) -> Iterator[LogDirectory]:
    """The directory in seglog's hands; nothing is written at the end, ``close`` it for an orderly stop."""
    flags = [f"log.dir={directory}", f"log.index.interval.bytes={index_interval}"]
    config, _ = load_config(None, "", {}, flags)
    logs = open_log_directory(PosixFileSystem(), SystemClock(), config, str(directory))
    try:
        yield logs
    finally:
        logs.abandon()


def log_of(logs: LogDirectory, name: str) -> PartitionLog:
    """The partition of a directory's name."""
    topic, _, partition = name.rpartition("-")
    return logs.logs[topic, int(partition)]


# --- What seglog answers ----------------------------------------------------------------------------------------------


@dataclass
class Read:
    """What a consumer that goes on behind every damaged range gets; ``damaged`` are the ranges [start, end) it met."""

    rows: list[Row] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)

    @property
    def before_damage(self) -> list[Row]:
        """What a consumer that stops at the first one gets: Kafka's."""
        return [row for row in self.rows if row[0] < self.damaged[0][0]] if self.damaged else self.rows


def read_everything(log: PartitionLog) -> Read:
    """Fetch from start to end as our client does: skip control batches, verify checksums."""
    read = Read()
    offset = log.log_start_offset
    while True:
        try:
            data = fetch(log, offset)
        except CorruptRecordError as error:
            read.damaged.append((offset, error.next_offset))
            assert error.next_offset > offset, "an error that leads nowhere"  # noqa: PT017 - it is expected sometimes
            offset = error.next_offset
            continue
        if data is None:
            return read
        for header, view in iter_batches(data):
            if not verify_crc(view, 0, header):
                read.damaged.append((header.base_offset, header.next_offset))
            elif not header.is_control:
                read.rows += [
                    row_of(record, header) for record in decode_records(header, view) if record.offset >= offset
                ]
            offset = header.next_offset


def fetch(log: PartitionLog, offset: int, bytes_max: int = FETCH_BYTES) -> bytes | None:
    """The bytes of one fetch; None when there are none."""
    found = log.read(offset, bytes_max)
    if found is None:
        return None
    data = found.file.pread(found.size, found.position)
    found.release()
    return data


def is_out_of_range(log: PartitionLog, offset: int) -> bool:
    """Whether a fetch there is refused."""
    try:
        log.check_offset(offset)
    except OffsetOutOfRangeError:
        return True
    return False


def raw_bytes(log: PartitionLog, offset: int, size: int) -> bytes:
    """``size`` bytes of the file from where a fetch at ``offset`` begins, wherever that ends: as Kafka answers."""
    found = log.read(offset, 1)
    assert found is not None
    data = found.file.pread(size, found.position)
    found.release()
    return data


def row_of(record: Record, header: BatchHeader) -> Row:
    """A record as the facts list it."""

    def text(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    headers = [[name, text(value)] for name, value in record.headers]
    kind = 2 if header.is_log_append_time else 1
    return [record.offset, record.timestamp, kind, text(record.key), text(record.value), headers]


def digest(rows: list[Row]) -> str:
    """sha256 as the facts have it."""
    lines = (json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def offset_for_time(log: PartitionLog, timestamp: int) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch) of the first record at or after it; three times -1 for none."""
    found = log.find_timestamp(timestamp)
    return (-1, -1, -1) if found is None else (found.timestamp, found.offset, found.leader_epoch)


def largest_timestamp(log: PartitionLog) -> int:
    """What retention by time goes by; -1 without timestamps."""
    return max((segment.max_timestamp.timestamp for segment in log.segments), default=-1)


def batches_of(log: PartitionLog) -> list[tuple[int, int, int, int]]:
    """(segment, position, last offset, checksum) of every batch from the first on, damage left out."""
    found: list[tuple[int, int, int, int]] = []
    offset = log.segments[0].base_offset
    for segment in log.segments:
        offset = max(offset, segment.base_offset)
        while (located := segment.find(offset)) is not None:
            position, header = located
            found.append((segment.base_offset, position, header.last_offset, header.crc))
            offset = header.next_offset
    return found


def dumped_batches(facts: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """The same as Kafka's dump-log listed it."""
    columns = ("segment", "position", "lastOffset", "crc")
    numbers = [facts["batch_columns"].index(column) for column in columns]
    return [(row[numbers[0]], row[numbers[1]], row[numbers[2]], row[numbers[3]]) for row in facts["batches"]]


# --- Held against each other ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """One partition: what seglog says, and whether Kafka says the same; ``other_times`` have another answer."""

    read: Read
    log_start: int
    log_end: int
    times: list[tuple[int, int, int]]
    same_bounds: bool
    same_records: bool
    other_times: int


def compare(log: PartitionLog, kafka: Mapping[str, Any]) -> Compared:
    """Ask ``log`` what Kafka was asked; ``kafka`` are its answers."""
    read = read_everything(log)
    told = kafka["records"]
    times = [offset_for_time(log, asked) for asked, *_ in kafka["offsets_for_times"]]
    return Compared(
        read,
        log.log_start_offset,
        log.log_end_offset,
        times,
        (log.log_start_offset, log.log_end_offset) == (kafka["log_start_offset"], kafka["high_watermark"]),
        (len(read.rows), digest(read.rows)) == (told["count"], told["sha256"]),
        sum(ours != tuple(answer[2:]) for ours, answer in zip(times, kafka["offsets_for_times"], strict=True)),
    )
