"""A log directory that is emptied while its broker is down: clients report it and stop.

Offsets and sequences mean something else in another log. A producer that continued could be taken for one of the new
log with the same id, and its records for repetitions; a consumer would skip the records below its old position.
"""

import shutil

import pytest

import seglog
import seglog.trio
from tests.processes import Daemon


def replace(running: Daemon) -> None:
    """Replace the log by another one with the same topic, number of records and producer id."""
    running.kill()
    shutil.rmtree(running.directory)
    running.start()
    with seglog.connect(running.address) as client, client.producer("t") as producer:
        for number in range(3):
            producer.send(b"new %d" % number)


def values(client: seglog.Client) -> list[bytes | None]:
    with client.consumer("t") as consumer:
        return [record.value for record in consumer]


NEW = [b"new 0", b"new 1", b"new 2"]


@pytest.mark.parametrize("idempotent", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_producer_and_a_consumer_whose_topic_is_replaced_fail_for_good(running: Daemon, *, idempotent: bool) -> None:
    with seglog.connect(running.address) as client:
        producer = client.producer("t", idempotent=idempotent)
        for number in range(3):
            producer.send(b"old %d" % number).result()
        consumer = client.consumer("t", start=0, follow=True, on_out_of_range="earliest")
        records = iter(consumer)
        assert [next(records).value for _ in range(3)] == [b"old 0", b"old 1", b"old 2"]
        replace(running)
        with pytest.raises(seglog.InconsistentClusterIdError, match="its log directory was replaced") as caught:
            producer.send(b"old 3").result()
        assert caught.value.cluster_id == client.ping().cluster_id != caught.value.expected
        with pytest.raises(seglog.InconsistentClusterIdError):
            producer.send(b"old 4")
        producer.close()
        for _ in range(2):
            with pytest.raises(seglog.InconsistentClusterIdError):
                next(iter(consumer))
        consumer.close()
        assert values(client) == NEW
        with client.producer("t") as another:
            assert another.send(b"one more").result().offset == 3
        assert values(client) == [*NEW, b"one more"]
