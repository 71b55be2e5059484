"""What a thousand waiting consumers cost while nothing happens: process CPU time, and memory."""

import resource
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from benchmarks.harness import MIB, Bench, Benchmark, BenchmarkError, Goal, Row
from benchmarks.processes import cpu_seconds, daemon, environment, raise_open_files_limit, resident_bytes
from benchmarks.raw_client import Connection, connect, fetch_frame, open_socket

TOPIC: Final = "bench-idle"
CONSUMERS: Final = 1_000
HELD: Final = 10_000
HELD_AT_ONCE: Final = 2_500
"""Connections that only say hello, and how many of them one process of its own holds."""

_HOLDER: Final = """
import sys
from contextlib import ExitStack
from benchmarks.processes import raise_open_files_limit
from benchmarks.raw_client import connect
port, count = int(sys.argv[1]), int(sys.argv[2])
raise_open_files_limit(count + 100)
with ExitStack() as stack:
    for _ in range(count):
        stack.enter_context(connect(port))
    print("held", flush=True)
    sys.stdin.read()
"""
_WAIT_MS: Final = 30_000
"""As long as the client library asks a broker to wait."""


def run(bench: Bench) -> Iterator[Row]:
    """One long window each: a clock tick is 10 ms, so short ones say nothing."""
    raise_open_files_limit(3 * CONSUMERS)  # of the daemon too, which inherits it
    seconds = bench.pick(30.0, 10.0)
    with daemon(bench) as running, ExitStack() as stack:
        with connect(running.port) as connection:
            connection.create_topic(TOPIC)
        alone = _cpu_percent(running.pid, bench.pick(10.0, 1.0), ())
        memory = resident_bytes(running.pid)
        consumers = [Connection(stack.enter_context(open_socket(running.port))) for _ in range(CONSUMERS)]
        frame = fetch_frame(TOPIC, 0, partition_bytes=MIB, max_wait_ms=_WAIT_MS)
        for consumer in consumers:
            consumer.sock.sendall(frame)
        _cpu_percent(running.pid, 1.0, consumers)
        grown = resident_bytes(running.pid) - memory
        busy = _cpu_percent(running.pid, seconds, consumers)
    yield Row(
        f"CPU, {CONSUMERS:,} waiting, {seconds:g} s", "% core", [busy], [alone], "none waiting", Goal("≤", 0.5, "value")
    )
    yield Row(f"memory, {CONSUMERS:,} waiting", "MiB more", [grown / MIB])
    yield _held(bench)


def _held(bench: Bench) -> Row:
    """Memory of a connection that was greeted and does nothing; as many as the hard limit on open files allows."""
    wanted = bench.pick(HELD, HELD // 10)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard - 1_000)
    raise_open_files_limit(count + 1_000)
    with daemon(bench) as running, ExitStack() as stack:
        with connect(running.port):
            memory = resident_bytes(running.pid)
        held = 0
        while held < count:
            some = min(HELD_AT_ONCE, count - held)
            holder = subprocess.Popen(
                [sys.executable, "-c", _HOLDER, str(running.port), str(some)],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.callback(holder.communicate)
            assert holder.stdout is not None
            if holder.stdout.readline() != b"held\n":
                raise BenchmarkError(f"after {held:,} connections no more could be opened")
            held += some
        grown = resident_bytes(running.pid) - memory
    return Row(f"memory, {count:,} connected and idle", "KiB each", [grown / 1024 / count])


def _cpu_percent(pid: int, seconds: float, consumers: Sequence[Connection]) -> float:
    """CPU time of the daemon during a window in which the consumers ask again whenever their wait is over."""
    frame = fetch_frame(TOPIC, 0, partition_bytes=MIB, max_wait_ms=_WAIT_MS)
    buffer = bytearray(65536)
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer.sock, selectors.EVENT_READ, consumer.sock)
        began, used = time.monotonic(), cpu_seconds(pid)
        while (left := began + seconds - time.monotonic()) > 0:
            if not consumers:
                time.sleep(left)
                continue
            for key, _ in selector.select(left):
                if key.data.recv_into(buffer):
                    key.data.sendall(frame)
                else:
                    selector.unregister(key.data)
        return 100 * (cpu_seconds(pid) - used) / (time.monotonic() - began)


BENCHMARK = Benchmark(
    "idle",
    "consumers that wait at the end of a quiet topic, each on a connection of its own",
    "the same daemon with nobody connected",
    run,
)
