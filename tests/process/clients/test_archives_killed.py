"""Archives whose runs are killed at any moment, also between their files and the commit, and run again."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

import seglog
from seglog_spark.tables.iceberg import CATALOG_FILE, NAMESPACE
from tests.processes import PACKAGES, Daemon, clean_environment, daemon, seglog_command
from tests.support import soak_seed

COLUMNS = ["partition", "offset", "timestamp", "key", "value"]
YEAR_MS = 365 * 24 * 3600 * 1000


def events(first: int, count: int) -> pa.Table:
    """Events whose times are spread over two years, in no order."""
    numbers = np.arange(first, first + count)
    texts = pc.cast(pa.array(numbers), pa.string())
    return pa.table(
        {
            "key": pc.cast(pa.array(numbers % 5000), pa.string()),
            "value": pc.binary_join_element_wise('{"event": ', texts, ', "path": "a/b/c"}', ""),
            "timestamp": pa.array(numbers * 7919 % (2 * YEAR_MS), pa.timestamp("ms", "UTC")),
        }
    )


def parquet_rows(folder: Path) -> pa.Table:
    """Those of an archive, as any engine reads a folder."""
    return ds.dataset(folder, format="parquet").to_table(columns=COLUMNS)


def delta_rows(folder: Path) -> pa.Table:
    """Those of the table's newest version, by delta-rs."""
    return DeltaTable(folder).to_pyarrow_table(columns=COLUMNS)


def iceberg_rows(folder: Path) -> pa.Table:
    """Those of the table's newest snapshot, by pyiceberg."""
    catalog = SqlCatalog("seglog", uri=f"sqlite:///{folder}/{CATALOG_FILE}")
    try:
        return catalog.load_table((NAMESPACE, "events")).scan(selected_fields=tuple(COLUMNS)).to_arrow()
    finally:
        catalog.close()


READERS: dict[str, Callable[[Path], pa.Table]] = {
    "parquet": parquet_rows,
    "delta": delta_rows,
    "iceberg": iceberg_rows,
}
"""Format -> what reads a whole table."""


def log_rows(running: Daemon) -> pa.Table:
    with seglog.read_arrow(running.address, "events", columns=COLUMNS) as reader:
        return reader.read_all()


def in_order(rows: pa.Table) -> pa.Table:
    schema = pa.schema([(name, kind) for name, kind in zip(COLUMNS, _KINDS, strict=True)])
    return rows.select(COLUMNS).cast(schema).sort_by([("partition", "ascending"), ("offset", "ascending")])


_KINDS = (pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.large_binary(), pa.large_binary())


def moments(out: Path) -> Iterator[Callable[[], bool]]:
    """When to kill: once there is a plan, a file is begun, some are there, all are there but the commit; and again."""

    def planned() -> list[Any]:
        with suppress(FileNotFoundError):
            found: list[Any] = json.loads((out / "_manifest.json").read_bytes())["planned"]
            return found
        return []

    def files() -> int:
        return sum(1 for _ in out.rglob("*.parquet"))

    seed = soak_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    while True:
        before, more = files(), 1 + dice.randrange(4)
        yield lambda: bool(planned())
        yield lambda: any(out.rglob(".*.tmp"))
        yield lambda before=before, more=more: files() >= before + more  # type: ignore[misc]
        before = files()
        yield lambda before=before: bool(planned()) and files() >= before + len(planned())  # type: ignore[misc]


@pytest.mark.parametrize("table_format", READERS)
@pytest.mark.parametrize(
    "layout", [pytest.param((), marks=pytest.mark.soak), ("--partition-by", "month")], ids=["flat", "month"]
)
@pytest.mark.parametrize(
    ("count", "kills"), [(40_000, 4), pytest.param(5_000_000, 20, marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_an_archive_that_is_killed_has_the_rows_of_the_log(
    table_format: str, layout: tuple[str, ...], count: int, kills: int, tmp_path: Path
) -> None:
    out, each = tmp_path / "archive", count // (kills + 1)
    options = ("--topic", "events", "--out", str(out), "--format", table_format, "--target-file-mb", "1", *layout)
    times = moments(out)
    with daemon(tmp_path / "data") as running:
        with seglog.connect(running.address) as client:
            client.create_topic("events", 3, {"retention.ms": -1, "segment.bytes": 1 << 20})
        command = [*seglog_command(running.address, "archive"), *options, "--json"]
        killed = 0
        for number in range(kills + 1):
            seglog.write_arrow(running.address, "events", events(number * each, each), ack="os")
            is_last = number == kills
            said = (tmp_path / "said").open("wb")
            with said, subprocess.Popen(command, env=clean_environment(), stdout=said, stderr=said) as process:
                is_time = next(times)
                while process.poll() is None and (is_last or not is_time()):
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.002)
                process.kill()
                killed += process.wait() != 0
            assert not is_last or process.returncode == 0, (tmp_path / "said").read_text()
        assert killed  # some are faster than the test looks
        assert in_order(READERS[table_format](out)).equals(in_order(log_rows(running)))
        assert not list(out.rglob("*.tmp"))
        assert json.loads((out / "_manifest.json").read_bytes())["planned"] == []


RACER = """
import sys
from pathlib import Path
from seglog.cli.exits import InputError
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.parquet_files import write_file
from seglog_spark.tables.stores import Folder
from tests.spark.jobs.records import batches
if sys.argv[1] == "delta":
    from seglog_spark.tables.delta import Delta as Table
else:
    from seglog_spark.tables.iceberg import Iceberg as Table
store, step, end = Folder(Path(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
table = Table(store, "events", "id")
sys.stdin.readline()
while (start := table.ends().get(0, 0)) < end:
    r = OffsetRange("events", 0, start, min(end, start + step))
    try:
        table.commit([write_file(store, r, batches(r), "none")], {0: r.end})
    except InputError:
        continue
"""


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize("end", [100, pytest.param(2000, marks=pytest.mark.soak)])
def test_of_two_processes_that_no_claim_keeps_apart_each_range_counts_once(
    table_format: str, end: int, tmp_path: Path
) -> None:
    """Of two processes that no claim keeps apart, each range counts once, and rows are in one file."""
    environment = clean_environment(PYTHONPATH=f"{PACKAGES}{os.pathsep}.")
    given = [sys.executable, "-c", RACER, table_format, str(tmp_path)]
    racers = [
        subprocess.Popen([*given, step, str(end)], env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for step in ("7", "10")
    ]
    with racers[0], racers[1]:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"\n")
            racer.stdin.flush()
        said = [racer.communicate()[1] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0], said
    assert sorted(READERS[table_format](tmp_path)["offset"].to_pylist()) == list(range(end))
