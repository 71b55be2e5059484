"""``seglog.asyncio`` beside aiokafka and confluent-kafka's asyncio interface: all to and from one daemon of ours."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import seglog
from benchmarks.asyncio_run import CLIENTS
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.kafka_door import Door, daemon_with_door
from benchmarks.processes import environment

TOPIC: Final = "bench-asyncio"
_SCRIPT: Final = Path(__file__).with_name("asyncio_run.py")
_SECONDS_MAX: Final = 120
_MODULES: Final = {"aiokafka": "aiokafka", "confluent-kafka": "confluent_kafka.aio", "uvloop": "uvloop"}
_OURS: Final = "seglog.asyncio"


def _run(bench: Bench) -> Iterator[Row]:
    """Each client is a process of its own, which produces so many records to a new topic and consumes them."""
    with daemon_with_door(bench) as opened:
        for size in (100, 1024):
            count = bench.pick(100_000, 2_000)
            pythons = {name: _python_with(bench, name) for name in CLIENTS}
            present = [name for name in CLIENTS if pythons[name] is not None]
            sides = [partial(_measured, opened, str(pythons[name]), name, count, size) for name in present]
            found = dict(zip(present, take_turns(bench.rounds, *sides), strict=True))
            for what in ("produce", "consume"):
                for name in CLIENTS:
                    yield from _rows(name, what, size, count, found)


def _rows(name: str, what: str, size: int, count: int, found: dict[str, list[dict[str, float]]]) -> Iterator[Row]:
    title = f"{what} {size} B, {name}"
    if name not in found:
        yield Row(title, "records/s", note=f"no Python with {name}: name one with --peers-python")
        return
    beside = found[_OURS] if name != _OURS else []
    rates = [[count / one[what] for one in side] for side in (found[name], beside)]
    yield Row(title, "records/s", rates[0], rates[1], _OURS if beside else "")
    work = f"{what}, processor time"
    costs = [[one[work] / count * 1e6 for one in side] for side in (found[name], beside)]
    yield Row(title, "µs of CPU a record", costs[0], costs[1], _OURS if beside else "")


def _python_with(bench: Bench, name: str) -> str | None:
    """A Python that has what a client needs; None if there is none."""
    needed = next((module for word, module in _MODULES.items() if word in name), "seglog.asyncio")
    for python in (sys.executable, bench.peers_python):
        if python is not None:
            probe = [python, "-c", f"import {needed}"]
            if subprocess.run(probe, env=environment(), capture_output=True, check=False).returncode == 0:
                return python
    return None


def _measured(opened: Door, python: str, name: str, count: int, size: int) -> dict[str, float]:
    """Seconds and processor time of one client, to and from a topic made for it."""
    is_ours = name.startswith(_OURS)
    with seglog.connect(opened.running.address) as client:
        client.create_topic(TOPIC, 1)
        address = opened.running.address if is_ours else f"127.0.0.1:{opened.port}"
        command = [python, str(_SCRIPT), name, address, TOPIC, str(count), str(size)]
        try:
            done = subprocess.run(
                command, env=environment(), capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"{name} did not end within {_SECONDS_MAX} s") from error
        finally:
            client.delete_topic(TOPIC)
    if done.returncode != 0:
        raise BenchmarkError(f"{name}: {done.stderr[-300:]}")
    measured: Any = json.loads(done.stdout)
    return dict(measured)


BENCHMARK = Benchmark(
    "asyncio",
    "clients on asyncio, one partition, ack os: seglog.asyncio by the native protocol, the others by Kafka's",
    "seglog.asyncio in the same round",
    _run,
    900,
)
