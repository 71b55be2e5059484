"""docs/SPARK-CLUSTERS.md: what is planned there follows from what was measured."""

import re

import pytest

from seglog.arrow.reading import PIECE_BYTES
from seglog_spark.reading import ROWS_MAX
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "SPARK-CLUSTERS.md").read_text(encoding="utf-8")
ALL_BYTES = 1e13
NETWORK = 1.25e9  # bytes a second
CORES = 100


def table(title: str) -> dict[str, float]:
    """The numbers of a table by the words in its first column."""
    found = re.search(rf"^\| {title} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert found is not None
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in found[1].splitlines()]
    return {name: float(text.split()[0].replace(",", "")) for name, text in rows}


def test_the_plan_of_the_page_follows_from_its_measurements() -> None:
    record, spark, decoding, broker, memory = table("measured").values()
    assert decoding < spark
    millions = ALL_BYTES / record / 1e6
    expected = {
        "records": millions / 1e3,
        "tasks of 1 GiB": ALL_BYTES / 2**30,
        "core hours of executors": millions * spark / 3600,
        "hours on 100 cores": millions * spark / 3600 / CORES,
        "core hours of the broker": millions * broker / 3600,
        "hours on a network of 10 Gbit/s": ALL_BYTES / NETWORK / 3600,
        "cores that fill 10 Gbit/s": NETWORK / (record * 1e6 / spark),
        "memory of Python on 100 cores, GB": CORES * memory / 1e3,
    }
    planned = table("planned")
    assert planned.keys() == expected.keys()
    for name, value in expected.items():
        assert planned[name] == pytest.approx(value, rel=0.03), name


def test_the_page_names_the_sizes_that_the_code_has() -> None:
    assert f"pieces of {PIECE_BYTES >> 20} MiB" in PAGE
    assert f"{ROWS_MAX:,} rows at a time" in PAGE
