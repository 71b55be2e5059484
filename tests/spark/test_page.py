"""docs/SPARK.md: its programs run, and its tables name every option and column. docs/SPARK-CLUSTERS.md: its sizes."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seglog.arrow.reading import PIECE_BYTES
from seglog.client import Client
from seglog_spark.options import READ_NAMES, WRITE_NAMES
from seglog_spark.reading import ROWS_MAX
from seglog_spark.schema import COLUMNS
from tests.processes import Daemon
from tests.spark.conftest import Command
from tests.support import REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (REPOSITORY / "docs" / "SPARK.md").read_text(encoding="utf-8")


def first_cells(title: str) -> list[set[str]]:
    """Of each table under a heading, the names in its first column."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    tables = re.findall(r"(?:^\|.*\|\n)+", section[1], re.MULTILINE)
    return [
        {name for line in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", line.split("|")[1])}
        for table in tables
    ]


def test_the_page_names_every_option_and_column() -> None:
    assert first_cells("Reading") == [set(COLUMNS)]
    assert first_cells("Options of a read") == [set(READ_NAMES)]
    columns, options, _ = first_cells("Writing")
    assert columns == {"key", "value", "headers", "timestamp", "partition", "topic"}
    assert options == set(WRITE_NAMES)


def test_the_page_about_clusters_names_the_sizes_that_the_code_has() -> None:
    page = (REPOSITORY / "docs" / "SPARK-CLUSTERS.md").read_text(encoding="utf-8")
    assert f"pieces of {PIECE_BYTES >> 20} MiB" in page
    assert f"{ROWS_MAX:,} rows at a time" in page


def blocks(text: str, running: Daemon, folder: Path) -> list[tuple[str, str]]:
    """Language and program of each block, for that broker and with its own data in ``folder``."""
    text = text.replace("localhost:9192", running.address).replace("./lake/", f"{folder}/")
    text = text.replace("/var/lib/seglog", str(running.directory))
    return re.findall(r"^```(python|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def fill(client: Client) -> None:
    with client.producer("commits", ack="os") as producer:
        for number in range(300):
            producer.send(f"commit {number}", key=f"author {number % 7}")


BEFORE_JOBS, JOBS = re.split(r"^(?=## Jobs$)", PAGE, flags=re.MULTILINE)


@pytest.mark.soak
def test_the_programs_of_the_page_run_in_their_order(
    spark: "SparkSession", running: Daemon, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(client)
    there = sum(place.latest for place in client.offsets("commits"))
    names: dict[str, Any] = {}
    programs = [program for language, program in blocks(BEFORE_JOBS, running, tmp_path) if language == "python"]
    assert len(programs) >= 5
    for program in programs:
        exec(compile(program, "docs/SPARK.md", "exec"), names)
    assert names["spark"] is spark
    assert spark.read.parquet(str(tmp_path / "commits-parquet")).count() == there
    assert "author" in capsys.readouterr().out
    with client.consumer("shouted") as consumer:
        shouted = sorted(record.value or b"" for record in consumer)
    assert shouted == sorted(f"VISIT {number}".encode() for number in range(1000))
    with client.consumer("whispered", isolation="read_committed") as consumer:
        whispered = sorted(record.value or b"" for record in consumer)
    assert whispered == sorted(f"visit {number}".encode() for number in range(1000))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_jobs_of_the_page_run_in_their_order(
    running: Daemon, client: Client, tmp_path: Path, command: Command
) -> None:
    fill(client)
    lines: list[str] = []
    for _, program in blocks(JOBS, running, tmp_path):
        for line in re.findall(r"^seglog spark (.*)$", program, re.MULTILINE):
            lines.append(line)
            code, _, said = command(*shlex.split(line))
            assert code == 0, said
    assert len(lines) == 7
