"""Waking long polls: 100 and 1,000 connections wait at the end of a partition; an append, and when each is answered."""

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from benchmarks.batches import one_record
from benchmarks.harness import MIB, Bench, Benchmark, BenchmarkError, Goal, Row, percentile, take_turns
from benchmarks.processes import bare_server, daemon, raise_open_files_limit
from benchmarks.raw_client import Connection, append_frame, fetch_frame, open_socket

TOPIC: Final = "bench-polls"
WAITERS: Final = (100, 1_000)
_SETTLE_SECONDS: Final = 0.000_2
"""Left for the request of each waiter to arrive and wait before the append."""
_WAIT_MS: Final = 20_000


def run(bench: Bench) -> Iterator[Row]:
    """p50, p99 and the longest, over all waiters and appends of a round."""
    for waiters in WAITERS:
        yield from _woken(bench, waiters)


def _woken(bench: Bench, waiters: int) -> Iterator[Row]:
    appends = max(1, bench.pick(5_000, 500) // waiters)
    raise_open_files_limit(2 * waiters + 100)
    with daemon(bench) as running, bare_server("wake") as bare_port, ExitStack() as stack:
        # The bare server takes the first connection for the one that speaks.
        ours = [stack.enter_context(open_socket(running.port)) for _ in range(waiters + 1)]
        bare = [stack.enter_context(open_socket(bare_port)) for _ in range(waiters + 1)]
        connections = [Connection(sock) for sock in ours]
        connections[0].create_topic(TOPIC)
        frame = append_frame(TOPIC, [one_record()], "os")

        def seglog_round() -> list[float]:
            start = connections[0].end_offset(TOPIC)
            return _wake(ours, frame, appends, lambda number: _waiting_fetch(start + number))

        def bare_round() -> list[float]:
            return _wake(bare, frame, appends, lambda _number: _waiting_fetch(0))

        ours_times, bare_times = take_turns(bench.rounds, seglog_round, bare_round)
    limit = Goal("≤", 5, "value") if waiters == WAITERS[0] else None
    for part, share, goal in (("p50", 0.5, None), ("p99", 0.99, limit), ("max", 1.0, None)):
        yield Row(
            f"append to answer, {waiters:,} waiters: {part}",
            "ms",
            [percentile(times, share) * 1000 for times in ours_times],
            [percentile(times, share) * 1000 for times in bare_times],
            "wake all",
            goal,
        )


def _waiting_fetch(offset: int) -> bytes:
    return fetch_frame(TOPIC, offset, partition_bytes=MIB, max_wait_ms=_WAIT_MS)


def _wake(
    sockets: list[socket.socket], frame: bytes, appends: int, waiting_frame: Callable[[int], bytes]
) -> list[float]:
    """Seconds from sending the append to the whole answer, for each waiter and append."""
    speaker, *waiters = sockets
    buffer = memoryview(bytearray(65536))
    times: list[float] = []
    with selectors.DefaultSelector() as selector:
        for waiter in waiters:
            selector.register(waiter, selectors.EVENT_READ)
        for number in range(appends):
            request = waiting_frame(number)
            for waiter in waiters:
                waiter.sendall(request)
            time.sleep(_SETTLE_SECONDS * len(waiters))
            began = time.perf_counter()
            speaker.sendall(frame)
            answered = 0
            while answered < len(waiters):
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    _receive_answer(key.fileobj, buffer)
                    times.append(time.perf_counter() - began)
                    answered += 1
            _receive_answer(speaker, buffer)
    return times


def _receive_answer(sock: socket.socket, buffer: memoryview) -> None:
    """One whole small answer."""
    got, size = 0, 4
    while got < size:
        count = sock.recv_into(buffer[got:])
        if count == 0:
            raise BenchmarkError("the server hung up on a waiter")
        got += count
        if got >= 4:
            size = 4 + int.from_bytes(buffer[:4], "big")


BENCHMARK = Benchmark(
    "polls",
    "long polls woken by one append (ack os)",
    "a process that answers all waiting sockets in a row",
    run,
)
