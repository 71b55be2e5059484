"""Suites of pytest that use the fixtures of ``seglog.testing.plugin``, and what the plugin costs those that do not."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.processes import environment

TESTS: Final = 200
_PLAIN: Final = f"""
import pytest
@pytest.mark.parametrize("number", range({TESTS}))
def test_it(number):
    pass
"""
_WITH_TOPICS: Final = f"""
import pytest
@pytest.mark.parametrize("number", range({TESTS}))
def test_it(seglog_broker, seglog_client, seglog_topic, number):
    with seglog_client.producer(seglog_topic) as producer:
        producer.send(b"one")
    assert [record.value for record in seglog_broker.records(seglog_topic)] == [b"one"]
"""


def run(bench: Bench) -> Iterator[Row]:
    """Collecting a suite, running it, and running one with a topic for each test."""
    with bench.fresh_directory() as directory:
        plain, topics = directory / "test_plain.py", directory / "test_topics.py"
        (directory / "pytest.ini").write_text("[pytest]\n")  # of its own: that of the repository is not asked
        plain.write_text(_PLAIN)
        topics.write_text(_WITH_TOPICS)
        for name, options in (("pytest --collect-only", ["--collect-only"]), (f"{TESTS} tests that do nothing", [])):
            suite = partial(_seconds, plain, options)
            took, without = take_turns(bench.rounds, suite, partial(suite, ["-p", "no:seglog"]))
            yield Row(name, "ms", [one * 1000 for one in took], [one * 1000 for one in without], "without the plugin")
        for place, memory in (("in memory", "true"), ("on disk", "false")):
            for beside in ([], ["-n", "4"]):
                suite = partial(_seconds, topics, ["-o", f"seglog_memory={memory}", *beside])
                (took,) = take_turns(bench.rounds, suite)
                yield Row(f"{TESTS} tests with a topic each, {' '.join([place, *beside])}", "s", took)


def _seconds(suite: Path, options: Sequence[str], more: Sequence[str] = ()) -> float:
    others = [part for name in ("cacheprovider", "trio", "asyncio", "anyio") for part in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", *others, *options, *more, str(suite)]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment(), cwd=suite.parent, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-500:]}")
    return time.perf_counter() - began


BENCHMARK = Benchmark(
    "testing-suite",
    "suites of pytest with the fixtures of seglog.testing, and what the plugin costs the others",
    "the same without the plugin",
    run,
)
