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


def test_a_consumer_that_was_cut_off_meanwhile_says_so_when_it_is_back(running: Daemon) -> None:
    with seglog.connect(running.address) as client, client.consumer("t", start=0, follow=True) as consumer:
        records = iter(consumer)
        assert [next(records).value for _ in OLD] == OLD
        running.stop()
        running.start()
        make_again(running, NEW)
        with pytest.raises(seglog.InconsistentTopicIdError):
            next(iter(consumer))
