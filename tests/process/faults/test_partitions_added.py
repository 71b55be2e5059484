"""Partitions that are added to a topic with readers and producers, and topics that are created again under producers.

Followers read new partitions from their earliest record, and producers use them, each within a request or two.
Partitions that are missing in saved positions were added later.
"""

import pytest

import seglog
import seglog.trio
from seglog.core.partitioner import partition_for_key
from tests.processes import Daemon

KEYS = [b"key %d" % number for number in range(40)]


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


@pytest.mark.parametrize("follow", [True, False])
def test_new_partitions_are_read_from_their_earliest_record(running: Daemon, follow: bool) -> None:
    """By a read from positions that were saved before they were added."""
    send(running, b"0", 0)
    with seglog.connect(running.address) as client:
        with client.consumer("t") as consumer:
            assert [record.value for record in consumer] == [b"0"]
            kept = consumer.positions()
        add(running)
        for partition in (3, 1):
            send(running, b"%d" % partition, partition)
        with client.consumer("t", start=kept, follow=follow) as consumer:
            records = iter(consumer)
            assert {next(records).value, next(records).value} == {b"1", b"3"}
        with client.consumer("t", start=kept, partitions=[0]) as consumer:
            assert list(consumer) == []
        with pytest.raises(seglog.UnknownPartitionError):
            client.consumer("t", start={9: 0})


@pytest.mark.parametrize("ack", ["os", "disk"])
def test_a_producer_spreads_keys_over_them_from_the_next_answer_on(running: Daemon, ack: str) -> None:
    with (
        seglog.connect(running.address) as client,
        client.producer("t", ack=ack, linger_ms=5) as producer,  # type: ignore[arg-type]
    ):
        assert producer.send(b"before", KEYS[0]).result().partition == 0
        add(running)
        producer.send(b"meanwhile", KEYS[0]).result()
        assert producer.partitions == 4
        placed = [producer.send(b"v", key) for key in KEYS]
        assert [one.result().partition for one in placed] == [partition_for_key(key, 4) for key in KEYS]
        keyless = {producer.send(b"v").result().partition for _ in range(100)}
        assert keyless == {0, 1, 2, 3}


def send_until_it_fails(producer: seglog.Producer) -> None:
    """At ack none an error is known only when the connection has ended."""
    while True:
        producer.send(b"new").result()
        producer.flush()


@pytest.mark.parametrize("ack", ["none", "os", "disk"])
def test_a_producer_never_writes_to_a_recreated_topic(running: Daemon, ack: str) -> None:
    """A producer whose topic was deleted and made again fails with an error that says so."""
    with seglog.connect(running.address) as client:
        producer = client.producer("t", ack=ack, linger_ms=5)  # type: ignore[arg-type]
        producer.send(b"old")
        producer.flush()
        client.delete_topic("t")
        client.create_topic("t")
        with pytest.raises((seglog.InconsistentTopicIdError, seglog.DeliveryFailed)) as caught:
            send_until_it_fails(producer)
        assert "topic t was deleted and made again, and the records were meant for the former topic" in str(
            caught.value
        )
        with pytest.raises(seglog.InconsistentTopicIdError):
            producer.send(b"another")
        with client.producer("t") as fresh:
            assert fresh.send(b"new").result().offset == 0
        with client.consumer("t") as consumer:
            assert [record.value for record in consumer] == [b"new"]
        producer.abort(0)
