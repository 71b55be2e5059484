"""docs/LATE-DATA.md: its programs run on the real events, and its numbers are what they give."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seglog.client import Client
from tests.processes import Daemon
from tests.spark.commit_events import commit_events, produce
from tests.spark.test_page import blocks
from tests.support import REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = (REPOSITORY / "docs" / "LATE-DATA.md").read_text(encoding="utf-8")
TABLE = re.findall(
    r"^\| (together|each its own|each its own, `max`) \| (\S+) \| (\d+ days) \| (.*) \|$", PAGE, re.MULTILINE
)
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


def counted(spark: "SparkSession", frame: "DataFrame", run: Any, folder: Path) -> list[int]:
    """Micro-batches, records in windows that closed, that are open, in none, and what Spark says was dropped."""
    progress = run(frame, str(folder))
    closed, still_open = (
        found.selectExpr("sum(count)").first()[0]
        for found in (
            spark.read.parquet(str(folder / "windows")),
            spark.read.format("statestore").load(str(folder / "checkpoint")).select("value.count"),
        )
    )
    read = sum(batch.numInputRows for batch in progress)
    dropped = sum(state.numRowsDroppedByWatermark for batch in progress for state in batch.stateOperators)
    return [len(progress), closed, still_open, read - closed - still_open, dropped]


def test_the_programs_and_numbers_of_the_page(
    spark: "SparkSession", running: Daemon, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = commit_events()
    produce(client, "events", events)
    names: dict[str, Any] = {}
    programs = [program for language, program in blocks(PAGE, running, tmp_path) if language == "python"]
    for program in programs[:2]:
        exec(compile(program, "docs/LATE-DATA.md", "exec"), names)
    assert sum(batch.numInputRows for batch in names["progress"]) == 2 * len(events)

    found = []
    for number, (read, limit, delay, _) in enumerate(TABLE):
        frame = names["together" if read == "together" else "by_partition"]
        spark.conf.set(POLICY, "max" if "max" in read else "min")
        offsets = len(events) if limit == "none" else int(limit.replace(",", ""))
        numbers = counted(spark, names["counts"](frame(offsets, delay)), names["run"], tmp_path / str(number))
        found.append((read, limit, delay, " | ".join(f"{one:,}" for one in numbers)))
        print(found[-1])
    spark.conf.unset(POLICY)
    assert found == TABLE

    capsys.readouterr()
    for program in programs[2:]:
        exec(compile(program, "docs/LATE-DATA.md", "exec"), names)
    assert capsys.readouterr().out.splitlines() == [str(len(events))] * 2


def test_what_duplicates_within_a_watermark_lose(
    spark: "SparkSession", running: Daemon, client: Client, topic: str, tmp_path: Path
) -> None:
    """Of each event and the same one a hundred records later, those that are late are lost with both."""
    events = [event for event in commit_events() if event["ts"] >= 1_704_067_200_000]
    client.create_topic(topic, partitions=1, config={"retention.ms": -1, "segment.ms": 1 << 40})
    with client.producer(topic, ack="os") as producer:
        for number, event in enumerate(events):
            for one in (event, *events[number - 100 : number - 99 if number >= 100 else 0]):
                producer.send(None, key=one["commit"] + one["path"], timestamp=one["ts"])
    kept = []
    for limit, delay in ((100_000, "1 day"), (1000, "1 day"), (200, "1 day"), (1000, "30 days")):
        reader = spark.readStream.format("seglog").options(servers=running.address, subscribe=topic)
        frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=limit).load().select("key", "timestamp")
        once = frame.withWatermark("timestamp", delay).dropDuplicatesWithinWatermark(["key"])
        folder = tmp_path / f"{limit} {delay}"
        writer = once.writeStream.format("parquet").option("path", str(folder / "rows"))
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        kept += [spark.read.parquet(str(folder / "rows")).count(), query.lastProgress.stateOperators[0].numRowsTotal]
    assert kept == [15_809, 153, 15_806, 153, 15_756, 153, 15_809, 3_371]
    assert all(f"{number:,}" in PAGE for number in kept)
