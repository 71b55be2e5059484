"""Partitions that are added to a topic with readers: these are read from their first record.

Partitions that are missing in saved positions were added later.
"""

import pytest

import seglog
import seglog.trio
from tests.processes import Daemon


@pytest.fixture
def running(emptied: Daemon) -> Daemon:
    """A daemon with a topic t of one partition."""
    with seglog.connect(emptied.address) as client:
        client.create_topic("t", partitions=1)
    return emptied


def add(running: Daemon, partitions: int = 4) -> None:
    with seglog.connect(running.address) as client:
        client.alter_topic("t", partitions=partitions)


def send(running: Daemon, value: bytes, partition: int) -> None:
    """Send one record with a new producer, which knows all partitions."""
    with seglog.connect(running.address) as client, client.producer("t", linger_ms=0) as producer:
        producer.send(value, partition=partition)


def test_a_follower_that_waits_at_the_end_reads_them_from_their_first_record(running: Daemon) -> None:
    with (
        seglog.connect(running.address) as client,
        client.consumer("t", follow=True) as consumer,
        client.consumer("t", partitions=[0], follow=True) as one,
    ):
        add(running)
        for partition in (3, 1):
            send(running, b"%d" % partition, partition)
        assert {next(iter(consumer)).value, next(iter(consumer)).value} == {b"1", b"3"}
        assert consumer.positions() == {0: 0, 1: 1, 2: 0, 3: 1}
        assert set(consumer.lag()) == {0, 1, 2, 3}
        add(running, 5)
        send(running, b"4", 4)
        assert next(iter(consumer)).value == b"4"
        send(running, b"0", 0)
        assert next(iter(one)).value == b"0"
        assert one.positions() == {0: 1}, "who names partitions reads these"
