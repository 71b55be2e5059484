"""``seglog console`` before 10,000 partitions, and ten readers of its pages beside a load at half the broker's rate.

Sizes are simulated: each partition has a closed segment that is mostly a hole in its file. First paint is a browser's
own figure, where one is installed. ``python -m benchmarks.console ADDRESS`` are the readers: each holds the stream of a
page and loads a page each second, until standard input ends; it prints how many pages there were.
"""

import http.client
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.cookies import SimpleCookie
from typing import Any, Final
from urllib.parse import urlsplit

import seglog
from benchmarks.batches import FIRST_TIMESTAMP, batch_of
from benchmarks.harness import MB, Bench, Benchmark, BenchmarkError, Goal, Row, take_turns
from benchmarks.processes import Daemon, answer_of, cpu_seconds, daemon, environment, worker
from benchmarks.raw_client import GREETING, append_frame, connect, encode, open_socket
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.messages import AppendPartition, AppendRequest
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, seal_batch

TOPIC: Final = "bench-console-%d"
PAGES: Final = ("/", "/topics", f"/topics/{TOPIC % 0}", f"/topics/{TOPIC % 0}?partition=0", "/groups", "/broker")
READERS: Final = 10
PAGE_BYTES_MAX: Final = 100_000
BURST_SECONDS: Final = 0.01
SETTINGS: Final = ("--set", "log.retention.ms=-1", "--set", "seglog.scrub.bytes.per.second=0")


@contextmanager
def _console(running: Daemon) -> Iterator[str]:
    """Its address; it lets anybody in."""
    command = [sys.executable, "-m", "seglog.cli", "--server", running.address, "console", "--no-token"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http" not in line:
                raise BenchmarkError(f"the console did not start: {line}")
            yield line.split()[-1]
        finally:
            process.terminate()


def _fill(running: Daemon, topics: int, partitions: int, size: int) -> None:
    """Topics with two segments in each partition; the first is one batch of ``size`` bytes, mostly a hole."""
    batch, count = batch_of(2_000)
    with connect(running.port) as connection:
        for topic in (TOPIC % number for number in range(topics)):
            connection.create_topic(topic, partitions, segment_bytes=2_500)
            each = [AppendPartition(topic, partition, len(batch)) for partition in range(partitions)]
            for _ in range(2):
                connection.ask_frame(encode(AppendRequest(each, "disk"), [batch] * partitions))
    running.stop()
    zeros = encode_batch([(FIRST_TIMESTAMP, None, bytes(size), ())])
    large = seal_batch(parse_header(zeros)._replace(last_offset_delta=count - 1), zeros[HEADER_SIZE:])
    for log in running.directory.glob("bench-console-*/00000000000000000000.log"):
        log.write_bytes(large[:4096])
        os.truncate(log, len(large))
    running.start()


# --- A visitor --------------------------------------------------------------------------------------------------------


class Visitor:
    """A browser without a window."""

    def __init__(self, address: str) -> None:
        self._place = urlsplit(address)
        self._cookie = ""
        self.load("/")

    def load(self, path: str) -> bytes:
        """The page, behind a redirection that gives the cookie."""
        with self._answer(path) as answer:
            page = answer.read()
            if answer.status == http.client.SEE_OTHER:
                (morsel,) = SimpleCookie(answer.headers["set-cookie"]).values()
                self._cookie = f"{morsel.key}={morsel.value}"
                return self.load(path)
        if answer.status != http.client.OK:
            raise BenchmarkError(f"{path} answered {answer.status}: {page[:500]!r}")
        return page

    def follow(self, path: str) -> None:
        """Read the page's stream for ever."""
        with self._answer(f"{path}?live") as answer:
            while answer.readline():
                pass

    @contextmanager
    def _answer(self, path: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._place.netloc, timeout=60)
        connection.request("GET", path, headers={"cookie": self._cookie})
        try:
            yield connection.getresponse()
        finally:
            connection.close()


def read(address: str) -> int:
    """Be READERS of them until standard input ends; how many pages they loaded."""
    counts = [0] * READERS
    ended = threading.Event()

    def visit(number: int) -> None:
        visitor = Visitor(address)
        path = PAGES[number % len(PAGES)]
        threading.Thread(target=_quietly, args=(visitor.follow, path), daemon=True).start()
        while not ended.wait(1.0):
            visitor.load(PAGES[(number + counts[number]) % len(PAGES)])
            counts[number] += 1

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    select.select([sys.stdin], [], [])
    ended.set()
    for thread in threads:
        thread.join()
    return sum(counts)


def _quietly(follow: Any, path: str) -> None:
    with suppress(OSError, http.client.HTTPException):  # the console has ended
        follow(path)


# --- What is measured -------------------------------------------------------------------------------------------------


def _loaded(visitor: Visitor, path: str) -> float:
    began = time.perf_counter()
    visitor.load(path)
    return (time.perf_counter() - began) * 1000


def _painted(address: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds until a browser has painted each page, in windows of their own; none without a browser."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        return {}
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - of the tools of development

    found: dict[str, list[float]] = {path: [] for path in PAGES}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for path in PAGES * rounds:
            with browser.new_context() as context:
                page = context.new_page()
                page.goto(address)
                page.goto(address + path)
                page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
                script = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
                found[path].append(page.evaluate(script))
        browser.close()
    return found


def _appends(port: int, rate: float, seconds: float) -> int:
    """Appends in bursts at a rate, or (0) as fast as they are answered; how many."""
    frame = append_frame(TOPIC % 0, [batch_of(1_000)[0]], "os")
    burst = max(1, round(rate * BURST_SECONDS)) if rate else 100
    with open_socket(port, [GREETING]) as sock, sock.makefile("rb") as replies:
        began, bursts = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < seconds:
            if rate and (ahead := began + bursts * BURST_SECONDS - now) > 0:
                time.sleep(ahead)
            sock.sendall(frame * burst)
            for _ in range(burst):
                replies.read(int.from_bytes(replies.read(4), "big"))
            bursts += 1
    return bursts * burst


def _cost(running: Daemon, rate: float, seconds: float) -> float:
    """Microseconds of the broker's processor time for each append."""
    before = cpu_seconds(running.pid)
    count = _appends(running.port, rate, seconds)
    return (cpu_seconds(running.pid) - before) * 1e6 / count


def _cost_beside(running: Daemon, address: str, rate: float, seconds: float, pages: list[int]) -> float:
    with worker("benchmarks.console", address, stdin=subprocess.PIPE) as readers:
        time.sleep(2.0)
        cost = _cost(running, rate, seconds)
        pages.append(int(answer_of(readers)))
    return cost


def _turn(running: Daemon) -> float:
    with connect(running.port) as connection:
        return connection.longest_turn_seconds() * 1000


def _of_many_partitions(bench: Bench) -> Iterator[Row]:
    """Each page, and the longest turn that they made."""
    topics, partitions = bench.pick((100, 100), (2, 10))
    with daemon(bench, *SETTINGS) as running:
        _fill(running, topics, partitions, 10 * MB)
        with seglog.connect(running.address) as client:
            size = sum(topic.size for topic in client.topics())
        with _console(running) as address:
            visitor = Visitor(address)
            time.sleep(bench.pick(60.0, 0.0))  # until the longest turn of the last minute is none of the start
            before = _turn(running)
            painted = _painted(address, bench.rounds)
            for path in PAGES:
                yield Row(f"{path}: loaded", "ms", [_loaded(visitor, path) for _ in range(bench.rounds)])
                yield Row(f"{path}: first paint", "ms", painted.get(path, ()), goal=Goal("≤", 300, "value"))
                kilobytes = len(visitor.load(path)) / 1000
                yield Row(f"{path}: size", "kB", [kilobytes], goal=Goal("≤", PAGE_BYTES_MAX / 1000, "value"))
            note = f"{topics * partitions:,} partitions, {size / 1e9:,.0f} GB"
            yield Row(
                "longest turn with pages", "ms", [_turn(running)], [before], "before", Goal("≤", 10, "value"), note
            )


def run(bench: Bench) -> Iterator[Row]:
    """Each page, with many partitions; then the broker's work for an append, with readers and without."""
    yield from _of_many_partitions(bench)
    seconds = bench.pick(20.0, 1.0)
    with daemon(bench, *SETTINGS) as running:
        with connect(running.port) as connection:
            for number in range(10):
                connection.create_topic(TOPIC % number, 10)
        with _console(running) as address:
            rate = _appends(running.port, 0, seconds / 4) / (seconds / 4) / 2
            time.sleep(bench.pick(60.0, 0.0))
            pages: list[int] = []
            beside, alone = take_turns(
                bench.rounds,
                partial(_cost_beside, running, address, rate, seconds, pages),
                partial(_cost, running, rate, seconds),
            )
            turn = _turn(running)
        note = f"{statistics.mean(pages) / seconds:.0f} pages a second, {READERS} streams, {rate:,.0f} appends/s"
        yield Row("broker's time for an append", "us", beside, alone, "no reader", Goal("≤", 1.05, "ratio"), note)
        yield Row("longest turn in the last minute", "ms", [turn], goal=Goal("≤", 10, "value"))


BENCHMARK: Final = Benchmark("console", "pages of the console, and their readers beside a load", "no reader", run, 1800)

if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1])))
