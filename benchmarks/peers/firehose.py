"""What others notice of a firehose: seglog alone, with and without a flood of appends beside clients at a pace.

A new daemon a round, because the longest stall that it tells is the longest since its start. The others append to and
fetch from a topic of their own, one request every 20 ms; a request that is late because the
one before was held up counts from when it was due.
"""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks.batches import one_record
from benchmarks.harness import MIB, Bench, BenchmarkError, percentile, take_turns
from benchmarks.peers.cases import OTHERS_GOAL, STALL_GOAL, AppendCase
from benchmarks.peers.jobs import LoadProcess, Pace, flood_job
from benchmarks.peers.others import KINDS, OTHER, others
from benchmarks.peers.results import Measure, PeerRow
from benchmarks.processes import Build, daemon
from benchmarks.raw_client import GREETING, append_frame, connect
from benchmarks.stalls import loop_stall_seconds

TOPIC: Final = "bench-peers-firehose"
_STALL: Final = "stall"
_ROWS: Final = (*(f"{kind} p99" for kind in KINDS), _STALL)


_FIREHOSES: Final = (
    AppendCase("firehose", "1 x 512 of 100 B", 0, 1, 512, "os", {}),
    AppendCase("firehose", "16 x 16 of 100 B", 0, 16, 16, "os", {}),
    AppendCase("firehose", "1 x 16 of 256 KiB", 256 * 1024, 1, 16, "os", {}),
)
"""Connections x depth."""

_PACE_SECONDS: Final = 0.02
"""Longer than a request waits behind all that these firehoses leave unanswered, so that none delays the next."""


def rows(bench: Bench, load: LoadProcess, builds: Mapping[str, Build]) -> Iterator[PeerRow]:
    """p99 of appends and fetches of the others, and the longest stall; milliseconds. ``builds`` by the side."""
    for firehose in (None, *_FIREHOSES):
        rounds = take_turns(bench.rounds, *(partial(_round, bench, load, build, firehose) for build in builds.values()))
        beside = "none" if firehose is None else firehose.name
        for what in _ROWS:
            sides = {side: [Measure(one[what] * 1000) for one in own] for side, own in zip(builds, rounds, strict=True)}
            goal = STALL_GOAL if what == _STALL else OTHERS_GOAL
            yield PeerRow(
                "firehose", f"{beside}: {what}", "ms", sides, {} if firehose is None else dict.fromkeys(sides, goal)
            )


def _round(bench: Bench, load: LoadProcess, build: Build, firehose: AppendCase | None) -> dict[str, float]:
    """By the row, in seconds."""
    pace = Pace(bench)
    pace.seconds, pace.bytes_max = bench.pick(5.0, 0.3), bench.pick(8192, 64) * MIB
    with daemon(bench, build=build) as running, connect(running.port) as connection:
        connection.create_topic(OTHER)
        connection.ask_frame(append_frame(OTHER, [one_record()], "disk"))
        if firehose is not None:
            connection.create_topic(TOPIC)
            batch, _ = firehose.batch()
            load.begin(flood_job(running.port, append_frame(TOPIC, [batch], firehose.ack), firehose, pace, GREETING))
        times = others(connection, time.perf_counter() + pace.seconds, _PACE_SECONDS)
        if firehose is not None:
            load.result()
        stall = loop_stall_seconds(running.port)
    if stall is None:
        raise BenchmarkError("the daemon does not tell its longest stall")
    found = (*(percentile(times[kind], 0.99) for kind in KINDS), stall)
    return dict(zip(_ROWS, found, strict=True))
