"""Real events in Spark: 101,229 commits of 2011 to 2024, produced by `seglog` and held against the file they are in.

Streams run while drivers and the daemon are killed between two instructions.
"""

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import seglog
from seglog.core.partitioner import partition_for_key
from seglog_protocol.isolation import Isolation
from tests.processes import Daemon, daemon
from tests.processes import seglog as run_seglog
from tests.spark.conftest import require_spark
from tests.spark.drivers import Driver, GivenUpError, dice, driver, newest
from tests.support import shared_data, soak_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="what a driver started is found in /proc"),
]

PARTITIONS = 3
DRIVER_KILLS = 20 if soak_parts() == 1 else 5
DAEMON_KILLS = 3
OFFSETS_PER_TRIGGER = 350
"""290 micro-batches: twenty drivers do not come to the end of them."""
SHUFFLE_PARTITIONS_MAX = 5
"""Each driver has another number, so that behind a shuffle rows are in other tasks than before."""

STREAMS = ("files", "copies", "transacted")


class Event(NamedTuple):
    timestamp: int
    key: bytes
    value: bytes


class Loaded(NamedTuple):
    daemon: Daemon
    expected: dict[tuple[int, int], Event]
    """By partition and offset."""


class Kill(NamedTuple):
    """A driver's end: whether it was running until then, and the newest micro-batches, by stream."""

    hit: bool
    begun: tuple[int, ...]
    committed: tuple[int, ...]


class Survived(NamedTuple):
    folder: Path
    kills: list[Kill]
    daemon_kills: int
    finished: tuple[int, ...]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    require_spark()
    lines = gzip.decompress(shared_data("commit-events.jsonl.gz").read_bytes()).splitlines(keepends=True)
    expected: dict[tuple[int, int], Event] = {}
    ends = [0] * PARTITIONS
    for line in lines:
        fields = json.loads(line)
        key = fields["path"].encode()
        partition = partition_for_key(key, PARTITIONS)
        expected[partition, ends[partition]] = Event(fields["ts"], key, line.rstrip())
        ends[partition] += 1
    with daemon(tmp_path_factory.mktemp("events") / "data") as running:
        for arguments in (
            ("topic", "create", "events", "--partitions", str(PARTITIONS), "--config", "retention.ms=-1"),
            ("topic", "create", "copies", "--partitions", str(PARTITIONS), "--config", "retention.ms=-1"),
            ("topic", "create", "transacted", "--partitions", str(PARTITIONS), "--config", "retention.ms=-1"),
            ("produce", "events", "--format", "json", "--key-field", "path", "--timestamp-field", "ts"),
        ):
            done = run_seglog(running.address, *arguments, stdin=b"".join(lines))
            assert done.returncode == 0, done.stderr.decode()
        yield Loaded(running, expected)


# --- Killed ----------------------------------------------------------------------------------------------------------


def newest_of(folder: Path, what: str) -> tuple[int, ...]:
    return tuple(newest(folder / f"{name}-checkpoint" / what) for name in STREAMS)


def wait_for_commits(running: Driver, folder: Path, count: int) -> None:
    """Return when each stream has committed so many micro-batches more."""
    before = newest_of(folder, "commits")
    while any(now < then + count for now, then in zip(newest_of(folder, "commits"), before, strict=True)):
        running.watch(0.02)


@pytest.fixture(scope="module")
def survived(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Survived:
    """All streams, run to their end by driver after driver: all but the last are killed, the daemon now and then."""
    folder = tmp_path_factory.mktemp("killed")
    choose = dice()
    with_daemon = choose.sample(range(DRIVER_KILLS), DAEMON_KILLS)
    kills: list[Kill] = []
    daemon_kills = 0

    def start(offsets_per_trigger: int) -> AbstractContextManager[Driver]:
        partitions = choose.randint(1, SHUFFLE_PARTITIONS_MAX)
        arguments = (loaded.daemon.address, "events", *STREAMS[1:], str(folder), offsets_per_trigger, partitions)
        return driver("streaming", *map(str, arguments), log=folder / "driver.log")

    while len(kills) < DRIVER_KILLS:
        with suppress(GivenUpError), start(OFFSETS_PER_TRIGGER) as running:
            wait_for_commits(running, folder, choose.randint(1, 3))
            if len(kills) in with_daemon:
                running.watch(choose.random() / 2)
                loaded.daemon.kill()
                loaded.daemon.start()
                daemon_kills += 1
                wait_for_commits(running, folder, 1)
            running.watch(choose.random() / 2)
            hit = running.kill()
            kills.append(Kill(hit, newest_of(folder, "offsets"), newest_of(folder, "commits")))
    while True:
        with suppress(GivenUpError), start(sys.maxsize) as running:
            running.finish()
            break
    return Survived(folder, kills, daemon_kills, newest_of(folder, "commits"))


def test_every_kill_hit_a_driver_at_work(survived: Survived) -> None:
    for number, kill in enumerate(survived.kills):
        print(f"kill {number}: begun {kill.begun}, committed {kill.committed}")
    assert survived.daemon_kills == DAEMON_KILLS
    assert all(kill.hit for kill in survived.kills)
    for before, after in pairwise(kill.committed for kill in survived.kills):
        assert all(then < now for then, now in zip(before, after, strict=True))
    for kill in survived.kills:
        assert all(then < now for then, now in zip(kill.committed, survived.finished, strict=True))
    for stream in range(len(STREAMS)):
        assert any(kill.begun[stream] > kill.committed[stream] for kill in survived.kills)


@pytest.mark.skipif(soak_parts() > 1, reason="few of its many drivers are killed in so few minutes")
def test_micro_batches_went_on_with_the_partitions_that_they_were_begun_with(survived: Survived) -> None:
    refused = (survived.folder / "refused").read_text().splitlines()
    print(refused)
    assert {line.split()[0] for line in refused} == set(STREAMS[1:])


def test_parquet_has_every_record_once(loaded: Loaded, survived: Survived, spark: "SparkSession") -> None:
    found: dict[tuple[int, int], Event] = {}
    frame = spark.read.parquet(str(survived.folder / "files"))
    for row in frame.selectExpr("partition", "offset", "unix_millis(timestamp) as ms", "key", "value").collect():
        place = (row.partition, row.offset)
        assert place not in found
        found[place] = Event(row.ms, bytes(row.key), bytes(row.value))
    assert found == loaded.expected


@pytest.mark.parametrize(("copy", "isolation"), [("copies", "read_uncommitted"), ("transacted", "read_committed")])
def test_a_copy_has_every_record_once_where_it_belongs_and_in_order(
    copy: str, isolation: Isolation, loaded: Loaded, survived: Survived
) -> None:
    found: set[tuple[int, int]] = set()
    read_to: dict[tuple[int, int], int] = {}
    with seglog.connect(loaded.daemon.address) as client, client.consumer(copy, isolation=isolation) as consumer:
        for record in consumer:
            source, offset = map(int, (dict(record.headers)["from"] or b"").split())
            event = loaded.expected[source, offset]
            is_keyed = zlib.crc32(event.value) % 10 != 0
            assert (source, offset) not in found
            assert (record.timestamp, record.value) == (event.timestamp, event.value)
            assert record.key == (event.key if is_keyed else None)
            assert record.partition == source or not is_keyed
            assert read_to.get((source, record.partition), -1) < offset
            read_to[source, record.partition] = offset
            found.add((source, offset))
    assert found == loaded.expected.keys()
