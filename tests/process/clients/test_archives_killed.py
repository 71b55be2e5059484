"""Archives whose runs are killed at any moment, also between their files and the commit, and run again."""

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import seglog
from tests.archive_readers import READERS
from tests.processes import Daemon, clean_environment, daemon, seglog_command
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
        assert in_order(READERS[table_format](out, COLUMNS)).equals(in_order(log_rows(running)))
        assert not list(out.rglob("*.tmp"))
        assert json.loads((out / "_manifest.json").read_bytes())["planned"] == []
