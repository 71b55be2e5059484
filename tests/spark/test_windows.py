"""examples/spark_windows.py: counts and late records in Delta tables, once each, whatever is killed."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from examples import spark_windows
from seglog.client import Client
from tests.processes import Daemon
from tests.spark.commit_events import commit_events, partition_of, produce
from tests.spark.drivers import GivenUpError, dice, driver, newest
from tests.spark.test_sink import lose_the_last_note
from tests.support import soak_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
START_MS = 1_546_300_800_000
KILLS = 10 if soak_parts() == 1 else 3

Counts = dict[tuple[date, int], int]


@pytest.fixture
def job(running: Daemon, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example, on this test's broker and topic."""
    monkeypatch.setattr(spark_windows, "SERVER", running.address)
    monkeypatch.setattr(spark_windows, "TOPIC", topic)


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(folder / name).to_pyarrow_table().to_pylist()
    return found


def counts(folder: Path) -> Counts:
    """Of days and partitions, each of which has one row."""
    there = rows(folder, "days")
    found = {(row["day"], row["partition"]): row["records"] for row in there}
    assert len(found) == len(there)
    return found


def day_of(time_ms: int) -> date:
    return datetime.fromtimestamp(time_ms / 1000, UTC).date()


def test_late_records_correct_their_day_and_a_micro_batch_that_is_run_again_changes_nothing(
    spark: "SparkSession",
    job: None,
    client: Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert spark is not None
    monkeypatch.setattr(spark_windows, "OFFSETS_PER_TRIGGER", 20)
    client.create_topic(topic, partitions=2, config={"retention.ms": -1})
    times = [START_MS + number * DAY_MS for number in range(20)]
    plain: Counter[tuple[date, int]] = Counter()

    def send(partition: int, *some: int) -> None:
        with client.producer(topic) as producer:
            for time_ms in some:
                producer.send("{}", timestamp=time_ms, partition=partition)
        plain.update((day_of(time_ms), partition) for time_ms in some)
        spark_windows.main(tmp_path)
        assert counts(tmp_path) == plain

    def late() -> list[tuple[int, int, date]]:
        return [(row["partition"], row["offset"], row["timestamp"].date()) for row in rows(tmp_path, "late")]

    send(0, *times[:10])
    send(1, *times[9:12])
    send(0, times[10])  # and the other one is a day ahead, which nobody is late for
    assert late() == []
    lose_the_last_note(tmp_path / "checkpoint")
    send(0, times[7], times[11], times[9], times[8])
    assert late() == [(0, 11, day_of(times[7])), (0, 14, day_of(times[8]))]
    lose_the_last_note(tmp_path / "checkpoint")
    send(0)
    assert len(late()) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "18 records in 15 rows, 2 of them late"
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    with pytest.raises(SystemExit, match="the tables would get all records once more"):
        spark_windows.main(tmp_path)


def killed(topic: str, folder: Path, server: str) -> Iterator[int]:
    """Runs the example to its end, and kills it so often before; yields the micro-batches that were done each time."""
    choose = dice()
    commits = folder / "checkpoint" / "commits"
    for left in [*([True] * KILLS), False]:
        is_done = False
        while not is_done:
            with (
                suppress(GivenUpError),
                driver("windowing", topic, str(folder), log=folder / "driver.log", SEGLOG_SERVER=server) as running,
            ):
                if left:
                    before = newest(commits)
                    while newest(commits) < before + choose.randint(1, 3):
                        running.watch(0.02)
                    running.watch(choose.random() * 2)
                    assert running.kill()
                else:
                    running.finish()
                is_done = True
        yield newest(commits)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="what a driver started is found in /proc")
def test_tables_of_a_stream_that_was_killed_are_those_of_a_clean_run(
    spark: "SparkSession", job: None, running: Daemon, client: Client, topic: str, tmp_path: Path
) -> None:
    assert spark is not None
    events = commit_events()
    produce(client, topic, events)
    clean, folder = tmp_path / "clean", tmp_path / "killed"
    folder.mkdir()
    spark_windows.main(clean)
    print(list(killed(topic, folder, running.address)))
    assert counts(folder) == counts(clean) == Counter((day_of(e["ts"]), partition_of(e)) for e in events)
    late, of_clean = (
        Counter((row["partition"], row["offset"], row["behind"]) for row in rows(where, "late"))
        for where in (folder, clean)
    )
    assert late == of_clean
    assert len(late) == late.total() > 0
