"""Situations that a program meets once in a year, each as a test with a real broker.

    python -m pytest examples/test_situations.py

Each part has the program under test, and after it a test that fails if the program does not bear the situation.
docs/TESTING.md names every fault and assertion that a broker has.
"""

import sqlite3
from contextlib import closing

import pytest
from kafka import KafkaConsumer, KafkaProducer

import seglog
from seglog.testing import Broker

# --- A consumer whose work comes again ---


def charge_orders(address: str, charges: sqlite3.Connection) -> None:
    """The program under test: it charges each order once."""
    with (
        seglog.connect(address) as client,
        client.consumer("orders", group="billing", follow=False, auto_commit=False) as orders,
    ):
        for order in orders:
            charges.execute("insert or ignore into charges values (?, ?)", (order.key, int(order.value or 0)))
            charges.commit()
            orders.commit()


def test_an_order_is_charged_once() -> None:
    """A record comes again after a program that ended before its commit, and from a producer that sent it twice."""
    with closing(sqlite3.connect(":memory:")) as charges, Broker() as broker:
        charges.execute("create table charges (order_id primary key, cents)")
        broker.produce("orders", "500", key="a17")
        broker.fail_next("commit_offsets", "UNKNOWN_SERVER_ERROR")
        with pytest.raises(seglog.SeglogError):
            charge_orders(broker.address, charges)  # charged, but not committed
        charge_orders(broker.address, charges)  # so the record comes again

        broker.lose_next_ack("orders")
        with seglog.connect(broker.address) as client, client.producer("orders", idempotent=False) as producer:
            producer.send("300", key="b3")  # its ack is lost: it is sent again, and in the topic twice
        assert len(broker.records("orders")) == 3
        charge_orders(broker.address, charges)
        assert charges.execute("select * from charges").fetchall() == [(b"a17", 500), (b"b3", 300)]


# --- A producer whose ack is lost ---


def publish(servers: str, order: bytes) -> None:
    """The program under test."""
    producer = KafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    producer.send("orders", order)
    producer.close()


def test_an_order_is_published_once_although_its_ack_is_lost() -> None:
    """Without ``enable_idempotence`` the record is there twice."""
    with Broker() as broker:
        lost = broker.lose_next_ack("orders")
        publish(broker.kafka_address, b"a17")
        assert lost.met == 1
        assert [record.value for record in broker.records("orders")] == [b"a17"]


# --- A rebalance ---


class Worker:
    """The program under test: it commits what it has done."""

    def __init__(self, servers: str, name: str) -> None:
        self.done: list[bytes] = []
        self.consumer = KafkaConsumer(
            "jobs",
            bootstrap_servers=servers,
            client_id=name,
            group_id="workers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=50,
        )

    def work(self) -> None:
        """Do the jobs of one poll, and commit them."""
        for records in self.consumer.poll(1000).values():
            self.done += [record.value for record in records]
            self.consumer.commit()


def test_another_worker_goes_on_where_the_first_one_was() -> None:
    """A session ends as by a long pause of the worker; without its commit the other begins at the beginning."""
    with Broker() as broker:
        broker.produce("jobs", "one", "two")
        first, second = [Worker(broker.kafka_address, name) for name in ("first", "second")]
        while len(first.done) < 2:
            first.work()
        broker.expire_session("workers", "first")
        broker.produce("jobs", "three")
        while not second.done:
            second.work()
        assert first.done + second.done == [b"one", b"two", b"three"]
        for worker in (first, second):
            worker.consumer.close()


# --- Retention, with the clock moved ---


def test_visits_are_gone_after_an_hour() -> None:
    with Broker() as broker:
        broker.create_topic("visits", retention_ms=3_600_000)
        broker.produce("visits", "early")
        broker.jump_clock(1_800)
        broker.produce("visits", "late")
        assert [record.value for record in broker.records("visits")] == [b"early", b"late"]
        broker.jump_clock(7_200)
        assert broker.records("visits") == []
        with (
            seglog.connect(broker.address) as client,
            client.consumer("visits", group="counters", follow=False) as visits,
        ):
            assert list(visits) == []


def test_compaction() -> None:
    with Broker(memory=True) as broker:
        broker.create_topic("prices", cleanup_policy="compact", segment_ms=60_000)
        broker.produce("prices", "1", "2", key="apple")
        broker.jump_clock(120)
        broker.produce("prices", "3", key="pear")
        broker.jump_clock(120)
        assert [r.value for r in broker.records("prices")] == [b"2", b"3"]


# --- A full disk ---


class Outbox:
    """The program under test: what a broker did not take is kept, and sent with the next order."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.kept: list[str] = []

    def send(self, order: str, seconds: float = 60) -> None:
        """Send the order behind those that are kept, for ``seconds`` at most."""
        self.kept.append(order)
        try:
            with (
                seglog.connect(self.address) as client,
                client.producer("orders", delivery_timeout=seconds) as producer,
            ):
                for kept in self.kept:
                    producer.send(kept)
            self.kept = []
        except* seglog.SeglogError:
            pass


def test_orders_are_kept_while_the_disk_is_full() -> None:
    with Broker() as broker:
        outbox = Outbox(broker.address)
        outbox.send("one")
        broker.full_disk()
        outbox.send("two", seconds=0.2)
        assert outbox.kept == ["two"]
        broker.full_disk(False)
        outbox.send("three")
        assert [record.value for record in broker.records("orders")] == [b"one", b"two", b"three"]
