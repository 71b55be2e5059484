"""The benchmarks run, and their figures add up: ratios, spreads, counts of replies, what servers have stored."""

import importlib
import json
import pkgutil
import socket
import struct
import sys
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchmarks
from benchmarks.__main__ import main
from benchmarks.harness import MB, BenchmarkError, Goal, Row
from benchmarks.peers import compaction, java, load, sides
from benchmarks.peers.cases import APPENDS, NATIVE
from benchmarks.peers.results import BARE, KAFKA, Measure, PeerRow, Results, as_json, from_json, line
from tests.processes import finished
from tests.support import REPOSITORY


def test_each_module_can_be_imported() -> None:
    for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # a client of others' that is not installed
            if (error.name or "").startswith(("benchmarks", "seglog")):
                raise


def test_a_command_line_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, reason in (
        ("--without pure", "--without goes with --peers"),
        ("--peers . --without pure", "--without leaves nothing of seglog"),
        ("--only small", "--only small: choose from append"),
        ("--peers . --only append", "--only append: choose from small"),
        ("--peers x --beside-kafka y", "--beside-kafka goes without --peers"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(arguments.split())
        assert reason in capsys.readouterr().err


def test_seglog_is_measured_beside_the_bare_loop_and_each_missing_peer_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--directory", str(tmp_path)]
    command += ["--peers", str(tmp_path), "--only", "small"]
    done = finished(command, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "peers.json").read_text())
    assert {*found["left_out"]} == {KAFKA}
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


def test_results_come_back_from_json_with_every_round_and_the_limit_is_told() -> None:
    results = Results({}, {"seglog": "1.0"}, {KAFKA: "no Java"})
    slow = {NATIVE: measures(30, 40), KAFKA: measures(10, 10, busy=0.95)}
    results.rows.append(PeerRow("small", "a case", "appends/s", slow, {NATIVE: Goal("≥", 4, "ratio")}))
    found = json.loads(json.dumps(as_json(results)))
    goal = {"goal": ["≥", 4, "ratio"], "goal_met": False}
    assert found["rows"][0]["sides"] == {
        NATIVE: {"median": 35, "values": [30, 40], "ratio_to_kafka": 3.5, **goal, "server_cpu_us": [6, 8]},
        KAFKA: {"median": 10, "values": [10, 10], "client_busy": [0.95, 0.95], "server_cpu_us": [2, 2]},
    }
    assert as_json(from_json(found)) == found
    _, ours, kafka, note = line(results.rows[0]).splitlines()
    assert ours.split() == ["seglog,", "native", "35", "appends/s", "29%", "3.50", "≥4x", "!", "7"]
    assert kafka.split() == ["Kafka", "10", "appends/s", "0%", "2"]
    assert note == "    (the load process was the limit: Kafka)"


def test_a_figure_is_in_the_unit_of_its_case() -> None:
    """Small appends are counted, large ones are megabytes, and fetches are the whole batches of each reply."""
    found: dict[str, Any] = {"answered": 3000, "seconds": 1.5, "client_cpu_seconds": 0.3}
    case = next(case for case in APPENDS if not case.batch_bytes)
    small = sides.appended(case, found | {"server_cpu_seconds": 0.6}, 170)
    assert [small.value, small.client_busy, small.server_cpu_us] == pytest.approx([2000, 0.2, 200])
    large = sides.appended(next(case for case in APPENDS if case.batch_bytes), found | {"p50": 0.001}, 16_000)
    assert [large.value, large.p50_us] == pytest.approx([2000 * 16_000 / MB, 1000])
    assert large.server_cpu_us is None
    # Two rounds through three requests, and the first request once more.
    found |= {"answered": 7, "seconds": 2.0, "received": 22 * MB + 7 * 50}
    worths = [4 * MB, 4 * MB, 1 * MB]
    assert sides._exchanged(found, worths).value == pytest.approx((9 + 9 + 4) / 2)
    with pytest.raises(BenchmarkError, match="7 fetches gave 21999999 bytes instead of 22000000"):
        sides._exchanged(found | {"received": 22 * MB - 1}, worths)


def test_servers_that_do_not_agree_with_what_they_acknowledged_or_with_each_other_are_refused() -> None:
    sides._answered_as_stored("Kafka", 10, 148, 1480)
    for stored in (1332, 1481):
        with pytest.raises(BenchmarkError, match=f"Kafka answered 10 appends of 148 records, its log has {stored}"):
            sides._answered_as_stored("Kafka", 10, 148, stored)
    ours, other = SimpleNamespace(found=list), SimpleNamespace(found=lambda times: [at + 1 for at in times])
    sides.agree({"seglog": ours, KAFKA: ours}, range(100))
    with pytest.raises(BenchmarkError, match=r"seglog finds .*, Kafka"):
        sides.agree({"seglog": ours, KAFKA: other}, range(100))


def test_rates_are_read_out_of_what_kafkas_tools_and_its_log_say() -> None:
    said = "500000 records sent, 53265.153936 records/sec (5.08 MB/sec), 3400.32 ms avg latency."
    assert java.produced_rate(said, 500_000) == pytest.approx(53265.15, abs=0.01)
    with pytest.raises(BenchmarkError, match="sent not 600000 records"):
        java.produced_rate(said, 600_000)
    log = "cleaned log t-1-0 (dirty section = [0, 39936])\n\t1 MB of log processed in 3.4 seconds (296.5 MB/sec)."
    assert compaction.cleaned_in_log(log, "t-1") == (39936, 296.5)
    assert compaction.cleaned_in_log(log, "t") is None


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30), cuts=st.lists(st.integers(1, 60)))
def test_replies_are_counted_wherever_reads_end(sizes: list[int], cuts: list[int]) -> None:
    sizes.sort()  # they grow with the offsets in them
    sent = b"".join(struct.pack(">i", size) + b"r" * size for size in sizes)
    ends = list(accumulate(4 + size for size in sizes))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        counter = load.ReplyCounter(ours)
        whole = position = 0
        for cut in [*cuts, len(sent)]:
            if piece := sent[position : position + cut]:
                theirs.sendall(piece)
                position += len(piece)
                whole += counter.receive()
                assert whole == sum(end <= position for end in ends)
    assert whole == len(sizes)
