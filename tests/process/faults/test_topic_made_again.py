"""A topic that is deleted and created again under its readers, with a longer log than before.

Offsets of the former topic exist in the new one too, and mean other records: readers report that and stop.
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


def read_on(consumer: seglog.Consumer, found: list[bytes | None]) -> None:
    """Collect the records before the error that ends the consumer."""
    for record in consumer:
        found.append(record.value)  # noqa: PERF401 - what came before the error counts


def test_a_consumer_never_crosses_into_a_recreated_topic(running: Daemon) -> None:
    """A consumer in the middle of the old topic fails, and returns no record of the new one."""
    with (
        seglog.connect(running.address) as client,
        # One batch in an answer, and one answer ahead: the last old one has not been asked for yet.
        client.consumer("t", start={0: 0}, follow=True, partition_bytes=1, on_out_of_range="earliest") as consumer,
    ):
        found = [next(iter(consumer)).value]
        make_again(running, NEW)
        with pytest.raises(seglog.InconsistentTopicIdError, match="was deleted and made again") as caught:
            read_on(consumer, found)
        assert caught.value.topic_id == client.describe_topic("t").id
        with pytest.raises(seglog.InconsistentTopicIdError):
            read_on(consumer, found)
        consumer.seek("earliest")
        with pytest.raises(seglog.InconsistentTopicIdError):
            read_on(consumer, found)
        assert found in (OLD[:1], OLD[:2]), "what was on its way already has come"
        with client.consumer("t") as again:
            assert [record.value for record in again] == NEW


def test_a_waiting_consumer_gets_an_error_for_the_deletion_or_the_new_topic(running: Daemon) -> None:
    with seglog.connect(running.address) as client, client.consumer("t", start=0, follow=True) as consumer:
        records = iter(consumer)
        assert [next(records).value for _ in OLD] == OLD
        client.delete_topic("t")
        with pytest.raises(seglog.UnknownTopicError):
            next(iter(consumer))
        make(client, NEW)
        with pytest.raises(seglog.InconsistentTopicIdError):
            next(iter(consumer))


def test_a_consumer_that_was_cut_off_meanwhile_says_so_when_it_is_back(running: Daemon) -> None:
    with seglog.connect(running.address) as client, client.consumer("t", start=0, follow=True) as consumer:
        records = iter(consumer)
        assert [next(records).value for _ in OLD] == OLD
        running.stop()
        running.start()
        make_again(running, NEW)
        with pytest.raises(seglog.InconsistentTopicIdError):
            next(iter(consumer))


def test_a_producer_at_ack_none_never_writes_to_a_recreated_topic(running: Daemon) -> None:
    """The connection ends, and says why; with an ack: ``tests/unit/clients/core/test_producer.py``."""
    with seglog.connect(running.address) as client:
        producer = client.producer("t", ack="none", linger_ms=5)
        producer.send(b"old")
        producer.flush()
        make_again(running, [])
        sentence = "topic t was deleted and made again, and the records were meant for the former topic"
        with pytest.raises((seglog.InconsistentTopicIdError, seglog.DeliveryFailed), match=sentence):
            send_until_it_fails(producer)
        with pytest.raises(seglog.InconsistentTopicIdError):
            producer.send(b"another")
        with client.producer("t") as fresh:
            assert fresh.send(b"new").result().offset == 0
        with client.consumer("t") as consumer:
            assert [record.value for record in consumer] == [b"new"]
        producer.abort(0)


def send_until_it_fails(producer: seglog.Producer) -> None:
    while True:
        producer.send(b"new").result()
        producer.flush()
