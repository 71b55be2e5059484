"""A load with a scrape of ``/metrics`` each second, beside the same load without: latency of appends, and long turns.

The broker has very many partitions and groups. Appends come at a fixed rate, one at a time, and one that is late counts
from when it was due. ``python -m benchmarks.scrape PORT`` is the scraper, a process of its own.
"""

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
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
_PORT: Final = "127.0.0.1:0"


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


def _scraped(running: Daemon, ack: Ack, seconds: float, pages: list[tuple[float, int]]) -> list[float]:
    """The same beside a scraper, whose pages are noted: how long each took, and its size."""
    with worker("benchmarks.scrape", str(running.http_port), stdin=subprocess.PIPE) as scraper:
        assert scraper.stdout is not None
        assert scraper.stdin is not None
        scraper.stdout.readline()
        found = _latencies(running.port, ack, seconds)
        scraper.stdin.close()
        for line in scraper.stdout:
            took, size = line.split()
            pages.append((float(took), int(size)))
        if scraper.wait() != 0 or not pages:
            raise BenchmarkError("the scraping process failed")
    return found


def run(bench: Bench) -> Iterator[Row]:
    """Three rows for each ack level, then what a page costs."""
    seconds = bench.pick(20.0, 1.5)
    topics, groups = bench.pick(10, 1), bench.pick(1_000, 10)
    pages: list[tuple[float, int]] = []
    with daemon(bench, "--set", f"seglog.http.listen={_PORT}") as running:
        _prepare(running, topics, groups)
        time.sleep(bench.pick(60.0, 0.0))  # until the longest turn of the last minute is none of the preparation
        for ack, rate in RATES.items():
            plain, scraped = take_turns(
                bench.rounds,
                lambda ack=ack: _latencies(running.port, ack, seconds),  # type: ignore[misc]
                lambda ack=ack: _scraped(running, ack, seconds, pages),  # type: ignore[misc]
            )
            yield from latency_rows(f"{rate} appends/s, ack {ack}, scraped", scraped, plain, "no scrape")
        longest = _value(running.http_port, "seglog_loop_longest_turn_seconds")
        cpu = cpu_seconds(running.pid)
        size = len(_page(running.http_port))
        yield Row("processor time of a page", "ms", [(cpu_seconds(running.pid) - cpu) * 1000], note=f"{size:,} bytes")
        yield Row("a page beside the load, p50", "ms", [percentile([took for took, _ in pages], 0.5) * 1000])
        yield Row("longest turn of the loop in the last minute", "ms", [longest * 1000])


# --- The scraping process ---------------------------------------------------------------------------------------------


def _page(port: int, query: str = "") -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/metrics{query}")
    response = connection.getresponse()
    page = response.read()
    connection.close()
    if response.status != http.client.OK:
        raise BenchmarkError(f"/metrics answered {response.status}: {page.decode()}")
    return page


def _value(port: int, name: str) -> float:
    return float(_page(port, f"?name[]={name}").split()[-1])


def main() -> None:
    """Scrape each second until standard input ends; print seconds and size of each page."""
    import select  # noqa: PLC0415 - of this process alone

    port = int(sys.argv[1])
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 1.0)[0]:
        began = time.perf_counter()
        size = len(_page(port))
        print(time.perf_counter() - began, size, flush=True)


BENCHMARK: Final = Benchmark("scrape", "a load beside a scrape of /metrics each second", "no scrape", run, 1800)

if __name__ == "__main__":
    main()
