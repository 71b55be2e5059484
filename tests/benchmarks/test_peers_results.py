"""Rows of a run beside peers: their statistics, the table, JSON, and the picture."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import Goal
from benchmarks.peers.results import (
    BARE,
    KAFKA,
    NATS,
    REDIS,
    SEGLOG,
    Measure,
    PeerRow,
    Results,
    as_json,
    heading,
    line,
    versions_line,
)
from tests.support import missing

FACTS: dict[str, Any] = {
    "time": "2026-11-21T10:00:00Z",
    "python": "3.13.1",
    "implementation": "CPython",
    "profile_optimized": True,
    "kernel": "6.1",
    "cpu": "a processor",
    "cores": 2,
    "file_system": "ext4",
    "load_average": 0.1,
    "rounds": 3,
    "quick": False,
}


def measures(*values: float, busy: float | None = None) -> list[Measure]:
    return [Measure(value, client_busy=busy, server_cpu_us=value / 5) for value in values]


def row(**sides: list[Measure]) -> PeerRow:
    names = {"seglog": SEGLOG, "kafka": KAFKA, "nats": NATS, "redis": REDIS, "bare": BARE}
    return PeerRow(
        "small",
        "100 B, depth 1, os",
        "appends/s",
        {names[name]: values for name, values in sides.items()},
        Goal("≥", 1.5, "ratio"),
        Goal("≥", 0.5, "ratio"),
    )


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # The machine was slow in the second round: that hits both, and says nothing of either.
    measured = row(seglog=measures(300, 40, 330), kafka=measures(100, 20, 100))
    assert measured.ratio(SEGLOG) == 3
    assert measured.median(SEGLOG) == 300
    assert measured.median(KAFKA) == 100
    assert measured.ratio(SEGLOG, BARE) is None
    assert measured.median(NATS) is None


def test_a_line_has_every_server_and_marks_a_goal_that_is_not_reached() -> None:
    measured = row(
        seglog=measures(12_000, 10_000, 11_000),
        kafka=measures(10_000, 10_000, 10_000),
        bare=measures(20_000, 20_000, 20_000),
        nats=measures(7000, 7000, 7000),
        redis=measures(50_000, 50_000, 50_000),
    )
    cells = line(measured).split()
    assert cells == [
        *("100", "B,", "depth", "1,", "os", "appends/s", "11.0k", "18%", "10.0k", "1.10", "≥1.5x", "!"),
        *("2,200", ":", "2,000", "0.55", "≥0.5x", "7,000", "50.0k"),
    ]
    for title, value in (("seglog", "11.0k"), ("Kafka", "10.0k"), ("NATS", "7,000"), ("Redis", "50.0k")):
        assert heading().index(title) + len(title) == line(measured).index(value) + len(value), title


def test_a_line_says_when_a_load_process_was_the_limit_and_not_the_server() -> None:
    measured = row(seglog=measures(3, 3, 3, busy=0.5), nats=measures(1, 1, 1, busy=0.95))
    assert line(measured).splitlines()[1:] == ["    (the load process was the limit: NATS)"]
    assert measured.busy_clients() == [NATS]


def test_what_was_left_out_is_said_with_the_reason() -> None:
    results = Results(FACTS, {"seglog": "1.0", KAFKA: "4.3.1"}, {NATS: "the program go is missing"})
    assert versions_line(results) == "seglog 1.0, Kafka 4.3.1\nleft out: NATS: the program go is missing"


def test_json_has_every_round_of_every_server() -> None:
    results = Results(FACTS, {"seglog": "1.0"}, {NATS: "no Go"})
    results.rows.append(row(seglog=measures(30, 40), kafka=measures(10, 10, busy=0.25)))
    results.rows.append(PeerRow("firehose", "stall", "ms", {SEGLOG: measures(12)}, Goal("≤", 10, "value")))
    results.problems.append("seglogd logged something")
    found = json.loads(json.dumps(as_json(results)))
    assert found["machine"] == FACTS
    assert found["versions"] == {"seglog": "1.0"}
    assert found["left_out"] == {NATS: "no Go"}
    assert found["problems"] == ["seglogd logged something"]
    appends, stall = found["rows"]
    assert appends["sides"] == {
        SEGLOG: {"median": 35, "values": [30, 40], "server_cpu_us": [6, 8]},
        KAFKA: {"median": 10, "values": [10, 10], "client_busy": [0.25, 0.25], "server_cpu_us": [2, 2]},
    }
    assert (appends["ratio_to_kafka"], appends["goal"], appends["goal_met"]) == (3.5, "≥1.5x", True)
    assert (appends["ratio_to_bare_loop"], appends["bare_goal"], appends["bare_goal_met"]) == (None, "≥0.5x", None)
    assert (stall["ratio_to_kafka"], stall["goal"], stall["goal_met"]) == (None, "≤10", False)


@pytest.fixture
def drawn() -> Results:
    results = Results(FACTS, {"seglog": "1.0", KAFKA: "4.3.1 on Java 21"}, {REDIS: "no apt-get"})
    results.rows.append(
        row(seglog=measures(30, 40), kafka=measures(10, 10), nats=measures(5, 5), bare=measures(90, 90))
    )
    fetch = {SEGLOG: measures(700), KAFKA: measures(1400)}
    results.rows.append(PeerRow("fetch", "fetch, 1 MiB each", "MB/s", fetch, Goal("≥", 1, "ratio")))
    results.rows.append(PeerRow("firehose", "a stall of ours", "ms", {SEGLOG: measures(12)}, Goal("≤", 10, "value")))
    return results


def test_the_picture_shows_each_case_that_has_a_ratio_and_what_was_measured(drawn: Results, tmp_path: Path) -> None:
    picture = _picture_module()
    import matplotlib as mpl  # noqa: PLC0415 - it may be missing

    with mpl.rc_context({"svg.fonttype": "none"}):
        picture.draw(drawn, tmp_path / "peers.svg")
    text = (tmp_path / "peers.svg").read_text(encoding="utf-8")
    for shown in (
        *("100 B, depth 1, os", "fetch, 1 MiB each", "35 : 10 appends/s", "700 : 1,400 MB/s"),
        *("Times as fast as Apache Kafka 4.3.1", "with PGO", "2 cores", "Linux 6.1", "load 0.10", "left out: Redis"),
        *("seglog 1.0, Kafka 4.3.1 on Java 21", "a bare loop", "NATS JetStream"),
    ):
        assert shown in text, shown
    assert "a stall of ours" not in text
    assert "Redis Streams" not in text


def test_the_picture_can_be_a_png(drawn: Results, tmp_path: Path) -> None:
    _picture_module().draw(drawn, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_without_kafka_there_is_nothing_to_draw(drawn: Results) -> None:
    assert [row.name for row in drawn.beside_kafka()] == ["100 B, depth 1, os", "fetch, 1 MiB each"]
    drawn.rows = drawn.rows[2:]
    assert not drawn.beside_kafka()


def _picture_module() -> Any:
    if importlib.util.find_spec("matplotlib") is None:
        missing("matplotlib: it draws the picture")
    return importlib.import_module("benchmarks.peers.picture")
