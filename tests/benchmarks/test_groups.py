"""Benchmarks of consumer groups and of transactions, from the command line to JSON, alone and beside a real Kafka."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from tests.interop.peer import kafka_script
from tests.support import REPOSITORY


def run(directory: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """Its rows by group and name. It must have measured everything it was asked for."""
    found = directory / "found.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--directory", str(directory)]
    done = subprocess.run(
        [*command, "--json", str(found), *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"KAFKA_HEAP": "-Xms128m -Xmx400m"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {
        f"{row['group']}: {row['name']} / {row['beside_name']}": row for row in json.loads(found.read_text())["rows"]
    }


@pytest.mark.slow
def test_commits_and_rebalances_beside_a_real_kafka(tmp_path: Path) -> None:
    scripts = kafka_script().parent.parent
    rows = run(tmp_path, "--only", "group-commits", "group-rebalance", "--beside-kafka", str(scripts))
    assert not [name for name, row in rows.items() if row["note"]]
    for committers in ("1 committer", "16 committers", "64 committers"):
        for side in ("Kafka's listener", "native"):
            for beside in ("Kafka, disk", "Kafka, os"):
                row = rows[f"group-commits: {committers}, {side} / {beside}"]
                assert row["unit"] == "commits/s"
                assert min(*row["values"], *row["beside"]) > 0
    for what in ("one joins 10", "and leaves", "slowest append meanwhile"):
        row = rows[f"group-rebalance: {what} / Kafka"]
        assert len(row["values"]) == len(row["beside"]) == 1
        assert min(*row["values"], *row["beside"]) > 0
    assert rows["group-rebalance: one joins 100, state machine alone, CPU / "]["median"] > 0


@pytest.mark.slow
def test_transactions_beside_a_real_kafka(tmp_path: Path) -> None:
    scripts = kafka_script().parent.parent
    rows = run(tmp_path, "--only", "transactions", "--beside-kafka", str(scripts))
    assert not [name for name, row in rows.items() if row["note"]]
    for case in ("1 producer, 1 record", "1 producer, 1,000 records", "16 producers, 10 records"):
        for side in ("Kafka's listener", "native"):
            for beside in ("Kafka, disk", "Kafka, os"):
                row = rows[f"transactions: {case}, {side} / {beside}"]
                assert row["unit"] == "transactions/s"
                assert min(*row["values"], *row["beside"]) > 0


@pytest.mark.slow
def test_groups_are_loaded_after_a_kill_with_all_their_offsets(tmp_path: Path) -> None:
    # The benchmark itself fails where a group lacks an offset, or is answered with an error.
    rows = run(tmp_path, "--only", "group-loading")
    for count in ("2,000", "20,000"):
        for what in ("it serves", "another topic answers", "all groups answer", "memory then"):
            row = rows[f"group-loading: {count} commits: {what} / one group"]
            assert min(*row["values"], *row["beside"]) > 0


def test_without_a_kafka_the_rows_say_so_and_seglog_is_measured(tmp_path: Path) -> None:
    absent = tmp_path / "none"
    rows = run(tmp_path, "--only", "group-commits", "transactions", "--beside-kafka", str(absent))
    assert rows["group-commits: 1 committer, Kafka's listener / native"]["median"] > 0
    assert rows["transactions: 16 producers, 1,000 records, Kafka's listener / native"]["median"] > 0
    for group in ("group-commits", "transactions"):
        assert rows[f"{group}: beside a real Kafka / "]["note"] == f"not measured: {absent}/kafka/kafka is missing"


def test_kafka_stands_beside_the_groups_or_among_the_peers_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--peers", "x", "--beside-kafka", "y"])
    assert ended.value.code == 2
    assert "--beside-kafka" in capsys.readouterr().err
