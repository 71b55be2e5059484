"""Record codecs side by side, as in docs/decisions/0001: ours against those of Python's Kafka clients.

The others are never a dependency: they are measured if they can be imported, here or by the interpreter named with
``--peers-python``; otherwise their rows say what is missing. Each runs in a process of its own.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.processes import environment

_SCRIPT: Final = Path(__file__).with_name("peer_codec.py")
_PEERS: Final = (("aiokafka", "aiokafka"), ("kafka", "kafka-python"))


def run(bench: Bench) -> Iterator[Row]:
    """Two rows a peer: ours, and beside it theirs."""
    seconds = bench.pick(1.0, 0.15)
    for module, name in _PEERS:
        python = _python_with(bench, module)
        if python is None:
            for what in ("encode", "decode"):
                yield Row(f"{what}, against {name}", "records/s", note=f"{name} cannot be imported: see --peers-python")
            continue
        ours, theirs = take_turns(
            bench.rounds,
            partial(_measure, sys.executable, "seglog", seconds),
            partial(_measure, python, module, seconds),
        )
        version = theirs[0]["version"]
        same = ours[0]["crc"] == theirs[0]["crc"]
        for what in ("encode", "decode"):
            yield Row(
                f"{what}, against {name}",
                "records/s",
                [one[what] for one in ours],
                [one[what] for one in theirs],
                version,
                note="" if same or what == "decode" else "the encoded bytes differ from ours",
            )


def _python_with(bench: Bench, module: str) -> str | None:
    for python in (bench.peers_python, sys.executable):
        if python is not None:
            probe = [python, "-c", f"import {module}.record.default_records"]
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return python
    return None


def _measure(python: str, library: str, seconds: float) -> dict[str, Any]:
    command = [python, str(_SCRIPT), library, str(seconds)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)}: {done.stderr[-300:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


BENCHMARK = Benchmark(
    "codecs",
    "2,000 records a batch, 10-byte keys, 100-byte values, uncompressed; in process",
    "the record classes of Python's Kafka clients",
    run,
)
