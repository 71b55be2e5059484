"""``python -m benchmarks --peers`` from its command line to its files, with seglog alone and beside real peers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.peers import compaction
from benchmarks.peers import kafka_frames as frames
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.servers import peer_server
from seglog_protocol.batch_builder import encode_batch
from tests.interop.peer import kafka_script
from tests.support import REPOSITORY

NOW = 1_795_000_000_000


def run(scripts: Path, directory: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Its output, and its JSON. It must have measured everything it was asked for."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--directory", str(directory)]
    done = subprocess.run(
        [*command, "--peers", str(scripts), *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"KAFKA_HEAP": "-Xms128m -Xmx400m"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, json.loads((directory / "peers.json").read_text())


def test_without_peers_seglog_is_beside_the_bare_loop(tmp_path: Path) -> None:
    """Each peer that is missing is named."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    told, found = run(scripts, tmp_path / "out", "--only", "small")
    for peer, name in (("Kafka", "kafka"), ("NATS", "nats"), ("Redis", "redis")):
        assert found["left_out"][peer] == f"{scripts}/{name}/{name} is missing"
        assert f"left out: {peer}: {scripts}/{name}/{name} is missing" in told
    assert [row["name"] for row in found["rows"]] == [
        "100 B, depth 1, os",
        "100 B, 64 deep, os",
        "100 B, 16 connections x 1, os",
        "100 B, 16 connections x 16, os",
    ]
    for row in found["rows"]:
        assert list(row["sides"]) == ["seglog", "bare loop"]
        assert all(len(side["values"]) == 1 and min(side["values"]) > 0 for side in row["sides"].values())
        assert row["ratio_to_bare_loop"] > 0
        assert row["ratio_to_kafka"] is None
        assert row["name"] in told
    assert found["machine"]["rounds"] == 1
    assert "no picture: nothing was measured beside Kafka" in told
    assert not (tmp_path / "out" / "peers.png").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--picture", "x.png"], "--picture goes with --peers"),
        (["--only", "small"], "--only small: choose from append"),
        (["--peers", ".", "--only", "append"], "--only append: choose from small"),
    ],
)
def test_options_for_peers_are_refused_without_them(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the other way round."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_kafkas_log_says_how_fast_it_compacted() -> None:
    log = """[2026-11-21 10:00:00,000] INFO [kafka-log-cleaner-thread-0]:
\tLog cleaner thread 0 cleaned log t-1-0 (dirty section = [0, 39936])
\t1,008.0 MB of log processed in 3.4 seconds (296.5 MB/sec).
\tIndexed 8.0 MB in 0.0 seconds (177.0 Mb/sec, 31.3% of total time)
"""
    assert compaction.cleaned_in_log(log, "t-1") == (39936, 296.5)
    assert compaction.cleaned_in_log(log, "t") is None
    assert compaction.cleaned_in_log(log, "t-10") is None


# --- Beside real peers ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_kafka_understands_every_request_and_we_its_replies(tmp_path: Path) -> None:
    scripts = kafka_script().parent.parent
    batch = encode_batch([(NOW + number, b"k", b"x" * 100, ()) for number in range(3)])
    with peer_server(scripts, "kafka", tmp_path / "kafka") as server, connect_kafka(server.port) as kafka:
        kafka.create_topic("t1", flush_messages=1)
        assert kafka.end_offset("t1") == 0
        assert [frames.produced(kafka.ask(frames.produce_frame("t1", batch)), "t1") for _ in range(3)] == [0, 3, 6]
        assert kafka.fill("t1", iter([batch] * 10)) == 10 * len(batch)
        assert kafka.end_offset("t1") == 39
        assert kafka.fetched_bytes("t1", 0, 1) == len(batch)
        assert kafka.fetched_bytes("t1", 39, 1) == 0
        assert 2 * len(batch) <= kafka.fetched_bytes("t1", 0, 2 * len(batch) + 1) <= 2 * len(batch) + 1
        found = [frames.listed(kafka.ask(frames.time_frame("t1", NOW + number)), "t1") for number in (0, 2, 3)]
        assert found == [(NOW, 0), (NOW + 2, 2), (-1, -1)]
        kafka.alter_topic("t1", {"cleanup.policy": "compact"})
        with pytest.raises(frames.KafkaError, match="IncrementalAlterConfigs"):
            kafka.alter_topic("t1", {"cleanup.policy": "nonsense"})
        with pytest.raises(frames.KafkaError, match="Produce with error 2"):  # a checksum that is wrong
            frames.produced(kafka.ask(frames.produce_frame("t1", batch[:-1] + b"\1")), "t1")
        with pytest.raises(frames.KafkaError, match="CreateTopics with error 36"):
            kafka.create_topic("t1")
        kafka.delete_topic("t1")


@pytest.mark.slow
def test_every_case_beside_real_peers_has_a_ratio(tmp_path: Path) -> None:
    """One for each round, and a place in the picture."""
    groups = ("small", "large", "disk", "fetch", "seeks", "compaction", "kafka")
    told, found = run(kafka_script().parent.parent, tmp_path, "--only", *groups)
    assert "4.3.1" in found["versions"]["Kafka"]
    others = {"NATS", "Redis"} - set(found["left_out"])
    for row in found["rows"]:
        if row["name"] == "librdkafka":
            assert "confluent-kafka" in row["notes"][0]
            continue
        appends = row["group"] in {"small", "large", "disk"}
        assert {"seglog", "Kafka"} | (others if appends else set()) <= set(row["sides"]), told
        assert all(len(side["values"]) == 1 and min(side["values"]) > 0 for side in row["sides"].values())
        assert row["ratio_to_kafka"] > 0
    assert [row["group"] for row in found["rows"]].count("disk") == 3
    assert {row["group"] for row in found["rows"]} == set(groups)
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
