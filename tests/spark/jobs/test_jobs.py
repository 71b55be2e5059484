"""The jobs on a real broker and a real Spark, against plain Python."""

import json
import random
from collections import Counter, defaultdict
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from seglog.cli.arguments import Options
from seglog.cli.exits import InputError
from seglog.client import Client
from seglog.core.moments import from_epoch_ms
from seglog.core.partitioner import partition_for_key
from seglog.core.records import Record
from seglog_spark.jobs import running
from tests.processes import Daemon, seglog
from tests.spark.conftest import Command, Job

pytestmark = [pytest.mark.timeout(900)]

START_MS = 1_546_300_800_000
HOUR_MS = 3_600_000

Content = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


def produce(
    client: Client, topic: str, count: int, *, start: int = 0, keys: int = 500, value_bytes_max: int = 600
) -> None:
    """Records of every kind: without key, value or headers, out of time's order, partition 3 left empty."""
    choose = random.Random(start)
    client.create_topic(topic, partitions=4, config={"segment.bytes": 1 << 20, "retention.ms": -1}, exist_ok=True)
    with client.producer(topic, ack="os", compression="zstd", batch_bytes=20_000) as producer:
        for number in range(start, start + count):
            key = f"key {choose.randrange(keys)}" if number % 7 else None
            producer.send(
                None if number % 10 == 9 else choose.randbytes(choose.randrange(value_bytes_max)),
                key=key,
                partition=choose.randrange(3) if key is None else partition_for_key(key.encode(), 3),
                timestamp=START_MS + number * 1001 - choose.randrange(5000),
                headers=[("n", b"%d" % number), ("n", None), ("", b"")] if number % 3 == 0 else [],
            )


def records(client: Client, topic: str) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = defaultdict(list)
    with client.consumer(topic) as consumer:
        for record in consumer:
            found[record.partition].append(record)
    return found


def content(found: dict[int, list[Record]]) -> dict[int, list[Content]]:
    """What a record has without its offset; a header of the sink is none of its own."""
    return {
        partition: [
            (r.key, r.value, r.timestamp, tuple((k, v) for k, v in r.headers if k != "seglog.spark")) for r in some
        ]
        for partition, some in found.items()
    }


def in_files(folder: Path) -> dict[int, list[tuple[int, Content]]]:
    """What an engine that knows nothing of seglog reads: offset and content, in the order of files and rows."""
    found: dict[int, list[tuple[int, Content]]] = defaultdict(list)
    for row in ds.dataset(folder, format="parquet").to_table().to_pylist():
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or [])
        time_ms = -1 if row["timestamp"] is None else int(row["timestamp"].timestamp() * 1000 + 0.5)
        found[row["partition"]].append((row["offset"], (row["key"], row["value"], time_ms, headers)))
    return found


def with_offsets(found: dict[int, list[Record]]) -> dict[int, list[tuple[int, Content]]]:
    contents = content(found)
    return {p: [(r.offset, c) for r, c in zip(some, contents[p], strict=True)] for p, some in found.items()}


@pytest.mark.parametrize("layout", [(), ("--partition-by", "month")], ids=["flat", "month"])
def test_an_archive_goes_on_with_spark_and_without(
    layout: tuple[str, ...], job: Job, running: Daemon, client: Client, topic: str, tmp_path: Path
) -> None:
    """What a group has committed is for people: the archive itself says where to go on."""
    out, group = tmp_path / "archive", f"{topic}-archive"
    archive = ("archive", "--topic", topic, "--out", str(out), "--group", group, *layout)

    def without_spark() -> dict[str, Any]:
        done = seglog(running.address, *archive, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    summary: dict[str, Any] = {}
    for number, archived in enumerate((without_spark, lambda: job(*archive), without_spark)):
        produce(client, topic, 300, start=number * 300)
        if number == 0:
            client.truncate_topic(topic, {0: 40})
        else:
            client.reset_group(group, "earliest")
        summary = archived()
        assert summary["records"] == (300 if number else 260)
        assert {path.split("/")[0] for path in summary["files"]} <= {
            f"topic={topic}",
            *(f"{topic}-{p}" for p in range(4)),
        }
        assert client.describe_group(group).records == 0
    there = records(client, topic)
    ends = {str(p): [there[p][0].offset, there[p][-1].offset + 1] for p in range(3)}
    assert summary["partitions"] == ends | {"3": [0, 0]}
    assert job(*archive)["files"] == []
    assert {partition: sorted(some, key=itemgetter(0)) for partition, some in in_files(out).items()} == with_offsets(
        there
    )
    assert job("replay", "--in", str(out), "--to-topic", f"{topic}-again")["records"] == 860
    assert content(records(client, f"{topic}-again")) == content(there)
    assert client.describe_topic(f"{topic}-again").partitions == 4


def test_replay_takes_a_range_and_keeps_what_it_is_told_to_keep(
    job: Job, command: Command, client: Client, topic: str
) -> None:
    produce(client, topic, 600)
    target = f"{topic}-part"
    client.create_topic(target, partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    since, until = START_MS + 100_000, START_MS + 300_000
    part = ("replay", "--topic", topic, "--to-topic", target, "--from", f"@{since}", "--until", f"@{until}")
    code, _, said = command(*part)
    assert (code, "has fewer partitions (2) than there are to preserve (4)" in said) == (4, True)
    code, _, said = command(*part, "--preserve", "key,timestamp")
    assert (code, "leave timestamp out of --preserve" in said) == (2, True)
    assert records(client, target) == {}
    found = job(*part, "--preserve", "key", "--rate", "100000", "--ack", "os")
    wanted = []
    for some in records(client, topic).values():
        begin = next(n for n, r in enumerate(some) if r.timestamp >= since)
        end = next(n for n, r in enumerate(some) if r.timestamp >= until)
        wanted += some[begin:end]
    assert found["records"] == len(wanted) > 100
    appended = [r for some in records(client, target).values() for r in some]
    assert Counter((r.key, r.value, tuple(r.headers)) for r in appended) == Counter(
        (r.key, r.value, tuple(r.headers)) for r in wanted
    )
    assert all(r.partition == partition_for_key(r.key, 2) for r in appended if r.key is not None)
    assert min(r.timestamp for r in appended) > until


@pytest.mark.soak
def test_where_there_is_nothing_to_write_no_topic_is_made(
    job: Job, command: Command, client: Client, topic: str, tmp_path: Path
) -> None:
    produce(client, topic, 50)
    target = f"{topic}-target"
    replay = ("replay", "--topic", topic, "--to-topic", target, "--job-id", f"{topic}-j")
    for start, until in (("2020-01-01", "2019-01-01"), ("30", "20"), ("latest", "earliest"), ("-1h", "-2h")):
        code, _, said = command(*replay, f"--from={start}", f"--until={until}")
        assert (code, f"--from {start} is after --until {until}" in said) == (2, True)
    for moments in (("--from", "latest"), ("--until", "earliest"), ("--from", "5", "--until", "5")):
        found = job(*replay, *moments)
        assert (found["records"], found["is_repeated"]) == (0, False)
    compact = ("compact", "--topic", topic, "--before-offset", "0")
    assert job(*compact, "--to-topic", target, "--job-id", f"{topic}-j")["records"] == 0
    assert job(*compact, "--out", str(tmp_path))["files"] == []
    assert target not in {found.name for found in client.topics()}
    assert job(*replay)["records"] == 50  # an id under which nothing was written is free


def plain_latest(
    found: dict[int, list[Record]], *, keep_null: bool, delete_tombstones: bool, before: int
) -> dict[int, list[Record]]:
    """A compaction by a dict."""
    latest: dict[int, list[Record]] = {}
    for partition, some in found.items():
        newest: dict[bytes, Record] = {}
        without_key = []
        for record in some:
            if record.offset >= before:
                continue
            if record.key is None:
                without_key.append(record)
            else:
                newest[record.key] = record
        kept = [r for r in newest.values() if r.value is not None or not delete_tombstones]
        latest[partition] = sorted([*kept, *(without_key if keep_null else [])], key=lambda r: r.offset)
    return latest


@pytest.mark.soak
def test_compact_equals_a_plain_dict(job: Job, command: Command, client: Client, topic: str, tmp_path: Path) -> None:
    produce(client, topic, 3_000)
    there = records(client, topic)
    every = plain_latest(there, keep_null=True, delete_tombstones=False, before=1 << 60)
    out = tmp_path / "compacted"
    compact = ("compact", "--topic", topic, "--out", str(out))
    assert job(*compact)["records"] == sum(map(len, every.values()))
    assert in_files(out) == with_offsets(every)
    assert job(*compact)["files"] == []  # there already

    job("archive", "--topic", topic, "--out", str(tmp_path / "archive"))
    strict = ("--null-keys", "drop", "--delete-tombstones", "--before-offset", "700")
    other = ("compact", "--in", str(tmp_path / "archive"), "--out", str(out), *strict)
    code, _, said = command(*other)
    assert (code, "add --overwrite" in said) == (1, True)
    job(*other, "--overwrite")
    few = plain_latest(there, keep_null=False, delete_tombstones=True, before=700)
    assert in_files(out) == with_offsets(few)

    replayed, latest = f"{topic}-replayed", f"{topic}-latest"
    job("replay", "--in", str(out), "--to-topic", replayed)
    assert content(records(client, replayed)) == content(few)
    into_topic = ("compact", "--topic", topic, "--to-topic", latest, "--job-id", "j", "--delete-tombstones")
    assert job(*into_topic)["records"] > 0
    assert job(*into_topic)["is_repeated"]
    assert content(records(client, latest)) == content(
        plain_latest(there, keep_null=True, delete_tombstones=True, before=1 << 60)
    )


@pytest.mark.soak
def test_a_report_equals_a_plain_count(job: Job, client: Client, topic: str, tmp_path: Path) -> None:
    produce(client, topic, 2_000)
    produce(client, topic, 2_000, start=40_000_000)  # a year later
    plain: dict[tuple[int, int], list[int]] = {}
    for partition, some in records(client, topic).items():
        for r in some:
            row = plain.setdefault((partition, r.timestamp // HOUR_MS * HOUR_MS), [0, 0, r.timestamp, 0, 0])
            row[:2] = [row[0] + 1, row[1] + len(r.key or b"") + len(r.value or b"")]
            row[2:] = [min(row[2], r.timestamp), max(row[3], r.timestamp), row[4] + (r.key is None)]
    report = job("report", "--topic", topic)
    assert as_plain(report["rows"]) == plain
    assert report["records"] == sum(found["records"] for found in report["partitions"]) == 4_000
    archive, rows = tmp_path / "archive", tmp_path / "rows.parquet"
    job("archive", "--topic", topic, "--out", str(archive))
    by_year = ("report", "--in", str(archive), "--by", "year", "--format", "parquet", "--out", str(rows))
    assert job(*by_year)["records"] == 4_000
    years = Counter(from_epoch_ms(r.timestamp).year for some in records(client, topic).values() for r in some)
    assert {row["period"].year: row["records"] for row in pq.read_table(rows).to_pylist()} == years
    assert years.keys() == {2018, 2019, 2020}


def as_plain(rows: list[dict[str, Any]]) -> dict[tuple[int, int], list[int]]:
    names = ("records", "bytes", "min_timestamp", "max_timestamp", "null_keys")
    return {(row["partition"], row["period"]): [row[name] for name in names] for row in rows}


def test_a_spark_that_does_not_start_leaves_folders_as_they_were(
    command: Command, job: Job, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(client, topic, 200)
    there = tmp_path / "there"
    job("compact", "--topic", topic, "--out", str(there))
    before = in_files(there)

    def refuse(_: Options) -> None:
        raise InputError("Spark does not start with --master bogus")

    monkeypatch.setattr(running, "_spark", refuse)
    for name in ("archive", "compact"):
        code, _, said = command(name, "--topic", topic, "--out", str(tmp_path / name), "--master", "bogus")
        assert (code, "Spark does not start" in said) == (1, True)
        assert not (tmp_path / name).exists()
    code, _, _ = command("compact", "--topic", topic, "--out", str(there), "--null-keys", "drop", "--overwrite")
    assert code == 1
    assert in_files(there) == before


def test_summaries_name_whole_paths(
    job: Job, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(client, topic, 50)
    monkeypatch.chdir(tmp_path)
    assert job("archive", "--topic", topic, "--out", "a")["out"] == str(tmp_path / "a")
    assert job("compact", "--in", "a", "--out", "c")["out"] == str(tmp_path / "c")
    assert job("report", "--in", "a", "--out", "r")["out"] == str(tmp_path / "r")


def test_what_cannot_be_is_said_in_a_sentence(command: Command, client: Client, topic: str, tmp_path: Path) -> None:
    produce(client, topic, 50)
    here, file = str(tmp_path), tmp_path / "file"
    file.write_text("a letter")
    for arguments, code, sentence in (
        (("archive", "--topic", f"{topic}s", "--out", f"{here}/a"), 4, f"did you mean {topic}"),
        (("archive", "--topic", topic, "--out", here), 1, "is not an archive of seglog"),
        (("archive", "--topic", topic, "--out", str(file)), 1, "is a file; an archive is a folder"),
        (("compact", "--topic", topic, "--out", "s3://there"), 2, "write a folder"),
        (("archive", "--topic", topic, "--out", "ftp://there"), 2, "there is no kind of destination ftp://"),
        (("archive", "--topic", topic, "--out", f"{here}/a", "--trigger", "5"), 2, "--trigger is how often --follow"),
        (("replay", "--in", f"{here}/none", "--to-topic", "x"), 1, "holds no archive of seglog"),
        (("replay", "--topic", topic, "--to-topic", topic), 2, "is read and written"),
        (("replay", "--topic", topic, "--to-topic", "x", "--from", "tomorow"), 2, "is neither an offset nor a time"),
        (("replay", "--topic", topic, "--to-topic", "x", "--ack", "none", "--job-id", "x"), 2, "needs an ack"),
        (("compact", "--topic", topic, "--out", here, "--job-id", "x"), 2, "--job-id is for writing to a topic"),
        (("report", "--topic", topic, "--by", "hour,day"), 2, "names two periods"),
        (("report", "--topic", topic, "--format", "parquet"), 2, "needs --out FILE"),
    ):
        found, out, said = command(*arguments)
        assert (found, out) == (code, ""), arguments
        assert sentence in said, said
    assert not Path(f"{here}/a").exists()
