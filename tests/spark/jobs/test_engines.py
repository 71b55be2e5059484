"""What docs/ARCHIVE.md and docs/ARROW.md show for other engines is run by these engines.

pandas is not in the environment of the other tests: it comes with Spark, and is tried in that lane.
"""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest

import seglog
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.manifest import Manifest, save
from seglog_spark.tables.parquet_files import write_file
from seglog_spark.tables.periods import write_by_period
from seglog_spark.tables.stores import Folder
from tests.processes import daemon
from tests.spark.jobs.records import DAY_US, batches, timed
from tests.support import REPOSITORY

RANGES = (OffsetRange("commits", 0, 0, 30), OffsetRange("commits", 0, 30, 40), OffsetRange("commits", 1, 7, 20))
RECORDS = sum(r.size for r in RANGES)
COMMITS = pa.table({"value": ['{"path": "a/b", "lines": 3}', None, '{"path": "é", "lines": 4}']})


def calls(document: str, heading: str) -> dict[str, str]:
    """The calls in the table under ``heading``: what reads, and the code."""
    text = (REPOSITORY / "docs" / document).read_text()
    section = text.split(f"# {heading}\n", 1)[1]
    table = re.search(r"^\|---.*\n((?:\|.*\|\n)+)", section, re.MULTILINE)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table[1].splitlines()]
    return {row[0]: re.findall(r"`([^`]+)`", row[1])[0] for row in rows}


def read_archive(engine: str, archive: str) -> int:
    """How many records the documented call finds."""
    code = calls("ARCHIVE.md", "Reading")[engine]
    modules: dict[str, Any] = {"pyarrow": pa, "polars": pl, "duckdb": duckdb}
    if engine == "pandas":
        modules["pandas"] = importlib.import_module("pandas")
        code = code if archive == "by offset" else code.replace(")", ", partitioning=None)")  # as it says further down
    if engine == "Spark":
        modules["spark"] = importlib.import_module("seglog_spark").session("engines")
        code = code.replace("./lake", f"{Path.cwd()}/lake")  # Spark may have been started somewhere else
        if archive == "by date":
            assert (
                eval(re.sub(r'[.]option[(]"recursive.*?[)]', "", code), modules).select("date").distinct().count() == 3
            )
        return int(eval(code, modules).count())
    return len(eval(code, modules))


def engines(document: str, heading: str) -> list[Any]:
    """Those that a document reads with."""
    return [engine for engine in calls(document, heading) if engine != "back"]


@pytest.fixture(params=["by offset", pytest.param("by date", marks=pytest.mark.soak)])
def archive(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An archive as a run leaves it, where the documents have it; its layout."""
    (tmp_path / "lake").mkdir()
    folder = Folder(tmp_path / "lake" / "commits")
    with folder.claimed():
        written = []
        for r in RANGES:
            rows = timed(batches(r, (), rows_max=7), lambda offset: (17_890 + offset % 3) * DAY_US)
            if request.param == "by date":
                written += write_by_period(folder, "date", r, rows, "zstd")
            else:
                written.append(write_file(folder, r, rows, "zstd"))
        save(folder, Manifest("commits", "i" * 22, planned=tuple(RANGES)).with_written(written))
    monkeypatch.chdir(tmp_path)
    layout: str = request.param
    return layout


@pytest.mark.parametrize("engine", engines("ARCHIVE.md", "Reading"))
def test_an_archive_is_read_by_each_engine_as_the_document_says(
    engine: str, archive: str, request: pytest.FixtureRequest
) -> None:
    if engine == "Spark":
        request.getfixturevalue("spark")  # the one that there is, for whoever asks for one
    assert read_archive(engine, archive) == RECORDS


@pytest.mark.parametrize("engine", engines("ARROW.md", "Into other tools"))
def test_a_topic_is_read_by_each_engine_as_the_document_says(engine: str, tmp_path: Path) -> None:
    with daemon(tmp_path / "data") as running:
        seglog.write_arrow(running.address, "measured", pa.table({"value": [b"a", b"b", b"c"], "key": ["x", "x", "y"]}))
        reader = seglog.read_arrow(running.address, "measured")
        code = calls("ARROW.md", "Into other tools")[engine].replace("localhost:9192", running.address)
        if engine == "DuckDB":
            query = re.findall(r"`duckdb[.]sql[(]\"(.*)\"[)]`", (REPOSITORY / "docs/ARROW.md").read_text())[0]
            assert sorted(duckdb.execute(query).fetchall()) == [(b"x", 2), (b"y", 1)]
        elif engine == "Parquet":
            exec(code.replace('"folder"', repr(str(tmp_path / "folder"))), {"pyarrow": pa, "reader": reader})
            assert pl.read_parquet(tmp_path / "folder").height == 3
        else:
            assert len(eval(code, {"seglog": seglog, "polars": pl})) == 3
        reader.close()


@pytest.mark.parametrize("engine", engines("ARROW.md", "JSON and other text"))
def test_json_is_read_by_each_engine_as_the_document_says(engine: str, tmp_path: Path) -> None:
    with daemon(tmp_path / "data") as running:
        seglog.write_arrow(running.address, "commits", COMMITS)
        code = calls("ARROW.md", "JSON and other text")[engine]
        reader = seglog.read_arrow(running.address, "commits", decode="utf8")
        modules: dict[str, Any] = {"reader": reader, "polars": pl, "duckdb": duckdb, "json": json}
        if engine == "DuckDB":
            (query,) = re.findall(r"duckdb[.]sql[(]\"(.*)\"[)]", code)
            assert sorted(duckdb.execute(query).fetchall(), key=str) == [("a/b", 3), ("é", 4)]
        elif engine == "pandas":
            modules["pandas"] = importlib.import_module("pandas")
            assert eval(code, modules).to_dict("list") == {"path": ["a/b", "é"], "lines": [3, 4]}
        else:
            assert eval(code, modules).drop_nulls().to_dict(as_series=False) == {"path": ["a/b", "é"], "lines": [3, 4]}
