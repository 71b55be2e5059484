"""A load with a scrape of ``/metrics`` each second, beside the same load without: latency of appends, and long turns.

The broker has very many partitions and groups. Appends come at a fixed rate, one at a time, and one that is late counts
from when it was due. The scraper is a process of its own (``python -m benchmarks.scrape PORT``), so a part of what is
seen is what any process takes of the machine's processors.
"""

import gzip
import http.client
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from benchmarks.batches import batch_of
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, latency_rows, percentile, take_turns
from benchmarks.processes import Daemon, cpu_seconds, daemon, worker
from benchmarks.raw_client import append_frame, connect, encode
from seglog_protocol.messages import Ack, CommitOffset, CommitOffsetsRequest

RATES: Final[dict[Ack, int]] = {"os": 500, "disk": 50}
"""Appends a second, by ack level."""
PARTITIONS: Final = 1_000
"""Of each topic."""
TOPIC: Final = "scraped-%d"
ROUNDS_EACH: Final = 3
"""Short rounds for each round that is asked for: the machine's moods are longer than a round."""


def _prepare(running: Daemon, topics: int, groups: int) -> None:
    with connect(running.port) as connection:
        for number in range(topics):
            connection.create_topic(TOPIC % number, PARTITIONS)
        for number in range(groups):
            offsets = [CommitOffset(TOPIC % (number % topics), partition, 0) for partition in range(10)]
            connection.ask_frame(encode(CommitOffsetsRequest(f"group-{number}", offsets)))


def _latencies(port: int, ack: Ack, seconds: float) -> list[float]:
    """Seconds from when an append was due until its answer."""
    with connect(port) as connection:
        return connection.ask_at_rate(append_frame(TOPIC % 0, [batch_of(1_000)[0]], ack), RATES[ack], seconds)


def _scraped(running: Daemon, ack: Ack, seconds: float, pages: list[float]) -> list[float]:
    """The same beside a scraper; how long each page took is noted."""
    with worker("benchmarks.scrape", str(running.http_port), stdin=subprocess.PIPE) as scraper:
        assert scraper.stdout is not None
        assert scraper.stdin is not None
        scraper.stdout.readline()
        found = _latencies(running.port, ack, seconds)
        scraper.stdin.close()
        before = len(pages)
        pages += map(float, scraper.stdout)
        if scraper.wait() != 0 or len(pages) == before:
            raise BenchmarkError("the scraping process failed")
    return found


def run(bench: Bench) -> Iterator[Row]:
    """Rows for each ack level; then what a page costs."""
    seconds = bench.pick(10.0, 1.5)
    with daemon(bench, "--set", "seglog.http.listen=127.0.0.1:0") as running:
        _prepare(running, bench.pick(10, 1), bench.pick(1_000, 10))
        time.sleep(bench.pick(60.0, 0.0))  # until the longest turn of the last minute is none of the preparation
        cost = statistics.median(_page_cost(running) for _ in range(3))
        pages: list[float] = []
        for ack, rate in RATES.items():
            plain, scraped = take_turns(
                bench.rounds * bench.pick(ROUNDS_EACH, 1),
                partial(_latencies, running.port, ack, seconds),
                partial(_scraped, running, ack, seconds, pages),
            )
            yield from latency_rows(f"{rate}/s, ack {ack}", scraped, plain, "no scrape")
        longest = _value(running.http_port, "seglog_loop_longest_turn_seconds")
        yield Row("processor time of a page", "ms", [cost * 1000], note=f"{len(_page(running.http_port)):,} bytes")
        yield Row("a page beside the load, p50", "ms", [percentile(pages, 0.5) * 1000])
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


BENCHMARK: Final = Benchmark("scrape", "a load beside a scrape of /metrics each second", "no scrape", run, 1800)

if __name__ == "__main__":
    ask(int(sys.argv[1]))
