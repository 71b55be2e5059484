"""librdkafka beside us: the client that most Kafka clients stand on, run by a Python that has confluent-kafka."""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Final

from benchmarks.batches import batch_of
from benchmarks.harness import Bench, BenchmarkError
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.results import Measure
from benchmarks.peers.sides import KafkaServer
from benchmarks.processes import cpu_seconds, environment
from benchmarks.queues.kafka import begin_with_the_earliest

_SCRIPT: Final = Path(__file__).with_name("librdkafka_run.py")
_TOPIC: Final = "bench-librdkafka"
_SECONDS_MAX: Final = 180
_BATCH_BYTES: Final = 16 * 1024

ABSENT: Final = "no Python with confluent-kafka: name one with --peers-python"
STEPS: Final = {"produce": 300_000, "consume": 300_000}
"""How many records each step takes."""

TRANSACTIONS: Final = {"transactions, disk": 400}
"""The same of a step that is measured beside servers which sync; each record is a transaction."""


JOBS: Final = {"jobs, disk": 50_000}
"""The same, of jobs that one worker takes and accepts; they are there before."""


@cache
def python_with_librdkafka(peers_python: str | None) -> str | None:
    """A Python that can import confluent-kafka; None if there is none."""
    for python in (peers_python, sys.executable):
        if python is not None:
            probe = [python, "-c", "import confluent_kafka"]
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return python
    return None


def measure(bench: Bench, python: str, steps: Mapping[str, int], server: KafkaServer) -> Mapping[str, Measure]:
    """By the step, records a second and the server's processor time for each; to and from a topic made for it."""
    found: dict[str, Measure] = {}
    with connect_kafka(server.port) as connection:
        connection.create_topic(_TOPIC)
        for step, full in steps.items():
            count = bench.pick(full, full // 50)
            if step in JOBS:
                batch, records = batch_of(_BATCH_BYTES)
                connection.fill(_TOPIC, repeat(batch, count // records + 1))
                begin_with_the_earliest(server.port, _TOPIC)
            cpu = cpu_seconds(server.pid)
            seconds = _run([python, str(_SCRIPT), step, str(server.port), _TOPIC, str(count)])
            found[step] = Measure(count / seconds, server_cpu_us=(cpu_seconds(server.pid) - cpu) / count * 1e6)
        connection.delete_topic(_TOPIC)
    return found


def _run(command: list[str]) -> float:
    try:
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"librdkafka did not end within {_SECONDS_MAX} s") from error
    if done.returncode != 0:
        raise BenchmarkError(f"librdkafka: {done.stderr[-300:]}")
    return float(json.loads(done.stdout))
