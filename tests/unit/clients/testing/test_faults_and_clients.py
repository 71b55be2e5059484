"""Faults in front of clients that have to survive them: seglog's and kafka-python, on both wires of one broker."""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import kafka
import pytest

import seglog
from seglog.testing import Broker
from seglog_protocol.errors import DiskFullError
from tests.processes import wait_until

VALUES = [b"record %d" % number for number in range(20)]


pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's, that were reset


@pytest.fixture(autouse=True)
def _without_leftovers(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Close what kafka-python leaves open before another test begins; its log would keep it."""
    caplog.set_level(logging.CRITICAL, "kafka")
    yield
    gc.collect()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(memory=True) as running:
        running.create_topic("orders")
        yield running


def produce_natively(broker: Broker) -> None:
    with seglog.connect(broker.address) as client, client.producer("orders") as producer:
        for value in VALUES:
            producer.send(value).result(timeout=30)


def produce_by_kafka(broker: Broker) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.kafka_address, acks="all", enable_idempotence=True, retry_backoff_ms=10,
        reconnect_backoff_ms=10, reconnect_backoff_max_ms=50,
    )  # fmt: skip
    with closing(producer):
        for value in VALUES:
            producer.send("orders", value).get(timeout=30)


PRODUCERS = pytest.mark.parametrize("produce", [produce_natively, produce_by_kafka], ids=["native", "kafka"])
Produce = Callable[[Broker], None]


@PRODUCERS
def test_a_lost_ack_leaves_every_record_once(broker: Broker, produce: Produce) -> None:
    faults = [broker.lose_next_ack("orders") for _ in range(3)]
    produce(broker)
    assert [record.value for record in broker.records("orders")] == VALUES
    assert [fault.met for fault in faults] == [1, 1, 1]
    assert broker.pending_faults == []


@PRODUCERS
def test_a_retriable_error_is_tried_again(broker: Broker, produce: Produce) -> None:
    native = broker.fail_next("append", DiskFullError, 2)
    kafkas = broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", 2, topic="orders")
    produce(broker)
    assert [record.value for record in broker.records("orders")] == VALUES
    assert {native.met, kafkas.met} == {0, 2}


@PRODUCERS
def test_cut_and_refused_connections_are_made_again(broker: Broker, produce: Produce) -> None:
    broker.delay(0.02)
    thread = threading.Thread(target=produce, args=(broker,))
    thread.start()
    while thread.is_alive():
        broker.cut_connections()
        broker.refuse()
        time.sleep(0.02)
        broker.refuse(False)
        time.sleep(0.3)
    thread.join()
    broker.heal()
    assert [record.value for record in broker.records("orders")] == VALUES


# --- Groups -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def _quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seglog.core.group_session.HEARTBEAT_SECONDS", 0.05)


@pytest.mark.usefixtures("_quick_heartbeats")
def test_a_native_member_bears_a_rebalance_and_the_end_of_its_session(broker: Broker) -> None:
    produce_natively(broker)
    values: list[bytes | None] = []
    assigned: list[list[int]] = []
    revoked: list[tuple[list[int], bool]] = []

    def consume() -> None:
        with (
            seglog.connect(broker.address) as client,
            client.consumer(
                "orders",
                group="workers",
                follow=True,
                on_assigned=assigned.append,
                on_revoked=lambda partitions, lost: revoked.append((partitions, lost)),
            ) as consumer,
        ):
            for record in consumer:
                values.append(record.value)
                if record.value == b"the last one":
                    return

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    wait_until(lambda: len(values) == len(VALUES), "the records")
    broker.rebalance("workers")
    wait_until(lambda: len(assigned) == 2, "the rebalance")
    assert revoked == [([0], False)]
    [member] = broker.client.describe_group("workers").members
    broker.expire_session("workers", member.member_id)
    wait_until(lambda: len(assigned) == 3, "another session")
    assert revoked == [([0], False), ([0], True)]
    with seglog.connect(broker.address) as client, client.producer("orders") as producer:
        producer.send(b"the last one")
    thread.join()
    assert {*values} == {*VALUES, b"the last one"}
    assert assigned == [[0]] * 3


TICK = b"tick"


@contextmanager
def ticking(broker: Broker) -> Iterator[None]:
    """Send a record now and then: a poll of kafka-python that ends without any forgets a join under way."""
    is_over = threading.Event()

    def tick() -> None:
        with seglog.connect(broker.address) as client, client.producer("orders") as producer:
            while not is_over.wait(0.05):
                producer.send(TICK).result(timeout=30)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Reader:
    """A member of a group, by kafka-python."""

    def __init__(self, broker: Broker) -> None:
        self.values: list[bytes] = []
        self.heard = Assignments()
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=broker.kafka_address, group_id="workers", client_id="reader",
            auto_offset_reset="earliest", enable_auto_commit=False, heartbeat_interval_ms=50, retry_backoff_ms=10,
        )  # fmt: skip
        self.consumer.subscribe(["orders"], listener=self.heard)

    def poll_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            for records in self.consumer.poll(timeout_ms=60_000).values():
                self.values.extend(record.value for record in records if record.value != TICK)

    def poll_until_assigned_after(self, fault: Callable[[], object]) -> None:
        before = self.heard.assigned
        fault()
        self.poll_until(lambda: self.heard.assigned > before)

    def close(self) -> None:
        self.consumer.close()


class Assignments(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    """Counts what a member is told."""

    def __init__(self) -> None:
        self.assigned = self.revoked = 0

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned += 1

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.revoked += 1


def test_kafka_python_bears_a_rebalance_and_the_end_of_its_session(broker: Broker) -> None:
    produce_natively(broker)
    with ticking(broker), closing(Reader(broker)) as reader:
        reader.poll_until(lambda: len(reader.values) == len(VALUES))
        reader.consumer.commit()
        reader.poll_until_assigned_after(lambda: broker.rebalance("workers"))
        reader.consumer.commit()
        reader.poll_until_assigned_after(lambda: broker.expire_session("workers", "reader"))
        reader.consumer.commit()
    assert reader.values == VALUES


# --- All of a client's life -------------------------------------------------------------------------------------------

OF_KAFKA = {
    "ApiVersions": "UNSUPPORTED_VERSION",
    "Metadata": "LEADER_NOT_AVAILABLE",
    "InitProducerId": "COORDINATOR_LOAD_IN_PROGRESS",
    "Produce": "NOT_LEADER_OR_FOLLOWER",
    "FindCoordinator": "COORDINATOR_NOT_AVAILABLE",
    "JoinGroup": "COORDINATOR_LOAD_IN_PROGRESS",
    "SyncGroup": "REBALANCE_IN_PROGRESS",
    "OffsetFetch": "COORDINATOR_LOAD_IN_PROGRESS",
    "ListOffsets": "NOT_LEADER_OR_FOLLOWER",
    "Fetch": "NOT_LEADER_OR_FOLLOWER",
    "Heartbeat": "REBALANCE_IN_PROGRESS",
    "OffsetCommit": "COORDINATOR_LOAD_IN_PROGRESS",
}
NATIVE = {
    "append": "DISK_FULL",
    "join_group": "COORDINATOR_LOAD_IN_PROGRESS",
    "sync_group": "REBALANCE_IN_PROGRESS",
    "committed_offsets": "COORDINATOR_LOAD_IN_PROGRESS",
    "offsets": "PARTITION_RECOVERING",
    "fetch": "PARTITION_RECOVERING",
    "group_heartbeat": "REBALANCE_IN_PROGRESS",
    "commit_offsets": "COORDINATOR_LOAD_IN_PROGRESS",
}


@pytest.mark.parametrize("api", OF_KAFKA)
def test_kafka_python_survives(broker: Broker, api: str) -> None:
    fault = broker.fail_next(api, OF_KAFKA[api])
    produce_by_kafka(broker)
    with ticking(broker), closing(Reader(broker)) as reader:
        reader.poll_until(lambda: len(reader.values) >= len(VALUES))
        reader.consumer.commit()
        reader.poll_until(lambda: not fault.is_pending)
    assert {*reader.values} == {*VALUES}


@pytest.mark.usefixtures("_quick_heartbeats")
@pytest.mark.parametrize("api", NATIVE)
def test_the_native_client_survives(broker: Broker, api: str) -> None:
    fault = broker.fail_next(api, NATIVE[api])
    produce_natively(broker)
    values: list[bytes | None] = []
    with (
        seglog.connect(broker.address) as client,
        client.consumer("orders", group="workers", follow=True) as consumer,
    ):
        for record in consumer:
            values.append(record.value)
            if len(values) >= len(VALUES):
                consumer.commit()
                break
    assert {*values} == {*VALUES}
    assert api == "group_heartbeat" or fault.met == 1
