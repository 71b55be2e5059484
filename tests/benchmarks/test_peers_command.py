"""``python -m benchmarks --peers`` from its command line to its files, with seglog alone and beside real peers."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.harness import BenchmarkError
from benchmarks.peers import compaction, java
from benchmarks.peers import kafka_frames as frames
from benchmarks.peers.builds import about, compiled_build
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.servers import peer_server
from benchmarks.processes import sources
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.version import VERSION
from tests.interop.peer import kafka_script
from tests.processes import kafka_daemon
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
        assert list(row["sides"]) == ["seglog, native", "seglog, Kafka's wire", "bare loop"]
        assert all(len(side["values"]) == 1 and min(side["values"]) > 0 for side in row["sides"].values())
        assert all("ratio_to_kafka" not in side for side in row["sides"].values())
        assert row["name"] in told
    assert found["machine"]["rounds"] == 1
    assert "no picture: nothing was measured beside Kafka" in told
    assert not (tmp_path / "out" / "peers.png").exists()


TWIN = """#!/bin/sh
case $1 in
  start)
    mkdir -p "$2"
    {python} -m seglog_broker --data "$2/data" --listen 127.0.0.1:0 --set listeners=PLAINTEXT://127.0.0.1:$3 \\
      > "$2/server.log" 2>&1 < /dev/null &
    echo $! > "$2/pid"
    until grep -q "ready" "$2/server.log"; do sleep 0.02; done ;;
  stop)
    kill "$(cat "$2/pid")" ;;
esac
"""


def test_a_script_is_a_peer_that_speaks_kafkas_protocol(tmp_path: Path) -> None:
    """It stands in the table by its name; one that speaks anything else is left out."""
    twin, mute = tmp_path / "twin" / "twin", tmp_path / "mute"
    twin.parent.mkdir()
    twin.write_text(TWIN.format(python=sys.executable))
    mute.write_text('#!/bin/sh\n[ "$1" != start ] || { mkdir -p "$2"; echo 999999999 > "$2/pid"; }\n')
    for path in (twin, mute):
        path.chmod(0o755)
    # A folder with a script of its own name, and a script.
    told, found = run(twin.parent, tmp_path / "out", str(mute), "--only", "disk", "--without", "native", "bare")
    assert found["versions"]["twin"] == f"of {twin}"
    assert "it does not answer Kafka's ApiVersions" in found["left_out"]["mute"]
    assert [list(row["sides"]) for row in found["rows"]] == [["seglog, Kafka's wire", "twin"]] * 3
    assert "  twin" in told


def test_a_topic_is_made_without_a_setting_that_is_refused(tmp_path: Path) -> None:
    with kafka_daemon(tmp_path / "data") as running, connect_kafka(running.kafka_port) as connection:
        refused = connection.create_topic_as_allowed("t1", no_such_key=1)
        assert refused == "no.such.key=1 (CreateTopics was answered with error 40)"
        assert connection.end_offset("t1") == 0
        assert connection.create_topic_as_allowed("t2", flush_messages=1) == ""
        assert connection.not_offered() == []
        with pytest.raises(frames.KafkaError, match="CreateTopics"):
            connection.create_topic_as_allowed("t1")


def test_what_a_server_does_not_offer_is_named() -> None:
    """A version below or above ours, and an api that it has not."""
    reply = struct.pack(">iihi", 0, 0, 0, 4)
    reply += b"".join(struct.pack(">hhh", *offer) for offer in ((0, 3, 8), (1, 4, 16), (2, 6, 9), (19, 2, 7)))
    assert frames.not_offered(reply) == ["Produce 9", "ListOffsets 5", "DeleteTopics 3"]


def test_sources_are_no_compiled_build(tmp_path: Path) -> None:
    """Whether they are a folder or what a Python has."""
    with pytest.raises(BenchmarkError, match="has no compiled modules"):
        compiled_build(REPOSITORY / "broker", tmp_path)
    with pytest.raises(BenchmarkError, match="cannot be read"):
        compiled_build(tmp_path / "absent.whl", tmp_path)
    assert about(sources()).text.startswith(f"{VERSION}, pure, on Python {sys.version.split()[0]}")


def test_java_tools_tell_their_rates_in_lines_of_their_own() -> None:
    said = """96053 records sent, 19199.1 records/sec (1.83 MB/sec), 1773.5 ms avg latency, 2990.0 ms max latency.
500000 records sent, 53265.153936 records/sec (5.08 MB/sec), 3400.32 ms avg latency, 4756.00 ms max latency.
"""
    assert java.produced_rate(said, 500_000) == pytest.approx(53265.15, abs=0.01)
    with pytest.raises(BenchmarkError, match="sent not 600000 records"):
        java.produced_rate(said, 600_000)
    said = """start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-11-26 08:17:33:715, 2026-11-26 08:17:37:358, 47.6837, 13.0891, 500000, 137249.5, 2040, 1603, 29.7465, 311915.1
"""
    assert java.consumed_rate(said, 500_000) == 311915.1
    with pytest.raises(BenchmarkError, match="consumed fewer than 500001 records"):
        java.consumed_rate(said, 500_001)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--picture", "x.png"], "--picture goes with --peers"),
        (["--compiled", "x.whl"], "--compiled goes with --peers"),
        (["--without", "nats"], "--without goes with --peers"),
        (["--peers", ".", "--without", "kafka"], "--without kafka: choose from native"),
        (["--peers", ".", "--without", "pure"], "--without leaves nothing of seglog"),
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
        with pytest.raises(frames.KafkaError, match="Produce was answered with error 2"):  # a checksum that is wrong
            frames.produced(kafka.ask(frames.produce_frame("t1", batch[:-1] + b"\1")), "t1")
        with pytest.raises(frames.KafkaError, match="CreateTopics was answered with error 36"):
            kafka.create_topic("t1")
        kafka.delete_topic("t1")


@pytest.mark.slow
def test_every_case_beside_real_peers_has_a_ratio(tmp_path: Path) -> None:
    """One for each round, and a place in the picture."""
    groups = ("small", "large", "disk", "fetch", "seeks", "commits", "compaction", "kafka")
    told, found = run(kafka_script().parent.parent, tmp_path, "--only", *groups)
    assert "4.3.1" in found["versions"]["Kafka"]
    others = {"NATS", "Redis"} - set(found["left_out"])
    for row in found["rows"]:
        if row["name"] == "librdkafka" and not row["sides"]:
            assert "confluent-kafka" in row["notes"][0]
            continue
        appends = row["group"] in {"small", "large", "disk"}
        through_kafka = {"Kafka"} if row["group"] == "compaction" else {"Kafka", "seglog, Kafka's wire"}
        assert through_kafka | (others if appends else set()) <= set(row["sides"]), told
        assert all(len(side["values"]) == 1 and min(side["values"]) > 0 for side in row["sides"].values())
        assert all(side["ratio_to_kafka"] > 0 for name, side in row["sides"].items() if name != "Kafka")
    assert [row["group"] for row in found["rows"]].count("disk") == 3
    assert {row["group"] for row in found["rows"]} == set(groups)
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
