"""A client that wants three times its quota, and the answers to another one within it, beside those while it is alone.

``python -m benchmarks.quotas PORT WARM_UP_SECONDS SECONDS`` is the process of the first: it prints its MB a second.
"""

import sys
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.batches import batch_of
from benchmarks.harness import MB, Bench, Benchmark, Goal, Row, latency_rows
from benchmarks.kafka_door import daemon_with_door
from benchmarks.processes import answer_of, worker
from benchmarks.raw_client import append_frame, connect, encode, exchange_seconds, open_socket
from seglog_protocol.kafka import messages, write_request
from seglog_protocol.messages import HelloRequest

TOPIC: Final = "bench-quotas"


def _set_quota(port: int) -> None:
    cls = messages.AlterClientQuotasRequest
    ops = [cls.OpData(key="producer_byte_rate", value=float(MB))]
    entry = cls.EntryData(entity=[cls.EntityData(entity_type="client-id", entity_name=None)], ops=ops)
    with open_socket(port) as sock:
        exchange_seconds(sock, [b"".join(write_request(1, "bench", cls(entries=[entry]), 1))])


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
    # The windows let a client use in one second what it is not given in the next ones: a minute shows its rate.
    warm_up, seconds = bench.pick((20.0, 60.0), (1.0, 1.0))
    rates: list[float] = []
    sides: tuple[list[list[float]], list[list[float]]] = [], []
    with daemon_with_door(bench) as door:
        address = door.running.address.rpartition(":")[2]
        with connect(int(address)) as connection:
            connection.create_topic(TOPIC)
        _set_quota(door.port)
        for _ in range(bench.rounds):
            sides[1].append([took for _, took in _paced(int(address), "quiet", 1_000, 0.01, seconds)])
            with worker("benchmarks.quotas", address, str(warm_up), str(seconds)) as busy:
                sides[0].append([took for _, took in _paced(int(address), "quiet", 1_000, 0.01, warm_up + seconds)])
                rates.append(answer_of(busy))
    yield Row("it wants 3 MB/s", "MB/s", rates, [1.0] * len(rates), "quota", Goal("≤", 1.1, "ratio"))
    yield from latency_rows("another one, ack os", *sides, "alone")


BENCHMARK: Final = Benchmark("quotas", "a client at three times its quota, beside one within it", "alone", _run, 1200)

if __name__ == "__main__":
    _warm_up, _seconds = map(float, sys.argv[2:])
    _sent = _paced(int(sys.argv[1]), "busy", 100_000, 0.1 / 3, _warm_up + _seconds)
    _counted = [at for at, _ in _sent if at - _sent[0][0] >= _warm_up]
    print(0.1 * (len(_counted) - 1) / (_counted[-1] - _counted[0]))
