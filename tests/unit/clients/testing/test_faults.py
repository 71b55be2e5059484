"""Every fault of ``Broker``, in front of a producer and a member of a group that have to survive it, on either wire."""

import gc
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any, Final, Protocol

import kafka
import pytest
from kafka.errors import KafkaConnectionError

import seglog
from seglog.testing import Broker, BrokerStoppedError
from seglog_protocol.errors import ClientClosedError, DiskFullError

LATER_SECONDS: Final = 0.2
CLIENT_ID: Final = "under-test"

pytestmark = [  # kafka-python's, that were reset
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]


class Program(Protocol):
    """What is under test: it sends records to ``t``, and its member of group ``g`` receives them."""

    received: list[bytes]

    def send(self, value: bytes) -> None:
        """Return when the record is acked."""
        ...


class Native:
    def __init__(self, broker: Broker) -> None:
        self.received: list[bytes] = []
        self._client = seglog.connect(**broker.client_config(), client_id=CLIENT_ID)
        self._producer = self._client.producer("t", linger_ms=0, delivery_timeout=120)
        self._consumer = self._client.consumer("t", group="g", session_timeout=1)
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def send(self, value: bytes) -> None:
        self._producer.send(value).result(120)

    def _receive(self) -> None:
        with suppress(ClientClosedError):
            self.received.extend(record.value or b"" for record in self._consumer)

    def close(self) -> None:
        self._client.close()
        self._thread.join()


class KafkaPython:
    def __init__(self, broker: Broker) -> None:
        self.received: list[bytes] = []
        common: dict[str, Any] = {
            **broker.kafka_config(),
            "client_id": CLIENT_ID,
            "retry_backoff_ms": 10,
            "reconnect_backoff_ms": 10,
            "reconnect_backoff_max_ms": 100,
        }
        self._producer = kafka.KafkaProducer(acks="all", enable_idempotence=True, **common)
        self._consumer = kafka.KafkaConsumer(
            "t",
            group_id="g",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
            session_timeout_ms=1_000,
            **common,
        )
        self._is_closed = False
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def send(self, value: bytes) -> None:
        self._producer.send("t", value).get(timeout=120)

    def _receive(self) -> None:
        while not self._is_closed:
            with suppress(KafkaConnectionError, OSError):  # which poll raises now and then, as they come in TLS
                # Not for less than a minute: it loses a join that takes longer than the poll.
                for records in self._consumer.poll(timeout_ms=60_000).values():
                    self.received += [record.value for record in records]

    def close(self) -> None:
        self._is_closed = True
        self.send(b"the last")  # ends the poll
        self._thread.join()
        self._consumer.close(autocommit=False)
        self._producer.close()


@contextmanager
def lifted_later(broker: Broker) -> Iterator[None]:
    """What was asked for in the block holds for a moment, and no longer."""
    yield

    def lift() -> None:
        with suppress(BrokerStoppedError):  # the program was quicker
            broker.heal()

    threading.Timer(LATER_SECONDS, lift).start()


def crash(broker: Broker) -> None:
    broker.crash()
    threading.Timer(LATER_SECONDS, broker.start).start()


def power_cut(broker: Broker) -> None:
    broker.power_cut()
    threading.Timer(LATER_SECONDS, broker.start).start()


def full_disk(broker: Broker) -> None:
    with lifted_later(broker):
        broker.full_disk()


def slow_disk(broker: Broker) -> None:
    broker.slow_disk(LATER_SECONDS)


def jump_clock(broker: Broker) -> None:
    broker.jump_clock(3_600)


def cut_connections(broker: Broker) -> None:
    assert broker.cut_connections(CLIENT_ID) >= 2


def refuse(broker: Broker) -> None:
    with lifted_later(broker):
        broker.refuse(cut=True)


def delay(broker: Broker) -> None:
    with lifted_later(broker):
        broker.delay(3_600)


def fail_next(broker: Broker) -> None:
    broker.fail_next("append", DiskFullError, 2)
    broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", 2)
    broker.fail_next("fetch", "OUT_OF_RESOURCES")
    broker.fail_next("Fetch", "NOT_LEADER_OR_FOLLOWER")


def lose_next_ack(broker: Broker) -> None:
    broker.lose_next_ack("t")


def expire_session(broker: Broker) -> None:
    [member] = broker.wait_for_group("g").members
    broker.expire_session("g", member.member_id)


def rebalance(broker: Broker) -> None:
    generation = broker.wait_for_group("g").group.generation
    broker.rebalance("g")
    broker.wait_for_group("g", after=generation)


FAULTS: Final[Mapping[str, Callable[[Broker], None]]] = {
    fault.__name__: fault
    for fault in (
        crash, power_cut, full_disk, slow_disk, jump_clock, cut_connections, refuse, delay, fail_next, lose_next_ack,
        expire_session, rebalance,
    )
}  # fmt: skip

NO_FAULTS: Final = frozenset(
    {
        "address", "ca", "client", "client_config", "close", "create_topic", "create_user", "delete_user", "heal",
        "is_running", "kafka_address", "kafka_config", "log", "pending_faults", "pid", "produce", "records", "restart",
        "server", "set_password", "start", "stop", "wait_for", "wait_for_group",
    }
)  # fmt: skip


def test_every_fault_is_in_this_table() -> None:
    public = {name for name, _ in inspect.getmembers(Broker) if not name.startswith("_")}
    assert public - NO_FAULTS == set(FAULTS)


@pytest.fixture(autouse=True)
def _without_leftovers(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Close what kafka-python leaves open before another test begins; its log would keep it."""
    caplog.set_level(logging.CRITICAL, "kafka")
    yield
    gc.collect()


QUICK: Final = {"cut_connections", "fail_next", "lose_next_ack", "expire_session", "rebalance"}


@pytest.mark.parametrize(
    ("fault", "kind", "is_secure"),
    [
        pytest.param(
            *(fault, kind, is_secure),
            id=f"{fault}-{kind.__name__}-{'SASL_SSL' if is_secure else 'PLAINTEXT'}",
            marks=[] if fault in QUICK and not is_secure else pytest.mark.soak,
        )
        for fault, kind, is_secure in product(FAULTS, (Native, KafkaPython), (False, True))
        # a handshake that is reset makes a poll of kafka-python wait to its end, a minute here
        if (fault, kind, is_secure) != ("refuse", KafkaPython, True)
    ],
)
def test_a_program_survives(fault: str, kind: Any, is_secure: bool) -> None:
    users: dict[str, str] | None = {} if is_secure else None
    with Broker(memory=True, log_retention_ms=-1, users=users, tls=is_secure) as broker:
        broker.create_topic("t")
        program = kind(broker)
        try:
            program.send(b"before")
            _received(program, {b"before"})
            FAULTS[fault](broker)
            program.send(b"after")
            _received(program, {b"before", b"after"})
            assert [record.value for record in broker.records("t")] == [b"before", b"after"]
            assert fault != "lose_next_ack" or broker.pending_faults == []
        finally:
            if not broker.is_running:
                broker.start()
            broker.heal()
            program.close()


def _received(program: Program, wanted: set[bytes]) -> None:
    """Wait for these records: in vain only if they never come."""
    give_up = time.monotonic() + 120
    while set(program.received) != wanted:
        assert time.monotonic() < give_up, f"received {program.received}"
        time.sleep(0.01)
