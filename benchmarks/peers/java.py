"""Kafka's own tools: ``kafka-producer-perf-test`` and ``kafka-consumer-perf-test``, as its script runs them.

Each starts a Java, which compiles what runs often while it is measured: their rates are theirs as much as the server's.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, BenchmarkError
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.results import Measure
from benchmarks.peers.sides import KafkaServer
from benchmarks.processes import cpu_seconds

ABSENT: Final = "Kafka is not measured, so its tools are not there"
_TOPIC: Final = "bench-java"
_SECONDS_MAX: Final = 180


def measure(bench: Bench, script: Path, server: KafkaServer) -> Mapping[str, Measure]:
    """By the step, records a second and the server's processor time for each; to and from a topic made for it.

    ``script`` runs the tools as its verbs ``producer-perf`` and ``consumer-perf``.
    """
    count = bench.pick(500_000, 5_000)
    common = ["--bootstrap-server", f"127.0.0.1:{server.port}", "--topic", _TOPIC, "--num-records", str(count)]
    produce = [str(script), "producer-perf", *common, "--record-size", "100", "--throughput", "-1"]
    steps = {
        "produce, acks=1": ([*produce, "--command-property", "acks=1"], produced_rate),
        "consume": ([str(script), "consumer-perf", *common], consumed_rate),
    }
    found: dict[str, Measure] = {}
    with connect_kafka(server.port) as connection:
        connection.create_topic(_TOPIC)
        for step, (command, rate) in steps.items():
            cpu = cpu_seconds(server.pid)
            said = _run(command)
            found[step] = Measure(rate(said, count), server_cpu_us=(cpu_seconds(server.pid) - cpu) / count * 1e6)
        connection.delete_topic(_TOPIC)
    return found


def produced_rate(said: str, count: int) -> float:
    """Records a second, as the last line of ``kafka-producer-perf-test`` tells."""
    found = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", said, re.MULTILINE)
    if not found or int(found[-1][0]) != count:
        raise BenchmarkError(f"kafka-producer-perf-test sent not {count} records: {said[-300:]}")
    return float(found[-1][1])


def consumed_rate(said: str, count: int) -> float:
    """Records a second from the assignment on, as ``kafka-consumer-perf-test`` tells (fetch.nMsg.sec)."""
    lines = [line.split(", ") for line in said.splitlines() if line.count(", ") == 9]
    if len(lines) < 2 or int(lines[-1][4]) < count:
        raise BenchmarkError(f"kafka-consumer-perf-test consumed fewer than {count} records: {said[-300:]}")
    return float(lines[-1][lines[0].index("fetch.nMsg.sec")])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, env=os.environ, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{command[1]} did not end within {_SECONDS_MAX} s") from error
    if done.returncode != 0:
        raise BenchmarkError(f"{command[1]}: {(done.stderr or done.stdout)[-300:]}")
    return done.stdout
