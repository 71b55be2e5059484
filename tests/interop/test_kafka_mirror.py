"""``seglog mirror`` with a real Kafka: out and back, compared record by record, and over TLS with accounts.

That kills of any side lose and double nothing is shown between daemons, by ``tests/process/clients/mirror``.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

import seglog
from tests.interop.peer import Kafka, kafka_script
from tests.processes import kafka_daemon
from tests.unit.clients.mirror.sides import commit, committed, completed, contents, kafka_of, numbered, produce

pytestmark = [pytest.mark.timeout(600)]

PARTITIONS: Final = 4
COUNT: Final = 20_000
MIRROR: Final = (sys.executable, "-m", "seglog", "mirror", "--server")


@contextmanager
def a_kafka(folder: Path, *settings: str) -> Iterator[Kafka]:
    kafka = Kafka(kafka_script(), folder / "kafka")
    kafka.data.mkdir()
    with kafka.running(*settings, "offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1"):
        yield kafka


def test_a_topic_goes_to_kafka_and_back_record_by_record_and_its_groups_with_it(tmp_path: Path) -> None:
    with kafka_daemon(tmp_path / "a") as ours, kafka_daemon(tmp_path / "b") as other, a_kafka(tmp_path) as kafka:
        with seglog.connect(ours.address) as client:
            client.create_topic("t", partitions=PARTITIONS, config={"retention.ms": "-1"})
        produce(kafka_of(ours), "t", numbered(0, COUNT, PARTITIONS))
        commit(kafka_of(ours), "readers", "t", 77, "noted")
        there = f"kafka://{kafka.address}"
        for daemon, direction in ((ours, "--to"), (other, "--from")):
            done = completed([*MIRROR, daemon.address, direction, there, "t", "--cut-over", "--silent", "1"])
            assert "the same offsets" in done.stdout, done
        for address in (kafka.address, kafka_of(other)):
            for partition in range(PARTITIONS):
                found = contents(address, "t", partition)
                assert found == contents(kafka_of(ours), "t", partition)
                assert len(found) == COUNT // PARTITIONS
            assert committed(address, "readers", "t") == (77, "noted")


def test_of_transactions_what_was_committed_is_mirrored_and_groups_stand_before_the_same_record(
    tmp_path: Path,
) -> None:
    with a_kafka(tmp_path) as kafka, kafka_daemon(tmp_path / "a") as ours:
        kafka.topics("--create", "--topic", "t", "--partitions", "1")
        producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "t", "log_level": 0})
        producer.init_transactions(60)
        for turn in range(6):
            producer.begin_transaction()
            for record in numbered(turn * 10, 10):
                producer.produce("t", **record)
            if turn % 2:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
        theirs = contents(kafka.address, "t", isolation="read_committed")
        assert len(theirs) == 30
        commit(kafka.address, "readers", "t", theirs[15][0])
        done = completed([*MIRROR, ours.address, "--from", f"kafka://{kafka.address}", "t", "--once"])
        assert "other offsets in some partitions" in done.stdout, done
        found = contents(kafka_of(ours), "t")
        assert [record[1:] for record in found] == [record[1:] for record in theirs]
        assert [record[0] for record in found] == list(range(30))
        assert committed(kafka_of(ours), "readers", "t")[0] == 15
