"""End to end at 1,000 records/s: from ``send`` in one process to the record in another's hands.

Both use the client library; beside it stand two processes on plain sockets with a relay between them. A record is
stamped when it was due, if the producer is late, so that a stall counts for all the records that it held up.
``python -m benchmarks.latency`` is the producing process.
"""

import argparse
import socket
import time
from collections.abc import Iterator
from typing import Final

import seglog
from benchmarks.batches import RECORD_BYTES
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, latency_rows, take_turns
from benchmarks.processes import bare_server, daemon, worker
from benchmarks.raw_client import open_socket
from seglog_protocol.messages import Ack

RATE: Final = 1_000
TOPIC: Final = "bench-latency"
_STAMP_BYTES: Final = 8


def run(bench: Bench) -> Iterator[Row]:
    """Three rows for each ack level."""
    count = bench.pick(4_000, 500)
    with bench.fresh_directory() as directory, daemon(bench) as running:
        with bare_server("relay", str(directory / "relay")) as port:
            sides = take_turns(
                bench.rounds,
                lambda: _through_seglog(running.address, "os", count),
                lambda: _through_seglog(running.address, "disk", count),
                lambda: _through_relay(port, count),
            )
        for ack, times in zip(("os", "disk"), sides[:2], strict=True):
            yield from latency_rows(f"1,000 records/s, ack {ack}", times, sides[2], "relay")


def _through_seglog(address: str, ack: Ack, count: int) -> list[float]:
    """Seconds on the way, for every record."""
    with seglog.connect(address) as client:
        client.create_topic(TOPIC, 1)
        times: list[float] = []
        with (
            client.consumer(TOPIC, start="earliest", follow=True) as consumer,
            worker("benchmarks.latency", address, str(count), "--ack", ack) as producer,
        ):
            for record in consumer:
                assert record.value is not None
                if not any(record.value):
                    continue
                times.append((time.monotonic_ns() - int.from_bytes(record.value[:_STAMP_BYTES], "big")) / 1e9)
                if len(times) == count:
                    break
            if producer.wait() != 0:
                raise BenchmarkError("the producing process failed")
        client.delete_topic(TOPIC)
    return times


def _through_relay(port: int, count: int) -> list[float]:
    times: list[float] = []
    # The relay takes the first connection for the sender's, so the producer starts first and waits for a byte.
    with worker("benchmarks.latency", f"127.0.0.1:{port}", str(count), "--bare") as producer:
        assert producer.stdout is not None
        producer.stdout.readline()
        with open_socket(port) as sock:
            pending = b""
            while len(times) < count:
                data = sock.recv(65536)
                if not data:
                    raise BenchmarkError("the relay hung up")
                now = time.monotonic_ns()
                pending += data
                while len(pending) >= RECORD_BYTES:
                    times.append((now - int.from_bytes(pending[:_STAMP_BYTES], "big")) / 1e9)
                    pending = pending[RECORD_BYTES:]
        if producer.wait() != 0:
            raise BenchmarkError("the producing process failed")
    return times


# --- The producing process --------------------------------------------------------------------------------------------


def main() -> None:
    """Send ``count`` records at the rate, through the client library or bare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency")
    parser.add_argument("address")
    parser.add_argument("count", type=int)
    parser.add_argument("--ack", choices=("os", "disk"), default="os")
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    if options.bare:
        _send_bare(int(options.address.rsplit(":", 1)[1]), options.count)
        return
    with (
        seglog.connect(options.address) as client,
        client.producer(TOPIC, ack=options.ack, linger_ms=0) as producer,
    ):
        # One of zeros, which does not count, pays for the connection: the bare side has its own before it begins.
        producer.send(bytes(RECORD_BYTES))
        producer.flush()
        for value in paced(options.count):
            producer.send(value)


def _send_bare(port: int, count: int) -> None:
    with open_socket(port) as sock:
        print("connected", flush=True)
        for value in paced(count):
            sock.sendall(value)
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)  # until the relay has handed on everything


def paced(count: int) -> Iterator[bytes]:
    """Values of 100 bytes, a thousand a second, each beginning with its time (monotonic ns)."""
    began = time.monotonic_ns()
    filler = b"x" * (RECORD_BYTES - _STAMP_BYTES)
    for number in range(count):
        stamp = began + number * 1_000_000_000 // RATE
        ahead = stamp - time.monotonic_ns()
        if ahead > 0:
            time.sleep(ahead / 1e9)
            stamp = time.monotonic_ns()  # the sleep's own lateness is not the broker's
        yield stamp.to_bytes(_STAMP_BYTES, "big") + filler


BENCHMARK = Benchmark(
    "latency",
    "end to end through the client library, producer (linger 0) and consumer in two processes",
    "the same rate through a relay that writes and hands on, on plain sockets",
    run,
)

if __name__ == "__main__":
    main()
