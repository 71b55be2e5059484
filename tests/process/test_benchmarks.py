"""The benchmarks run, and their figures add up: ratios, spreads, what servers have stored."""

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import benchmarks
from benchmarks.harness import BenchmarkError, Goal, Row
from benchmarks.peers import sides
from benchmarks.peers.cases import APPENDS, NATIVE
from benchmarks.peers.results import BARE, KAFKA, RABBITMQ, REDIS, Measure, PeerRow
from tests.processes import finished
from tests.support import REPOSITORY


def test_each_module_can_be_imported() -> None:
    for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # a client of others' that is not installed
            if (error.name or "").startswith(("benchmarks", "seglog")):
                raise


def test_seglog_is_measured_beside_the_bare_loop_and_each_missing_peer_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--directory", str(tmp_path)]
    command += ["--peers", str(tmp_path), "--only", "small"]
    done = finished(command, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "peers.json").read_text())
    assert {*found["left_out"]} == {KAFKA, REDIS, RABBITMQ}
    assert [row["name"] for row in found["rows"]] == [case.name for case in APPENDS if case.group == "small"]
    for row in found["rows"]:
        assert list(row["sides"]) == ["seglog, native", "seglog, Kafka's wire", "bare loop"]
        assert all(len(side["values"]) == 1 and min(side["values"]) > 0 for side in row["sides"].values())
        assert row["name"] in done.stdout


def measures(*values: float, busy: float | None = None) -> list[Measure]:
    return [Measure(value, client_busy=busy, server_cpu_us=value / 5) for value in values]


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # The machine was slow in the second round: that hits both, and says nothing of either.
    goal = Goal("≥", 3.5, "ratio")
    row = PeerRow("small", "a case", "appends/s", {NATIVE: measures(300, 40, 330), KAFKA: measures(100, 20, 100)})
    assert row.ratio(NATIVE) == 3
    assert (row.median(NATIVE), row.median(KAFKA), row.ratio(KAFKA), row.median(BARE)) == (300, 100, None, None)
    beside = Row("a case", "appends/s", row.values(NATIVE), row.values(KAFKA), KAFKA, goal)
    assert beside.spread == pytest.approx(290 / 300)
    assert beside.ratio == 3
    assert goal.is_met(beside) is False
    assert Goal("≤", 300, "value").is_met(beside) is True


def test_servers_that_do_not_agree_with_what_they_acknowledged_or_with_each_other_are_refused() -> None:
    sides.answered_as_stored("Kafka", 10, 148, 1480)
    for stored in (1332, 1481):
        with pytest.raises(BenchmarkError, match=f"Kafka answered 10 appends of 148 records, its log has {stored}"):
            sides.answered_as_stored("Kafka", 10, 148, stored)
    ours, other = SimpleNamespace(found=list), SimpleNamespace(found=lambda times: [at + 1 for at in times])
    sides.agree({"seglog": ours, KAFKA: ours}, range(100))
    with pytest.raises(BenchmarkError, match=r"seglog finds .*, Kafka"):
        sides.agree({"seglog": ours, KAFKA: other}, range(100))
