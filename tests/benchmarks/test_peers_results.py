"""Rows of a run beside peers: their statistics, the table, JSON, and the picture."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import Goal
from benchmarks.peers.cases import LISTENER, NATIVE, NATIVE_COMPILED
from benchmarks.peers.results import (
    BARE,
    KAFKA,
    NATS,
    REDIS,
    Measure,
    PeerRow,
    Results,
    as_json,
    from_json,
    heading,
    line,
    versions_line,
)
from tests.support import REPOSITORY, missing

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
    names = {"seglog": NATIVE, "compiled": NATIVE_COMPILED, "kafka": KAFKA, "nats": NATS, "bare": BARE}
    return PeerRow(
        "small",
        "100 B, depth 1, os",
        "appends/s",
        {names[name]: values for name, values in sides.items()},
        {NATIVE: Goal("≥", 1.5, "ratio"), NATIVE_COMPILED: Goal("≥", 2, "ratio")},
    )


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # The machine was slow in the second round: that hits both, and says nothing of either.
    measured = row(seglog=measures(300, 40, 330), kafka=measures(100, 20, 100))
    assert measured.ratio(NATIVE) == 3
    assert measured.median(NATIVE) == 300
    assert measured.median(KAFKA) == 100
    assert measured.ratio(KAFKA) is None
    assert measured.median(NATS) is None


def test_each_server_has_a_line_and_a_goal_that_is_not_reached_is_marked() -> None:
    measured = row(
        seglog=measures(12_000, 10_000, 11_000),
        compiled=measures(20_000, 20_000, 22_000),
        kafka=measures(10_000, 10_000, 10_000),
        bare=measures(50_000, 50_000, 50_000),
    )
    name, *lines = line(measured).splitlines()
    assert name == "100 B, depth 1, os"
    assert [found.split() for found in lines] == [
        ["seglog,", "native", "11.0k", "appends/s", "18%", "1.10", "≥1.5x", "!", "2,200"],
        ["seglog,", "native,", "compiled", "20.0k", "appends/s", "10%", "2.00", "≥2x", "4,000"],
        ["Kafka", "10.0k", "appends/s", "0%", "2,000"],
        ["bare", "loop", "50.0k", "appends/s", "0%", "5.00", "10.0k"],
    ]
    for title, value in (("median", "11.0k"), ("to Kafka", "1.10"), ("CPU µs", "2,200")):
        assert heading().index(title) + len(title) == lines[0].index(value) + len(value), title


def test_notes_are_said_once_and_tell_when_a_load_process_was_the_limit_and_not_the_server() -> None:
    measured = row(seglog=measures(3, 3, 3, busy=0.5), nats=measures(1, 1, 1, busy=0.95))
    assert line(measured).splitlines()[3:] == ["    (the load process was the limit: NATS)"]
    refused = PeerRow("disk", "a case", "ms", {"other": [Measure(1, note="refused"), Measure(2, note="refused")]})
    assert refused.all_notes() == ["refused"]


def test_what_was_left_out_is_said_with_the_reason() -> None:
    results = Results(FACTS, {"seglog": "1.0", KAFKA: "4.3.1"}, {NATS: "the program go is missing"})
    assert versions_line(results) == "seglog: 1.0\nKafka: 4.3.1\nleft out: NATS: the program go is missing"


def test_json_has_every_round_of_every_server() -> None:
    results = Results(FACTS, {"seglog": "1.0"}, {NATS: "no Go"})
    results.rows.append(row(seglog=measures(30, 40), kafka=measures(10, 10, busy=0.25)))
    stall = {NATIVE: measures(12)}
    results.rows.append(PeerRow("firehose", "stall", "ms", stall, {NATIVE: Goal("≤", 10, "value")}, ["a note"]))
    results.problems.append("seglogd logged something")
    found = json.loads(json.dumps(as_json(results)))
    assert found["machine"] == FACTS
    assert found["versions"] == {"seglog": "1.0"}
    assert found["left_out"] == {NATS: "no Go"}
    assert found["problems"] == ["seglogd logged something"]
    appends, stalls = found["rows"]
    goal = {"goal": ["≥", 1.5, "ratio"], "goal_met": True}
    assert appends["sides"] == {
        NATIVE: {"median": 35, "values": [30, 40], "ratio_to_kafka": 3.5, **goal, "server_cpu_us": [6, 8]},
        KAFKA: {"median": 10, "values": [10, 10], "client_busy": [0.25, 0.25], "server_cpu_us": [2, 2]},
    }
    assert stalls["sides"][NATIVE]["goal_met"] is False
    assert as_json(from_json(found)) == found


@pytest.fixture
def drawn() -> Results:
    results = Results(FACTS, {"seglog": "1.0", KAFKA: "4.3.1 on Java 21"}, {REDIS: "no apt-get"})
    appends = row(seglog=measures(30, 40), kafka=measures(10, 10), nats=measures(5, 5), bare=measures(90, 90))
    results.rows.append(appends)
    fetch = {NATIVE: measures(700), NATIVE_COMPILED: measures(2100), LISTENER: measures(15_400), KAFKA: measures(1400)}
    results.rows.append(PeerRow("fetch", "fetch, 1 MiB each", "MB/s", fetch))
    results.rows.append(PeerRow("firehose", "a stall of ours", "ms", {NATIVE: measures(12)}))
    return results


def test_the_picture_shows_each_case_that_has_a_ratio_and_what_was_measured(drawn: Results, tmp_path: Path) -> None:
    picture = _picture_module()
    import matplotlib as mpl  # noqa: PLC0415 - it may be missing

    with mpl.rc_context({"svg.fonttype": "none"}):
        picture.draw(drawn, tmp_path / "peers.svg")
    text = (tmp_path / "peers.svg").read_text(encoding="utf-8")
    for shown in (
        *("100 B, depth 1, os", "fetch, 1 MiB each", "35 · 10 appends/s", "2,100 · 15.4k · 1,400 MB/s"),
        *("Times as fast as Apache Kafka 4.3.1", "with PGO", "2 cores", "Linux 6.1", "load 0.10", "left out: Redis"),
        *("seglog: 1.0", "Kafka: 4.3.1 on Java 21", "a bare loop", "NATS JetStream", NATIVE_COMPILED),
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


def test_the_table_of_readme_and_its_picture_come_from_the_results(drawn: Results, tmp_path: Path) -> None:
    _picture_module()
    publish = importlib.import_module("benchmarks.peers.publish")
    readme, found = tmp_path / "README.md", tmp_path / "peers.json"
    readme.write_text(f"before\n\n{publish.BEGIN}\nold\n{publish.END}\n\nafter\n")
    found.write_text(json.dumps(as_json(drawn)))
    picture = tmp_path / "docs" / "figures.svg"
    picture.parent.mkdir()
    for _ in range(2):  # the second time it replaces its own
        assert publish.main([str(found), "--readme", str(readme), "--picture", str(picture)]) == 0
    text = readme.read_text()
    assert text.startswith(f"before\n\n{publish.BEGIN}\n\n| | Kafka 4.3.1 | native | native, compiled | Kafka's wire |")
    assert "\n| 100 B, depth 1, os | 10 appends/s | 3.50 | | |\n" in text
    assert "\n| fetch, 1 MiB each | 1,400 MB/s | 0.50 | 1.50 | 11 |\n" in text
    assert "(docs/figures.svg)" in text
    assert "2026-11-21. seglog: 1.0; Kafka: 4.3.1 on Java 21. CPython 3.13.1 with PGO, 2 cores" in text
    assert text.endswith(f"{publish.END}\n\nafter\n")
    assert picture.read_text().startswith("<?xml")
    with pytest.raises(ValueError, match=r"README.md has no lines"):
        publish.published("nothing", drawn, "x.svg")


def test_readme_has_the_place_for_the_table() -> None:
    _picture_module()
    publish = importlib.import_module("benchmarks.peers.publish")
    text = (REPOSITORY / "README.md").read_text()
    assert text.index(publish.BEGIN) < text.index(publish.END)


def _picture_module() -> Any:
    if importlib.util.find_spec("matplotlib") is None:
        missing("matplotlib: it draws the picture")
    return importlib.import_module("benchmarks.peers.picture")
