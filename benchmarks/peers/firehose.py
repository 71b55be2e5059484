"""What others notice of a flood of appends: seglog and a bare loop, beside a client that sends at a pace.

A new server a round, because the longest turn that a daemon tells is the longest since its start. The client appends to
and fetches from a topic of its own, one request every 20 ms; a request that is late because the one before was held up
counts from when it was due.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from benchmarks.batches import one_record
from benchmarks.harness import MIB, Bench, Goal, percentile, take_turns
from benchmarks.kafka_door import daemon_with_door
from benchmarks.peers import kafka_frames
from benchmarks.peers.cases import OTHERS_GOAL, STALL_GOAL, AppendCase
from benchmarks.peers.field import Field
from benchmarks.peers.jobs import LoadProcess, Pace, flood_job
from benchmarks.peers.results import BARE, Measure, PeerRow
from benchmarks.processes import Build, bare_server
from benchmarks.raw_client import GREETING, append_frame, connect, exchange, fetch_frame, open_socket

TOPIC: Final = "bench-peers-firehose"
OTHER: Final = "bench-others"
_TURN: Final = "longest turn"
_ROWS: Final = ("append p99", "fetch p99", "append max", "fetch max", _TURN)

_FIREHOSES: Final = (
    AppendCase("firehose", "none", 0, 0, 0, "os", {}),
    AppendCase("firehose", "1 x 512 of 100 B", 0, 1, 512, "os", {}),
    AppendCase("firehose", "16 x 16 of 100 B", 0, 16, 16, "os", {}),
    AppendCase("firehose", "1 x 16 of 256 KiB", 256 * 1024, 1, 16, "os", {}),
)
"""Connections x depth."""

_PACE_SECONDS: Final = 0.02
"""Longer than a request waits behind all that these firehoses leave unanswered, so that none delays the next."""

_Wire = tuple[bytes, Callable[[str, bytes], bytes], bytes]
"""A greeting, an append to a topic, and a fetch of the others."""

_KAFKAS: Final[_Wire] = (b"", kafka_frames.produce_frame, kafka_frames.fetch_frame(OTHER, 0, partition_bytes=1))
_BARE: Final[_Wire] = (
    b"",
    lambda topic, batch: append_frame(topic, [batch], "os"),
    fetch_frame(OTHER, 0, partition_bytes=1),
)
_NATIVE: Final[_Wire] = (GREETING, *_BARE[1:])


def rows(bench: Bench, field: Field) -> Iterator[PeerRow]:
    """The times of the others, and the daemon's longest turn in processor time; milliseconds."""
    for firehose in _FIREHOSES:
        once = partial(_beside, bench, field.load, firehose)
        sides: dict[str, Callable[[], dict[str, float]]] = {}
        for ours in field.builds:
            for name, wire in ((ours.native, _NATIVE), (ours.listener, _KAFKAS)):
                if name is not None:
                    sides[name] = partial(_of_daemon, bench, ours.build, wire, once)
        if field.bare is not None:
            sides[BARE] = partial(_of_bare, bench, once)
        found = dict(zip(sides, take_turns(bench.rounds, *sides.values()), strict=True))
        for what in _ROWS:
            values = {name: [one[what] * 1000 for one in rounds] for name, rounds in found.items() if what in rounds[0]}
            goal = STALL_GOAL if what == _TURN else OTHERS_GOAL
            if what.endswith("max"):
                goal = Goal("≤", 1.5 * statistics.median(values.get(BARE, [math.inf])), "value")
            goals = dict.fromkeys(set(values) - {BARE}, goal) if firehose.connections else {}
            measured = {name: [*map(Measure, times)] for name, times in values.items()}
            yield PeerRow("firehose", f"{firehose.name}: {what}", "ms", measured, goals)


def _of_daemon(
    bench: Bench, build: Build, wire: _Wire, once: Callable[[int, _Wire], dict[str, float]]
) -> dict[str, float]:
    """By the row, in seconds."""
    with daemon_with_door(bench, build=build) as opened, connect(opened.running.port) as connection:
        for topic in (OTHER, TOPIC):
            connection.create_topic(topic)
        connection.ask_frame(append_frame(OTHER, [one_record()], "disk"))
        found = once(opened.port if wire is _KAFKAS else opened.running.port, wire)
        return found | {_TURN: connection.longest_turn_seconds()}


def _of_bare(bench: Bench, once: Callable[[int, _Wire], dict[str, float]]) -> dict[str, float]:
    with bench.fresh_directory() as directory, bare_server("writes", str(directory / "sink")) as port:
        return once(port, _BARE)


def _beside(bench: Bench, load: LoadProcess, firehose: AppendCase, port: int, wire: _Wire) -> dict[str, float]:
    """How long the requests of the others took at most, and 99 of 100 of them."""
    greeting, append, fetch = wire
    pace = Pace(bench)
    pace.seconds, pace.bytes_max = bench.pick(5.0, 0.3), bench.pick(8192, 64) * MIB
    times: dict[str, list[float]] = {"append": [], "fetch": []}
    asked = [("append", append(OTHER, one_record())), ("fetch", fetch)]
    buffer = memoryview(bytearray(MIB))
    clock = time.perf_counter
    with open_socket(port, [greeting] if greeting else []) as sock:
        if firehose.connections:
            load.begin(flood_job(port, append(TOPIC, firehose.batch()[0]), firehose, pace, greeting))
        due = clock()
        ends = due + pace.seconds
        while due < ends:
            for kind, frame in asked:
                ahead = due - clock()
                if ahead > 0:
                    time.sleep(ahead)
                began = clock() if ahead > 0 else due  # late because the one before took long: that counts
                exchange(sock, frame, buffer)
                times[kind].append(clock() - began)
                due += _PACE_SECONDS
        if firehose.connections:
            load.result()
    found = {f"{kind} p99": percentile(own, 0.99) for kind, own in times.items()}
    return found | {f"{kind} max": max(own) for kind, own in times.items()}
