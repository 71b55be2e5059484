"""Partitions that are added to a topic under its readers are read from their first record."""

import seglog
from tests.processes import Daemon


def add(emptied: Daemon, partitions: int = 4) -> None:
    with seglog.connect(emptied.address) as client:
        client.alter_topic("t", partitions=partitions)


def send(emptied: Daemon, value: bytes, partition: int) -> None:
    """Send one record with a new producer, which knows all partitions."""
    with seglog.connect(emptied.address) as client, client.producer("t", linger_ms=0) as producer:
        producer.send(value, partition=partition)


def test_a_follower_that_waits_at_the_end_reads_them_from_their_first_record(emptied: Daemon) -> None:
    with seglog.connect(emptied.address) as client:
        client.create_topic("t")
    for _ in range(3):
        send(emptied, b"old", 0)
    with (
        seglog.connect(emptied.address) as client,
        client.consumer("t", start="latest", follow=True) as consumer,
        client.consumer("t", partitions=[0], start="latest", follow=True) as one,
    ):
        add(emptied)
        for partition in (3, 1):
            send(emptied, b"%d" % partition, partition)
        assert {next(iter(consumer)).value, next(iter(consumer)).value} == {b"1", b"3"}
        assert consumer.positions() == {0: 3, 1: 1, 2: 0, 3: 1}
        assert set(consumer.lag()) == {0, 1, 2, 3}
        add(emptied, 5)
        send(emptied, b"4", 4)
        assert next(iter(consumer)).value == b"4"
        send(emptied, b"0", 0)
        assert next(iter(one)).value == b"0"
        assert one.positions() == {0: 4}, "who names partitions reads these"
