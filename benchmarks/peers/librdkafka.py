"""librdkafka beside us: the client that most Kafka clients stand on, run by a Python that has confluent-kafka."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, BenchmarkError
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.processes import environment

_SCRIPT: Final = Path(__file__).with_name("librdkafka_run.py")
_TOPIC: Final = "bench-librdkafka"
_SECONDS_MAX: Final = 180

ABSENT: Final = "no Python with confluent-kafka: name one with --peers-python"
STEPS: Final = ("produce", "consume")


@cache
def python_with_librdkafka(peers_python: str | None) -> str | None:
    """A Python that can import confluent-kafka; None if there is none."""
    for python in (peers_python, sys.executable):
        if python is not None:
            probe = [python, "-c", "import confluent_kafka"]
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return python
    return None


def rates(bench: Bench, python: str, port: int) -> dict[str, float]:
    """Records a second that it produces and consumes, through the Kafka port of a server; a topic made for it."""
    count = bench.pick(300_000, 5_000)
    with connect_kafka(port) as connection:
        connection.create_topic(_TOPIC)
        command = [python, str(_SCRIPT), str(port), _TOPIC, str(count)]
        try:
            done = subprocess.run(
                command, env=environment(), capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"librdkafka did not end within {_SECONDS_MAX} s") from error
        connection.delete_topic(_TOPIC)
    if done.returncode != 0:
        raise BenchmarkError(f"librdkafka: {done.stderr[-300:]}")
    seconds: dict[str, float] = json.loads(done.stdout)
    return {step: count / seconds[step] for step in STEPS}
