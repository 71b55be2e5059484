"""A client that wants three times its quota, and the answers to another one within it, beside those while it is alone.

``python -m benchmarks.quotas PORT WARM_UP_SECONDS SECONDS`` is the process of the first: it prints its MB a second.
"""

import sys
import time
from collections.abc import Iterator
from typing import Final

import seglog
from benchmarks.batches import batch_of
from benchmarks.harness import MB, Bench, Benchmark, Goal, Row, latency_rows, take_turns
from benchmarks.processes import answer_of, daemon, worker
from benchmarks.raw_client import append_frame, encode, exchange_seconds, open_socket
from seglog.core.access import alter_quotas
from seglog_protocol.messages import HelloRequest
from seglog_protocol.quotas import CLIENT_ID, PRODUCER_BYTE_RATE, entity_of

TOPIC: Final = "bench-quotas"


def _paced(port: int, client: str, size: int, every: float, seconds: float) -> list[tuple[float, float]]:
    """Appends, one at a time and no sooner than ``every`` so many seconds: when each was sent, and its seconds."""
    frame, times = append_frame(TOPIC, [batch_of(size)[0]], "os"), []
    with open_socket(port, [encode(HelloRequest("seglog", client))]) as sock:
        due = time.monotonic()
        ends = due + seconds
        while due < ends:
            time.sleep(max(0.0, due - time.monotonic()))
            times.append((time.monotonic(), exchange_seconds(sock, [frame])[0]))
            due = max(due + every, time.monotonic() - every)
    return times


def _run(bench: Bench) -> Iterator[Row]:
    # At first a client uses at once what eleven seconds give: it is above its quota when that is over.
    warm_up, seconds = bench.pick((15.0, 40.0), (1.0, 1.0))
    rates: list[float] = []
    with daemon(bench) as running:
        port = running.address.rpartition(":")[2]
        with seglog.connect(running.address) as client:
            client.create_topic(TOPIC, 1)
            client.converse(alter_quotas(entity_of({CLIENT_ID: None}), {PRODUCER_BYTE_RATE: float(MB)}))

        def alone() -> list[float]:
            return [took for _, took in _paced(int(port), "quiet", 1_000, 0.01, seconds)]

        def beside() -> list[float]:
            with worker("benchmarks.quotas", port, str(warm_up), str(seconds)) as busy:
                time.sleep(warm_up)
                times = alone()
                rates.append(answer_of(busy))
            return times

        beside_it, by_itself = take_turns(bench.rounds, beside, alone)
    yield Row("it wants 3 MB/s", "MB/s", rates, [1.0] * len(rates), "quota", Goal("≤", 1.1, "ratio"))
    yield from latency_rows("another one, ack os", beside_it, by_itself, "alone")


BENCHMARK: Final = Benchmark("quotas", "a client at three times its quota, beside one within it", "alone", _run, 1200)

if __name__ == "__main__":
    _warm_up, _seconds = map(float, sys.argv[2:])
    _sent = _paced(int(sys.argv[1]), "busy", 100_000, 0.1 / 3, _warm_up + _seconds)
    _counted = [at for at, _ in _sent if at - _sent[0][0] >= _warm_up]
    print(0.1 * (len(_counted) - 1) / (_counted[-1] - _counted[0]))
