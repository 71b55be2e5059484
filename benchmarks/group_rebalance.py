"""Rebalances of a group of 100 members, each on a connection of its own, beside a real Kafka."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

from benchmarks.batches import one_record
from benchmarks.group_wire import TOPIC, Member, Replies, prepare, real_kafka, settle
from benchmarks.harness import Bench, Benchmark, Row, percentile, take_turns
from benchmarks.kafka_door import daemon_with_door
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.kafka_frames import produce_frame, produced
from benchmarks.peers.servers import PeerServer
from benchmarks.processes import cpu_seconds, worker
from benchmarks.raw_client import open_socket

MEMBERS: Final = 100
FORMING_MS: Final = 1_000
"""How long both brokers wait for the first members of a new group; that wait is not measured."""

BESIDE_SECONDS: Final = 0.001
"""Between two appends of the one who only appends."""


class Rebalanced(NamedTuple):
    """What one member's join and its leave took, and what somebody saw who appended meanwhile."""

    join_seconds: float
    leave_seconds: float
    server_cpu_seconds: float
    append_max_seconds: float
    append_median_seconds: float


class Crowd:
    """The members of one group, each on a connection of its own, in their last generation."""

    def __init__(self, pid: int, port: int, members: int, stack: ExitStack) -> None:
        self._pid = pid
        self._port = port
        self._stack = stack
        prepare(port, ["bench-loaded"])
        self._members = [self._member() for _ in range(members)]
        for member in self._members:
            member.join()
        settle(self._members)

    def _member(self) -> Member:
        return Member("bench-rebalance", Replies(self._stack.enter_context(open_socket(self._port))))

    def rebalance(self) -> Rebalanced:
        """One member joins; when all have their assignments it leaves, and all get them again."""
        new = self._member()
        with worker("benchmarks.group_rebalance", str(self._port), stdin=-1) as beside:
            assert beside.stdin is not None
            assert beside.stdout is not None
            beside.stdout.readline()  # it has begun
            cpu = cpu_seconds(self._pid)
            began = time.perf_counter()
            new.join()
            for member in self._members:
                member.heartbeat()
            settle([*self._members, new])
            joined = time.perf_counter()
            new.leave()
            for member in self._members:
                member.heartbeat()
            settle(self._members)
            left = time.perf_counter()
            cpu = cpu_seconds(self._pid) - cpu
            beside.stdin.close()
            times = json.loads(beside.stdout.readline())
        new.replies.sock.close()
        return Rebalanced(joined - began, left - joined, cpu, max(times), percentile(times, 0.5))


def append_until_told(port: int) -> list[float]:
    """Append a record every ms until stdin ends; how long each took, in seconds."""
    told = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        told.set()

    data = produce_frame(TOPIC, one_record())
    times: list[float] = []
    with open_socket(port) as sock:
        replies = Replies(sock)
        replies.ask_frame(data)
        threading.Thread(target=wait, daemon=True).start()
        print("begun", flush=True)
        while not told.wait(BESIDE_SECONDS) or not times:
            began = time.perf_counter()
            reply = replies.ask_frame(data)
            times.append(time.perf_counter() - began)
            produced(bytes(4) + reply, TOPIC)
    return times


def _run(bench: Bench) -> Iterator[Row]:
    members = bench.pick(MEMBERS, 10)
    delay = f"group.initial.rebalance.delay.ms={FORMING_MS}"
    with ExitStack() as stack:
        opened = stack.enter_context(daemon_with_door(bench, "--set", delay))
        kafka = stack.enter_context(real_kafka(bench, delay))
        for server in (opened, kafka):
            if not isinstance(server, str):
                with connect_kafka(server.port) as connection:
                    connection.create_topic(TOPIC)
        sides: list[Callable[[], Rebalanced]] = []
        crowd = Crowd(opened.pid, opened.port, members, stack)
        sides.append(crowd.rebalance)
        if isinstance(kafka, PeerServer):
            beside = Crowd(kafka.pid, kafka.port, members, stack)
            sides.append(beside.rebalance)
            for _ in range(bench.pick(20, 1)):  # Java compiles what runs often
                beside.rebalance()
        crowd.rebalance()
        ours, *others = take_turns(bench.rounds, *sides)
        kafkas = others[0] if others else []
        name = "Kafka" if others else ""
        for index, what in enumerate(
            (
                f"one joins {members}",
                "and leaves",
                "processor time of the broker for both",
                "slowest append meanwhile",
                "median append meanwhile",
            )
        ):
            yield Row(what, "ms", [each[index] * 1e3 for each in ours], [each[index] * 1e3 for each in kafkas], name)
        if isinstance(kafka, str):
            yield Row("beside a real Kafka", "ms", note=kafka)


BENCHMARK: Final = Benchmark("group-rebalance", "a rebalance: up to the last assignment", "", _run, 600)

if __name__ == "__main__":
    print(json.dumps(append_until_told(int(sys.argv[1]))), flush=True)
