"""Faults in front of clients that have to survive them: seglog's and kafka-python, on both wires of one broker."""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import kafka
import pytest

import seglog
from seglog_protocol.errors import DiskFullError
from tests.broker.testing.faulty import Faulty, faulty_broker

VALUES = [b"record %d" % number for number in range(20)]


pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's, that were reset


@pytest.fixture(autouse=True)
def _without_leftovers(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Close what kafka-python leaves open before another test begins; its log would keep it."""
    caplog.set_level(logging.CRITICAL, "kafka")
    yield
    gc.collect()


@pytest.fixture
def broker() -> Iterator[Faulty]:
    with faulty_broker("group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=1") as running:
        with seglog.connect(running.address) as client:
            client.create_topic("orders", partitions=1)
        yield running


def read_all(broker: Faulty, topic: str = "orders") -> list[bytes | None]:
    with seglog.connect(broker.address) as client, client.consumer(topic, start="earliest") as consumer:
        return [record.value for record in consumer]


def produce_natively(broker: Faulty) -> None:
    with seglog.connect(broker.address) as client, client.producer("orders") as producer:
        for value in VALUES:
            producer.send(value).result(timeout=30)


def produce_by_kafka(broker: Faulty) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.kafka_address, acks="all", enable_idempotence=True, retry_backoff_ms=10,
        reconnect_backoff_ms=10, reconnect_backoff_max_ms=50,
    )  # fmt: skip
    with closing(producer):
        for value in VALUES:
            producer.send("orders", value).get(timeout=30)


PRODUCERS = pytest.mark.parametrize("produce", [produce_natively, produce_by_kafka], ids=["native", "kafka"])
Produce = Callable[[Faulty], None]


@PRODUCERS
def test_a_lost_ack_leaves_every_record_once(broker: Faulty, produce: Produce) -> None:
    faults = [broker.call(broker.faults.lose_next_ack, "orders") for _ in range(3)]
    produce(broker)
    assert read_all(broker) == VALUES
    assert [fault.met for fault in faults] == [1, 1, 1]
    assert broker.faults.pending == []


@PRODUCERS
def test_a_retriable_error_is_tried_again(broker: Faulty, produce: Produce) -> None:
    native = broker.call(broker.faults.fail_next, "append", DiskFullError, 2)
    kafkas = broker.call(broker.faults.fail_next, "Produce", "NOT_LEADER_OR_FOLLOWER", 2, topic="orders")
    produce(broker)
    assert read_all(broker) == VALUES
    assert {native.met, kafkas.met} == {0, 2}


@PRODUCERS
def test_cut_and_refused_connections_are_made_again(broker: Faulty, produce: Produce) -> None:
    broker.call(broker.faults.delay, 0.02)
    thread = threading.Thread(target=produce, args=(broker,))
    thread.start()
    while thread.is_alive():
        broker.call(broker.faults.cut_connections)
        broker.call(broker.faults.refuse)
        time.sleep(0.02)
        broker.call(broker.faults.refuse, False)
        time.sleep(0.3)
    thread.join()
    broker.call(broker.faults.heal)
    assert read_all(broker) == VALUES
