"""A service and its tests with a real broker that runs inside them.

    python -m pytest examples/test_my_service.py

The service ships orders: for each record of the topic ``orders`` it sends one to the topic
``shipments``. A copy of this file is a beginning for tests of your own; docs/TESTING.md has more of what can go wrong.
"""

from collections.abc import Iterator
from contextlib import suppress
from threading import Lock, Thread

import pytest

import seglog
from seglog.testing import Broker

# --- The service ------------------------------------------------------------------------------------------------------


class Shipping:
    """Ships orders until it is closed. An order that cannot be read goes to the topic ``orders.dead``."""

    def __init__(self, server: str) -> None:
        self._client = seglog.connect(server)
        self._orders = self._client.consumer("orders", group="shipping", auto_commit=False)
        self._working = Lock()
        self._is_closed = False
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with (
            self._client.producer("shipments") as shipments,
            self._client.producer("orders.dead") as dead,
            suppress(seglog.ClientClosedError),  # by close()
        ):
            for order in self._orders:
                with self._working:
                    if self._is_closed:
                        break
                    try:
                        pieces = int(order.value or b"")
                    except ValueError as error:
                        dead.send(order.value, key=order.key, headers=[("reason", str(error).encode())]).result()
                    else:
                        shipments.send(f"{pieces} pieces", key=order.key).result()
                    self._orders.commit()

    def close(self) -> None:
        """End it after the order that it works on; what it has shipped is committed."""
        with self._working:
            self._is_closed = True
            self._orders.close()
        self._thread.join()
        self._client.close()


# --- Its tests --------------------------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker for one test, without topics."""
    with Broker() as started:
        started.create_topic("orders")
        yield started
        assert started.pending_faults == [], "the test did not reach what it is about"


@pytest.fixture
def shipping(broker: Broker) -> Iterator[Shipping]:
    """The service."""
    service = Shipping(broker.address)
    yield service
    service.close()


@pytest.mark.usefixtures("shipping")
def test_an_order_is_shipped(broker: Broker) -> None:
    broker.produce("orders", "3", key="a17")
    [shipment] = broker.wait_for("shipments")
    assert (shipment.key, shipment.value) == (b"a17", b"3 pieces")


@pytest.mark.usefixtures("shipping")
def test_what_is_no_order_is_put_aside(broker: Broker) -> None:
    broker.produce("orders", "three", "4")
    assert [record.value for record in broker.wait_for("shipments")] == [b"4 pieces"]
    assert [record.value for record in broker.records("orders.dead")] == [b"three"]


@pytest.mark.usefixtures("shipping")
def test_an_order_whose_ack_is_lost_is_shipped_once(broker: Broker) -> None:
    lost = broker.lose_next_ack("shipments")
    broker.produce("orders", "3", "4")
    assert [record.value for record in broker.wait_for("shipments", 2)] == [b"3 pieces", b"4 pieces"]
    assert lost.met == 1


@pytest.mark.usefixtures("shipping")
def test_it_goes_on_when_the_broker_is_back(broker: Broker) -> None:
    broker.produce("orders", "3")
    broker.wait_for("shipments")
    broker.crash()
    broker.start()
    broker.produce("orders", "4")
    broker.wait_for("shipments", where=lambda shipment: shipment.value == b"4 pieces")


def test_a_new_one_goes_on_where_the_last_one_was(broker: Broker) -> None:
    for number in (1, 2):
        broker.produce("orders", str(number))
        service = Shipping(broker.address)
        broker.wait_for("shipments", number)
        service.close()
    assert [record.value for record in broker.records("shipments")] == [b"1 pieces", b"2 pieces"]
