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
