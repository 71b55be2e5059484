"""What a request costs in one process, and what it would cost more to hand it to another one: processor time.

For docs/decisions/0023. Measured are the daemon's time for an append, in user and in system mode, and the time that two
processes take together to hand a request of 260 bytes over and its reply of 130 bytes back, in Python without a loop: a
socketpair(2), or shared memory with an eventfd(2) that wakes the other side. ``python -m benchmarks.hand_over`` is the
other process.
"""

import mmap
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.batches import one_record
from benchmarks.harness import MIB, REPOSITORY, Bench, Benchmark, Row, take_turns
from benchmarks.kafka_door import daemon_with_door
from benchmarks.peers.jobs import LoadProcess, flood_job, load_process
from benchmarks.peers.kafka_frames import produce_frame
from benchmarks.processes import environment
from benchmarks.raw_client import append_frame, connect, encode
from seglog_protocol.messages import HelloRequest

TOPIC: Final = "bench-hand-over"
REQUEST_BYTES: Final = 260
REPLY_BYTES: Final = 130
TOGETHER: Final = (1, 16)
"""Requests that are handed over at a time."""

_GREETING: Final = encode(HelloRequest("seglog", "benchmarks"))
_CASES: Final = (("depth 1", 1, 1), ("16 connections x 1", 16, 1), ("64 deep", 1, 64))


# --- Hand-over --------------------------------------------------------------------------------------------------------


class _Socket:
    """One end of a socketpair."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(MIB)

    def give(self, data: bytes) -> None:
        self._sock.sendall(data)

    def take(self, size: int) -> None:
        got = 0
        while got < size:
            count = self._sock.recv_into(self._buffer)
            if not count:
                raise EOFError
            got += count


class _Shared:
    """Shared memory with a half for each direction, and an eventfd for each, which says how many bytes are there."""

    def __init__(self, memory: mmap.mmap, mine: int, theirs: int, give_at: int) -> None:
        self._memory, self._mine, self._theirs = memory, mine, theirs
        self._give_at, self._take_at = give_at, MIB - give_at

    def give(self, data: bytes) -> None:
        self._memory[self._give_at : self._give_at + len(data)] = data
        os.eventfd_write(self._theirs, len(data))

    def take(self, size: int) -> None:
        got = 0
        while got < size:
            got += os.eventfd_read(self._mine)
            if got >= 1 << 32:
                raise EOFError
        self._memory[self._take_at : self._take_at + size]


_End = _Socket | _Shared


@contextmanager
def _other(kind: str, together: int) -> Iterator[tuple[_End, "subprocess.Popen[bytes]"]]:
    """This end, and the process at the other one."""
    ours, theirs = socket.socketpair()
    descriptors = [os.memfd_create("hand-over"), os.eventfd(0), os.eventfd(0)]
    os.ftruncate(descriptors[0], 2 * MIB)
    passed = [theirs.fileno(), *descriptors]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hand_over", kind, str(together), *map(str, passed)],
        env=environment(),
        cwd=REPOSITORY,
        pass_fds=passed,
    )
    theirs.close()
    end: _End = _Socket(ours)
    if kind != "socketpair":
        end = _Shared(mmap.mmap(descriptors[0], 2 * MIB), descriptors[1], descriptors[2], 0)
    try:
        yield end, process
    finally:
        ours.close()
        os.eventfd_write(descriptors[2], 1 << 33)
        process.wait()
        for descriptor in descriptors:
            os.close(descriptor)


class HandedOver(NamedTuple):
    """For each request, of one that waits for its reply before it hands over the next ones."""

    cpu_us: float
    """Of both processes."""
    system_us: float
    """The part of it in system mode."""
    round_trip_us: float
    """Of all that were handed over at a time."""


def hand_over(kind: str, together: int, seconds: float) -> HandedOver:
    """``together`` requests at a time, for ``seconds``."""
    data = bytes(REQUEST_BYTES * together)
    with _other(kind, together) as (end, process):
        for _ in range(100):
            end.give(data)
            end.take(REPLY_BYTES * together)
        before = _used(process.pid)
        began = now = time.perf_counter()
        count = 0
        while now < began + seconds:
            for _ in range(100):
                end.give(data)
                end.take(REPLY_BYTES * together)
            count += 100
            now = time.perf_counter()
        user, system = (after - first for after, first in zip(_used(process.pid), before, strict=True))
    requests = count * together
    return HandedOver((user + system) / requests * 1e6, system / requests * 1e6, (now - began) / count * 1e6)


def _used(pid: int) -> tuple[float, float]:
    """User and system time, in seconds, of this process and of another one together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, tick = resource.getrusage(resource.RUSAGE_SELF), os.sysconf("SC_CLK_TCK")
    return own.ru_utime + int(fields[11]) / tick, own.ru_stime + int(fields[12]) / tick


def main(kind: str, together: int, descriptors: list[int]) -> None:
    """Answer until the other end is closed."""
    sock, memory, theirs, mine = descriptors
    end: _End = _Socket(socket.socket(fileno=sock))
    if kind != "socketpair":
        end = _Shared(mmap.mmap(memory, 2 * MIB), mine, theirs, MIB)
    reply = bytes(REPLY_BYTES * together)
    try:
        while True:
            end.take(REQUEST_BYTES * together)
            end.give(reply)
    except (EOFError, ConnectionError):
        return


# --- The daemon -------------------------------------------------------------------------------------------------------


class _Served(NamedTuple):
    """For each append, os."""

    user_us: float
    system_us: float
    client_us: float
    """Of the load process."""
    per_second: float


def _served(
    load: LoadProcess, pid: int, port: int, frame: bytes, greeting: bytes, connections: int, depth: int, seconds: float
) -> _Served:
    job = flood_job(
        port, frame, greeting=greeting, connections=connections, depth=depth, seconds=seconds, bytes_max=512 * MIB
    )
    before = _of(pid)
    found = load.run(job)
    user, system = (after - first for after, first in zip(_of(pid), before, strict=True))
    each = 1e6 / found["answered"]
    return _Served(user * each, system * each, found["client_cpu_seconds"] * each, found["answered"] / found["seconds"])


def _of(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK"), int(fields[12]) / os.sysconf("SC_CLK_TCK")


def _run(bench: Bench) -> Iterator[Row]:
    seconds = bench.pick(2.0, 0.1)
    kinds = ("socketpair", "shared memory")
    for together in TOGETHER:
        sides: list[Callable[[], HandedOver]] = [partial(hand_over, kind, together, seconds / 2) for kind in kinds]
        for kind, measured in zip(kinds, take_turns(bench.rounds, *sides), strict=True):
            for part, unit in zip(HandedOver._fields, ("µs of CPU", "µs of it", "µs"), strict=True):
                name = {"cpu_us": "both", "system_us": "system mode", "round_trip_us": "round trip"}[part]
                yield Row(f"{kind}, {together}: {name}", unit, [getattr(one, part) for one in measured])
    with daemon_with_door(bench) as opened, load_process("benchmarks.peers.load") as load:
        with connect(opened.running.port) as connection:
            connection.create_topic(TOPIC)
        wires = {
            "native": (opened.running.port, append_frame(TOPIC, [one_record()], "os"), _GREETING),
            "Kafka's wire": (opened.port, produce_frame(TOPIC, one_record()), b""),
        }
        for name, connections, depth in _CASES:
            asked = [partial(_served, load, opened.pid, *wire, connections, depth, seconds) for wire in wires.values()]
            for wire, served in zip(wires, take_turns(bench.rounds, *asked), strict=True):
                yield Row(f"{name}, {wire}: user mode", "µs of CPU", [one.user_us for one in served])
                yield Row(f"{name}, {wire}: system mode", "µs of CPU", [one.system_us for one in served])
                yield Row(f"{name}, {wire}: the client's", "µs of CPU", [one.client_us for one in served])
                yield Row(f"{name}, {wire}", "appends/s", [one.per_second for one in served])


BENCHMARK: Final = Benchmark(
    "hand-over", "a request in one process, and handed to another; processor time for each", "", _run, 300
)

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(each) for each in sys.argv[3:]])
