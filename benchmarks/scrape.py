"""A load with a scrape of ``/metrics`` each second, beside the same load without: latency of appends, and long turns.

The broker has very many partitions and groups. Appends come at a fixed rate, one at a time, and one that is late counts
from when it was due. A third side tells what the machine does of it, whose processors all processes share: the same
scraper asks a process that makes nothing, which sends a page as it came from the broker, in the same pieces, and takes
as much processor time for it.

``python -m benchmarks.scrape ask PORT`` is the scraper, ``serve FILE SECONDS`` sends the page; both are processes of
their own.
"""

import gzip
import http.client
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.batches import batch_of
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, latency_rows, percentile, take_turns
from benchmarks.processes import Daemon, bare_server, cpu_seconds, daemon, worker
from benchmarks.raw_client import append_frame, connect, encode
from seglog_protocol.messages import Ack, CommitOffset, CommitOffsetsRequest

RATES: Final[dict[Ack, int]] = {"os": 500, "disk": 50}
"""Appends a second, by ack level."""
PARTITIONS: Final = 1_000
"""Of each topic."""
TOPIC: Final = "scraped-%d"
ROUNDS_EACH: Final = 3
"""Short rounds for each round that is asked for: the machine's moods are longer than a round."""
_PORT: Final = "127.0.0.1:0"
_MODULE: Final = "benchmarks.scrape"


def _prepare(running: Daemon, topics: int, groups: int) -> None:
    with connect(running.port) as connection:
        for number in range(topics):
            connection.create_topic(TOPIC % number, PARTITIONS)
        for number in range(groups):
            offsets = [CommitOffset(TOPIC % (number % topics), partition, 0) for partition in range(10)]
            connection.ask_frame(encode(CommitOffsetsRequest(f"group-{number}", offsets)))


def _latencies(port: int, ack: Ack, seconds: float) -> list[float]:
    """Seconds from when an append was due until its answer."""
    rate = RATES[ack]
    frame = append_frame(TOPIC % 0, [batch_of(1_000)[0]], ack)
    found = []
    with connect(port) as connection:
        began = time.perf_counter()
        for number in range(int(seconds * rate)):
            due = began + number / rate
            if (ahead := due - time.perf_counter()) > 0:
                time.sleep(ahead)
                due = time.perf_counter()  # the sleep's own lateness is not the broker's
            connection.ask_frame(frame)
            found.append(time.perf_counter() - due)
    return found


def _scraped(port: int, http_port: int, ack: Ack, seconds: float, pages: list[float]) -> list[float]:
    """The same beside a scraper of ``http_port``; how long each page took is noted."""
    with worker(_MODULE, "ask", str(http_port), stdin=subprocess.PIPE) as scraper:
        assert scraper.stdout is not None
        assert scraper.stdin is not None
        scraper.stdout.readline()
        found = _latencies(port, ack, seconds)
        scraper.stdin.close()
        before = len(pages)
        pages += map(float, scraper.stdout)
        if scraper.wait() != 0 or len(pages) == before:
            raise BenchmarkError("the scraping process failed")
    return found


def run(bench: Bench) -> Iterator[Row]:
    """Rows for each ack level: beside the broker's pages, and beside those of the control; then what a page costs."""
    seconds = bench.pick(10.0, 1.5)
    topics, groups = bench.pick(10, 1), bench.pick(1_000, 10)
    with bench.fresh_directory() as directory, daemon(bench, "--set", f"seglog.http.listen={_PORT}") as running:
        _prepare(running, topics, groups)
        time.sleep(bench.pick(60.0, 0.0))  # until the longest turn of the last minute is none of the preparation
        cost = statistics.median(_page_cost(running) for _ in range(3))
        page = directory / "page"
        page.write_bytes(_response(running.http_port))
        pages: dict[str, list[float]] = {"scraped": [], "control": []}
        with bare_server("serve", str(page), str(cost), module=_MODULE) as control_port:
            for ack, rate in RATES.items():
                plain, *scraped = take_turns(
                    bench.rounds * bench.pick(ROUNDS_EACH, 1),
                    partial(_latencies, running.port, ack, seconds),
                    *(
                        partial(_scraped, running.port, port, ack, seconds, took)
                        for port, took in zip((running.http_port, control_port), pages.values(), strict=True)
                    ),
                )
                for what, latencies in zip(pages, scraped, strict=True):
                    yield from latency_rows(f"{rate}/s, ack {ack}, {what}", latencies, plain, "no scrape")
        longest = _value(running.http_port, "seglog_loop_longest_turn_seconds")
        yield Row("processor time of a page", "ms", [cost * 1000], note=f"{page.stat().st_size:,} bytes")
        for what, took in pages.items():
            yield Row(f"a page beside the load, {what}, p50", "ms", [percentile(took, 0.5) * 1000])
        yield Row("longest turn of the loop in the last minute", "ms", [longest * 1000])


def _page_cost(running: Daemon) -> float:
    """Seconds of the broker's processor time for a page: of ten, for the clock of processes has steps of 10 ms."""
    before = cpu_seconds(running.pid)
    for _ in range(10):
        _page(running.http_port)
    return (cpu_seconds(running.pid) - before) / 10


# --- The scraping process ---------------------------------------------------------------------------------------------


def _page(port: int, query: str = "") -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/metrics{query}", headers={"Accept-Encoding": "gzip"})
    response = connection.getresponse()
    page = gzip.decompress(response.read())
    connection.close()
    if response.status != http.client.OK:
        raise BenchmarkError(f"/metrics answered {response.status}")
    return page


def _value(port: int, name: str) -> float:
    return float(_page(port, f"?name[]={name}").split()[-1])


def ask(port: int) -> None:
    """Scrape each second until standard input ends; print the seconds of each page."""
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 1.0)[0]:
        began = time.perf_counter()
        _page(port)
        print(time.perf_counter() - began, flush=True)


# --- The process that makes nothing -----------------------------------------------------------------------------------


def _response(port: int) -> bytes:
    """The bytes that answer a request for the page."""
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(
            b"GET /metrics HTTP/1.1\r\nHost: broker\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
        )
        return b"".join(iter(lambda: connection.recv(1 << 20), b""))


def pieces(response: bytes) -> list[bytes]:
    """The head of an answer, and each of its chunks as it was sent."""
    end = response.index(b"\r\n\r\n") + 4
    found = [response[:end]]
    while end < len(response):
        begin, body = end, response.index(b"\r\n", end) + 2
        end = body + int(response[begin : body - 2], 16) + 2
        found.append(response[begin:end])
    return found


def serve(page: Path, seconds: float) -> None:
    """Print a port, and answer whatever is asked there with a page, using ``seconds`` of processor time for each."""
    parts = pieces(page.read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                began = time.process_time()
                for number, part in enumerate(parts, 1):
                    while time.process_time() - began < seconds * number / len(parts):
                        os.sched_yield()  # to whoever waits, as the broker serves requests between its turns
                    connection.sendall(part)


BENCHMARK: Final = Benchmark("scrape", "a load beside a scrape of /metrics each second", "no scrape", run, 1800)

if __name__ == "__main__":
    if sys.argv[1] == "ask":
        ask(int(sys.argv[2]))
    else:
        serve(Path(sys.argv[2]), float(sys.argv[3]))
