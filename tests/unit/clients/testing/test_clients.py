"""The client of this project and kafka-python against ``seglog.testing.Broker``; with faults: ``test_faults``."""

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import pytest
from kafka import KafkaConsumer, KafkaProducer

import seglog
from seglog.testing import Broker
from tests.processes import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's, that were reset


@pytest.fixture(params=["directory", "memory"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(memory=request.param == "memory") as started:
        yield started
        assert started.pending_faults == []
        assert [line for line in started.log if line["level"] == "error"] == []


# --- The client of this project ---------------------------------------------------------------------------------------


def test_ours_produces_and_consumes_and_goes_on_where_its_group_was(broker: Broker) -> None:
    with seglog.connect(broker.address) as client:
        with client.producer("orders") as producer:
            for value in ("one", "two", "three"):
                producer.send(value)
        for expected in ([b"one", b"two"], [b"three"]):
            with client.consumer("orders", group="billing", follow=False, auto_commit=False) as consumer:
                assert [record.value for record in islice(consumer, len(expected))] == expected
                consumer.commit()


def test_ours_without_idempotence_sends_twice(broker: Broker) -> None:
    """So the ack really was lost, and the records really were there."""
    broker.create_topic("orders")
    broker.lose_next_ack("orders")
    with seglog.connect(broker.address) as client, client.producer("orders", idempotent=False) as producer:
        producer.send("one").result()
    assert [record.value for record in broker.records("orders")] == [b"one", b"one"]


VALUES = [b"record %d" % number for number in range(20)]
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


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker with a topic, whose members send heartbeats very often."""
    monkeypatch.setattr("seglog.core.group_membership.HEARTBEAT_SECONDS", 0.05)
    with Broker(memory=True) as started:
        started.create_topic("orders")
        yield started


def produce(client: seglog.Client, *values: bytes) -> None:
    with client.producer("orders") as producer:
        for value in values:
            producer.send(value).result(timeout=30)


@pytest.mark.parametrize("api", NATIVE)
def test_ours_survives_an_error_of_each_api(in_memory: Broker, api: str) -> None:
    fault = in_memory.fail_next(api, NATIVE[api])
    with seglog.connect(in_memory.address) as client:
        produce(client, *VALUES)
        with client.consumer("orders", group="workers") as consumer:
            assert {record.value for record in islice(consumer, len(VALUES))} == {*VALUES}
            consumer.commit()
    assert api == "group_heartbeat" or fault.met == 1


def test_our_member_bears_a_rebalance_and_the_end_of_its_session(in_memory: Broker) -> None:
    values: list[bytes | None] = []
    assigned: list[list[int]] = []
    revoked: list[tuple[list[int], bool]] = []

    def consume() -> None:
        with (
            seglog.connect(in_memory.address) as client,
            client.consumer(
                "orders",
                group="workers",
                on_assigned=assigned.append,
                on_revoked=lambda partitions, lost: revoked.append((partitions, lost)),
            ) as consumer,
        ):
            for record in consumer:
                values.append(record.value)
                if record.value == b"the last one":
                    return

    with seglog.connect(in_memory.address) as client:
        produce(client, *VALUES)
        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        wait_until(lambda: len(values) == len(VALUES), "the records")
        in_memory.rebalance("workers")
        wait_until(lambda: len(assigned) == 2, "the rebalance")
        assert revoked == [([0], False)]
        [member] = client.describe_group("workers").members
        in_memory.expire_session("workers", member.member_id)
        wait_until(lambda: len(assigned) == 3, "another session")
        assert revoked == [([0], False), ([0], True)]
        produce(client, b"the last one")
    thread.join()
    assert {*values} == {*VALUES, b"the last one"}
    assert assigned == [[0]] * 3


# --- kafka-python -----------------------------------------------------------------------------------------------------


def test_kafka_python_produces_and_consumes_and_goes_on_where_its_group_was(broker: Broker) -> None:
    with closing(KafkaProducer(**broker.kafka_config())) as producer:
        for value in (b"one", b"two", b"three"):
            producer.send("orders", value)
        producer.flush()
    group = {"group_id": "billing", "max_poll_records": 1, "enable_auto_commit": False, "consumer_timeout_ms": 60_000}
    for expected in ([b"one", b"two"], [b"three"]):
        settings = broker.kafka_config() | group | {"auto_offset_reset": "earliest"}
        with closing(KafkaConsumer("orders", **settings)) as consumer:
            assert [next(consumer).value for _ in expected] == expected
            consumer.commit()
    assert [offset.offset for offset in broker.client.group_offsets("billing")] == [3]
