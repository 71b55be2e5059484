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
from tests.processes import daemon
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


def hold_against(address: str, count: int) -> None:
    """Assert that every record is there once, and a producer's records in each partition are in the order sent."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    with seglog.connect(address) as client, client.consumer("t", start="earliest") as consumer:
        for record in consumer:
            name, _, number = (record.value or b"").decode().partition(":")
            found[name, record.partition].append(int(number))
    assert found == {
        (f"{who}", first): list(range(first, count, _PARTITIONS))
        for who in range(_PRODUCERS)
        for first in range(_PARTITIONS)
    }


def produce(address: str, who: int, count: int, failures: list[BaseException]) -> None:
    try:
        with (
            seglog.connect(address) as client,
            client.producer("t", linger_ms=1, batch_bytes=2_000) as producer,
        ):
            for number in range(count):
                producer.send(f"{who}:{number}", partition=number % _PARTITIONS)
                if number % 10 == 0:
                    producer.flush()
    except seglog.SeglogError as error:
        failures.append(error)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1])
def test_answers_that_are_cut_off_lose_nothing_and_double_nothing(tmp_path: Path, seed: int) -> None:
    count, failures = 1_500, list[BaseException]()
    with daemon(tmp_path / "data") as running:
        with seglog.connect(running.address) as client:
            client.create_topic("t", _PARTITIONS, {"segment.bytes": 20_000})
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
