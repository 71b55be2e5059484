"""Topics that change under their readers: made again with a longer log than before, or with more partitions.

Offsets of the former topic exist in the new one too, and mean other records: readers report that and stop. Partitions
that are added are read from their first record.
"""

import pytest

import seglog
import seglog.trio
from tests.processes import Daemon

OLD = [b"old %d" % number for number in range(3)]
NEW = [b"new %d" % number for number in range(30)]


@pytest.fixture
def running(emptied: Daemon) -> Daemon:
    """A daemon with a topic t of three records."""
    with seglog.connect(emptied.address) as client:
        make(client, OLD)
    return emptied


def make(client: seglog.Client, values: list[bytes]) -> None:
    """Create the topic, with each record in its own batch."""
    client.create_topic("t")
    with client.producer("t") as producer:
        for value in values:
            producer.send(value)
            producer.flush()


def make_again(running: Daemon, values: list[bytes]) -> None:
    with seglog.connect(running.address) as client:
        client.delete_topic("t")
        make(client, values)


def test_a_consumer_that_was_cut_off_meanwhile_says_so_when_it_is_back(running: Daemon) -> None:
    with seglog.connect(running.address) as client, client.consumer("t", start=0, follow=True) as consumer:
        records = iter(consumer)
        assert [next(records).value for _ in OLD] == OLD
        running.stop()
        running.start()
        make_again(running, NEW)
        with pytest.raises(seglog.InconsistentTopicIdError):
            next(iter(consumer))


# --- More partitions --------------------------------------------------------------------------------------------------


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
        client.consumer("t", start="latest", follow=True) as consumer,
        client.consumer("t", partitions=[0], start="latest", follow=True) as one,
    ):
        add(running)
        for partition in (3, 1):
            send(running, b"%d" % partition, partition)
        assert {next(iter(consumer)).value, next(iter(consumer)).value} == {b"1", b"3"}
        assert consumer.positions() == {0: 3, 1: 1, 2: 0, 3: 1}
        assert set(consumer.lag()) == {0, 1, 2, 3}
        add(running, 5)
        send(running, b"4", 4)
        assert next(iter(consumer)).value == b"4"
        send(running, b"0", 0)
        assert next(iter(one)).value == b"0"
        assert one.positions() == {0: 4}, "who names partitions reads these"
