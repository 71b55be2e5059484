"""Kafka's own ``dump-log`` reads what seglog wrote, through all that can happen to a log, and finds nothing to say.

Its exit status is 0 whatever it finds, so its words are judged, every line of them: what is not one of the lines that
describe a file is a complaint. Allowed is only "-1 is followed by N" for a file that begins at offset N: this version
of the tool counts from -1 in each file. Of logs that were compacted gaps are allowed (``test_kafka_export.py``).

Needs Java, and the shared folder's script, which has Kafka's jars brought by Maven once.
"""

import re
import subprocess
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

import seglog
from tests.interop.golden import Row, adopted, read_everything
from tests.interop.peer import kafka_script
from tests.processes import daemon

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SEGMENT_BYTES = 8_192
_CONFIG = {"segment.bytes": SEGMENT_BYTES, "index.interval.bytes": 512, "retention.ms": -1}
_START = 1_577_836_800_000  # 2020-01-01


class DumpedRecord(NamedTuple):
    """One record as ``--print-data-log`` shows it; sizes are -1 for none."""

    offset: int
    timestamp: int
    key_size: int
    value_size: int


@dataclass
class Dump:
    """What the tool said; records, codecs of batches and producers of snapshots by partition directory."""

    complaints: list[str] = field(default_factory=list)
    records: dict[str, list[DumpedRecord]] = field(default_factory=dict)
    codecs: dict[str, set[str]] = field(default_factory=dict)
    producers: dict[str, set[int]] = field(default_factory=dict)


_TIME = r"(?:CreateTime|LogAppendTime): (-?\d+)"
_BATCH = re.compile(rf"baseOffset: .* {_TIME} size: \d+ magic: 2 compresscodec: (\w+) crc: \d+ isvalid: true")
_RECORD = re.compile(rf"\| offset: (\d+) {_TIME} keySize: (-?\d+) valueSize: (-?\d+) .*")
_INDEX_ENTRY = re.compile(r"offset: \d+ position: \d+|timestamp: \d+ offset: \d+")
_PRODUCER = re.compile(r"producerId: (\d+) producerEpoch: \d+ .*")
_OTHER = re.compile(r"Log starting offset: \d+|\S+ is empty\.?")
_GAPS = re.compile(r"Non-consecutive offsets in \S+\n(?:  -?\d+ is followed by \d+\n)+")
_FIRST_IS_NOT_0 = re.compile(r"Non-consecutive offsets in (\S+)\n  -1 is followed by (\d+)\n")


@pytest.fixture(scope="module")
def kafka() -> Path:
    """The script that runs Kafka's tools."""
    return kafka_script()


def dump(kafka: Path, files: Sequence[Path], *, with_gaps: bool = False) -> Dump:
    """Run the tool once over ``files``; a JVM takes a second to start. ``with_gaps``: these are no complaints."""
    arguments = ["--deep-iteration", "--print-data-log", "--files", ",".join(map(str, files))]
    done = subprocess.run([kafka, "dump-log", *arguments], capture_output=True, check=False, timeout=300)
    found = Dump()
    waiting = iter(files)
    current = ""
    for line in done.stdout.decode(errors="replace").split("\n"):
        if line.startswith("Dumping "):
            file = next(waiting)
            assert line == f"Dumping {file}"
            current = file.parent.name
        elif told := _RECORD.fullmatch(line):
            found.records.setdefault(current, []).append(DumpedRecord(*map(int, told.groups())))
        elif told := _BATCH.fullmatch(line):
            found.codecs.setdefault(current, set()).add(told[2])
        elif told := _PRODUCER.match(line):
            found.producers.setdefault(current, set()).add(int(told[1]))
        elif line and not _INDEX_ENTRY.fullmatch(line) and not _OTHER.fullmatch(line):
            found.complaints.append(f"{current}: {line}")
    found.complaints += [f"{file} was not dumped" for file in waiting]
    said = done.stderr.decode(errors="replace")
    if with_gaps:
        said = _GAPS.sub("", said)
    found.complaints += _FIRST_IS_NOT_0.sub(_unless_it_begins_there, said).split("\n")
    found.complaints = [complaint for complaint in found.complaints if complaint]
    return found


def _unless_it_begins_there(complaint: re.Match[str]) -> str:
    begins = int(Path(complaint[1]).stem)
    return "" if begins == int(complaint[2]) != 0 else complaint[0]


_SUFFIXES = {".log", ".index", ".timeindex", ".snapshot"}


def files_of(directory: Path) -> list[Path]:
    """Every file that the tool can judge."""
    return [path for path in sorted(directory.glob("*/*")) if path.suffix in _SUFFIXES]


# --- What happened ----------------------------------------------------------------------------------------------------


def _produce(client: seglog.Client, topic: str, codec: str, first: int, count: int = 300) -> None:
    """Plain and odd ones: times go back and forth, some are none; null keys, null and empty values, headers."""
    with client.producer(topic, compression=codec, batch_bytes=1_500, linger_ms=0.5) as producer:
        for number in range(first, first + count):
            producer.send(
                None if number % 40 == 3 else f"value {number} " * (number % 30),
                key=None if number % 5 == 0 else f"key {number % 37}",
                timestamp=-1 if number % 50 == 7 else _START + 1000 * number - (90_000 if number % 9 == 0 else 0),
                headers={"number": str(number), "nothing": None} if number % 30 == 5 else {},
            )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log directory after a life: written to, stopped, killed, recovered, and stopped."""
    with daemon(tmp_path / "data") as running:
        with seglog.connect(running.address) as client:
            for codec in CODECS:
                client.create_topic(codec, 2, _CONFIG)
            client.create_topic("mixed", 1, _CONFIG)
            client.create_topic("append-time", 1, _CONFIG | {"message.timestamp.type": "LogAppendTime"})
        for turn in range(3):
            with seglog.connect(running.address) as client:
                for codec in CODECS:
                    for topic in (codec, "mixed", "append-time"):
                        _produce(client, topic, codec, 300 * turn)
                if turn == 1:
                    producer = client.producer("none", ack="none", batch_bytes=6_000, linger_ms=0)
                    for _ in range(1000):
                        producer.send(b"x" * 100)
                    running.kill()
            assert turn == 1 or running.stop() == 0
            if turn < 2:
                running.start()
    return tmp_path / "data"


# --- The judgement ----------------------------------------------------------------------------------------------------


def _as_dumped(row: Row) -> DumpedRecord:
    offset, timestamp, _, key, value, _ = row
    return DumpedRecord(offset, timestamp, *(-1 if data is None else len(b64decode(data)) for data in (key, value)))


def test_kafka_finds_nothing_to_complain_about_and_reads_what_we_read(data: Path, kafka: Path) -> None:
    found = dump(kafka, files_of(data))
    assert found.complaints == []
    with adopted(data) as logs:
        ours = {f"{topic}-{number}": read_everything(log) for (topic, number), log in logs.logs.items()}
        assert all(len(log.segments) > 1 for (topic, _), log in logs.logs.items() if topic in {"none", "mixed"})
    assert not any(read.damaged for read in ours.values())
    assert found.records == {name: [_as_dumped(row) for row in read.rows] for name, read in ours.items() if read.rows}
    assert all(found.producers[f"{codec}-0"] for codec in CODECS)
    for codec in CODECS:
        assert found.codecs[f"{codec}-0"] == {codec}
    assert found.codecs["mixed-0"] >= set(CODECS)
