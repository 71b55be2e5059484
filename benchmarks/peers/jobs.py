"""Load processes: each does the jobs it is given, one after the other, and is idle otherwise."""

import json
import subprocess
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import MIB, Bench, BenchmarkError
from benchmarks.peers.cases import AppendCase
from benchmarks.processes import worker


class LoadProcess:
    """``worker`` with a pipe to its stdin; see ``benchmarks.peers.load`` for jobs and results."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, job: dict[str, Any]) -> None:
        """Hand it a job, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Of the job begun last. BenchmarkError when that failed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(f"a load process ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise BenchmarkError(str(found["error"]))
        return found

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Both."""
        self.begin(job)
        return self.result()


@contextmanager
def load_process(module: str) -> Iterator[LoadProcess]:
    """``python -m module``, ended afterwards."""
    with worker(module, stdin=subprocess.PIPE) as process:
        yield LoadProcess(process)


class Pace:
    """How long one measurement takes, and how much it may leave on the disk."""

    def __init__(self, bench: Bench) -> None:
        self.seconds = bench.pick(1.5, 0.1)
        self.bytes_max = bench.pick(512, 16) * MIB


def flood_job(port: int, frame: bytes, case: AppendCase, pace: Pace, greeting: bytes = b"") -> dict[str, Any]:
    """This request, over and over, as the case says."""
    job = exchange_job(port, [frame], pace, greeting) | {"kind": "flood", "bytes_max": pace.bytes_max}
    return job | {"connections": case.connections, "depth": case.depth}


def talks_job(port: int, talk: str, connections: int, seconds: float, *arguments: int) -> dict[str, Any]:
    """One of ``TALKS`` of ``benchmarks.peers.load`` on each connection, made of its number and the ``arguments``."""
    job: dict[str, Any] = {"kind": "talks", "port": port, "talk": talk, "seconds": seconds}
    return job | {"connections": connections, "arguments": arguments}


def exchange_job(port: int, frames: Sequence[bytes], pace: Pace, greeting: bytes = b"") -> dict[str, Any]:
    """These requests in turn, one at a time."""
    return {
        "kind": "exchange",
        "port": port,
        "greeting": b64encode(greeting).decode(),
        "frames": [b64encode(frame).decode() for frame in frames],
        "connections": 1,
        "seconds": pace.seconds,
    }
