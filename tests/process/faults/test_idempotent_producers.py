"""Idempotent producers with lost replies: no record is lost or duplicated.

With a broker that is killed: ``tests/soak/faults/test_kill_under_load.py``.
"""

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import seglog
import seglog.trio
from tests.process.faults.links import Link
from tests.processes import Daemon, daemon
from tests.support import numbers_of

_PRODUCERS = 3
_PARTITIONS = 2


class CuttingProxy(Link):
    """Cuts each connection at a random place in the replies, from ``seed``."""

    def __init__(self, port: int, seed: int) -> None:
        self.cuts = 0
        self.is_calm = False
        self._random = random.Random(seed)
        # A hello and a topic's keys are 3,100 bytes.
        self._left: defaultdict[int, int] = defaultdict(lambda: self._random.randrange(3_500, 6_000))
        super().__init__(port)
        self.address = f"127.0.0.1:{self.port}"

    def passing(self, connection: int, data: bytes, *, is_reply: bool) -> bytes:
        """See Link."""
        if self.is_calm or not is_reply:
            return data
        passed = data[: self._left[connection]]
        self._left[connection] -= len(passed)
        self.cuts += len(passed) < len(data)
        return passed


@contextmanager
def cutting(port: int, seed: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(port, seed)
    try:
        yield proxy
    finally:
        proxy.is_calm = True
        proxy.close()


def values(producer: int, count: int) -> list[str]:
    return [f"{producer}:{number}" for number in range(count)]


def found(address: str) -> dict[str, list[list[int]]]:
    """Producer -> for each partition the numbers of its records, in the order of the log."""
    by_producer: dict[str, list[list[int]]] = {}
    with seglog.connect(address) as client:
        for partition in range(_PARTITIONS):
            with client.consumer("t", partitions=[partition], start="earliest") as consumer:
                for record in consumer:
                    assert record.value is not None
                    name, _, number = record.value.decode().partition(":")
                    by_producer.setdefault(name, [[] for _ in range(_PARTITIONS)])[partition].append(int(number))
    return by_producer


def hold_against(address: str, count: int) -> None:
    """Assert that every record is there once, and a producer's records in each partition are in the order sent."""
    by_producer = found(address)
    assert sorted(by_producer) == [f"{number}" for number in range(_PRODUCERS)]
    for partitions in by_producer.values():
        assert partitions == [list(range(first, count, _PARTITIONS)) for first in range(_PARTITIONS)]


def produce(address: str, who: int, count: int, failures: list[BaseException]) -> None:
    try:
        with (
            seglog.connect(address) as client,
            client.producer("t", linger_ms=1, batch_bytes=2_000) as producer,
        ):
            for number, value in enumerate(values(who, count)):
                producer.send(value, partition=number % _PARTITIONS)
                if number % 10 == 0:
                    producer.flush()
    except seglog.SeglogError as error:
        failures.append(error)


def create(running: Daemon, **config: int) -> None:
    with seglog.connect(running.address) as client:
        client.create_topic("t", partitions=_PARTITIONS, config={k.replace("_", "."): v for k, v in config.items()})


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1])
def test_answers_that_are_cut_off_lose_nothing_and_double_nothing(tmp_path: Path, seed: int) -> None:
    count, failures = 1_500, list[BaseException]()
    with daemon(tmp_path / "data") as running:
        create(running, segment_bytes=20_000)
        with cutting(running.port, seed) as proxy:
            threads = [
                threading.Thread(target=produce, args=(proxy.address, who, count, failures))
                for who in range(_PRODUCERS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failures == []
            assert proxy.cuts > 5
        hold_against(running.address, count)
        with seglog.connect(running.address) as client:
            assert numbers_of(client)["duplicates_total"] > 0, "there was something to be recognised"
