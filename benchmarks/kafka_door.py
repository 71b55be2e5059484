"""The Kafka listener beside the native one: what the same appends and fetches cost through each of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.batches import batch_of, dated
from benchmarks.harness import MIB, Bench, Benchmark, Goal, Row, take_turns
from benchmarks.peers import librdkafka
from benchmarks.peers.cases import APPENDS, FETCHES
from benchmarks.peers.jobs import load_process
from benchmarks.peers.results import Measure
from benchmarks.peers.servers import free_ports
from benchmarks.peers.sides import Kafka, Pace, Seglog
from benchmarks.processes import Build, Daemon, daemon

_BATCH_BYTES: Final = 16 * 1024

GOALS: Final[Mapping[str, Goal]] = {
    "100 B, depth 1, os": Goal("≤", 1.5, "ratio"),
    "100 B, 64 deep, os": Goal("≤", 2, "ratio"),
    "100 B, 16 connections x 16, os": Goal("≤", 2, "ratio"),
}
"""For processor time through Kafka's protocol, to that through the native one."""


@dataclass(frozen=True, slots=True)
class Door:
    """The Kafka port of a daemon."""

    running: Daemon
    port: int

    @property
    def pid(self) -> int:
        """Of the daemon."""
        return self.running.pid


@contextmanager
def daemon_with_door(bench: Bench, *arguments: str, build: Build | None = None) -> Iterator[Door]:
    """A daemon that listens for Kafka's clients, too."""
    port = free_ports()
    with daemon(bench, "--set", f"listeners=PLAINTEXT://127.0.0.1:{port}", *arguments, build=build) as running:
        yield Door(running, port)


def _run(bench: Bench) -> Iterator[Row]:
    pace, warm = Pace(bench), Pace(bench)
    warm.seconds = bench.pick(0.4, 0.05)
    with ExitStack() as stack:
        load = stack.enter_context(load_process("benchmarks.peers.load"))
        opened = stack.enter_context(daemon_with_door(bench))
        native, kafka = Seglog(opened.running, load), Kafka("seglog", opened, load)
        for case in APPENDS:
            for side in (native, kafka):
                side.append(case, warm)
            unit = "MB/s" if case.batch_bytes else "appends/s"
            yield from _rows(
                bench, case.name, unit, partial(kafka.append, case, pace), partial(native.append, case, pace)
            )
        python = librdkafka.python_with_librdkafka(bench.peers_python)
        found = [] if python is None else [librdkafka.measure(bench, python, opened) for _ in range(bench.rounds)]
        for step in librdkafka.STEPS:
            note = "" if found else librdkafka.ABSENT
            yield Row(f"librdkafka, {step} 100 B", "records/s", [one[step].value for one in found], note=note)
        batch, records = batch_of(_BATCH_BYTES)
        native.fill(dated(batch, bench.pick(256, 16) * MIB // len(batch)))
        for fetch in FETCHES:
            sides = (side.fetches(fetch, pace, len(batch), records) for side in (kafka, native))
            yield from _rows(bench, fetch.name, "MB/s", *sides)


def _rows(
    bench: Bench, name: str, unit: str, kafka: Callable[[], Measure], native: Callable[[], Measure]
) -> Iterator[Row]:
    """Rate and processor time through Kafka's protocol, beside those through the native one."""
    ours, beside = take_turns(bench.rounds, kafka, native)
    yield Row(name, unit, [one.value for one in ours], [one.value for one in beside], "native")
    times, beside_times = (
        [one.server_cpu_us for one in measures if one.server_cpu_us is not None] for measures in (ours, beside)
    )
    yield Row(f"{name}, CPU", "µs", times, beside_times, "native", GOALS.get(name))


BENCHMARK: Final = Benchmark("kafka", "Kafka's listener: appends and fetches beside the native one", "", _run, 600)
