"""One client for many threads: what they share, and what ends the waits of all of them."""

import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import seglog
from seglog_protocol.errors import ClientClosedError, ConnectionLostError
from seglog_protocol.messages import AppendRequest, FetchRequest, HelloRequest, OffsetsRequest, Request
from tests.unit.clients.fake_broker import CLOSE, SILENCE, Answer, FakeBroker, fake_broker


def test_nothing_of_python_runs_as_a_consumer_is_dropped_where_an_interrupt_would_be_lost() -> None:
    with fake_broker() as broker, seglog.connect(broker.address) as client:
        consumer = client.consumer("t", start="earliest")
        assert not list(consumer)
        consumer.close()
        dropped = weakref.ref(consumer)
        called: list[str] = []
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            del consumer
        finally:
            sys.setprofile(None)
        assert dropped() is None
        assert not called


def in_threads(count: int, work: Any) -> list[Any]:
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait(30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_that_find_the_connection_dead_share_one_new_one() -> None:
    with fake_broker(topics={f"t{n}": n + 1 for n in range(8)}) as broker, seglog.connect(broker.address) as client:
        for _ in range(5):
            broker.stop()
            broker.start()
            before = broker.asked(HelloRequest)
            assert in_threads(8, lambda n: len(client.offsets(f"t{n}"))) == list(range(1, 9))
            assert broker.asked(HelloRequest) == before + 1


def test_threads_share_a_producer_through_lost_connections_each_in_its_own_order() -> None:
    with fake_broker() as broker, seglog.connect(broker.address) as client:
        appends = 0

        def script(request: Request, _payload: memoryview) -> Answer | None:
            nonlocal appends
            if isinstance(request, AppendRequest):
                appends += 1
                return CLOSE if appends % 7 == 0 else None
            return None

        broker.script = script
        with client.producer("t", batch_bytes=500, buffer_bytes=5_000, linger_ms=1) as producer:

            def work(name: int) -> list[int]:
                deliveries = [producer.send(b"%d:%d" % (name, number)) for number in range(200)]
                return [delivery.result(60).offset for delivery in deliveries]

            offsets = in_threads(6, work)
        assert all(mine == sorted(mine) for mine in offsets)
        assert len({offset for mine in offsets for offset in mine}) == 1_200
        values = broker.values()
        assert all(
            values[offset] == b"%d:%d" % (n, k) for n, mine in enumerate(offsets) for k, offset in enumerate(mine)
        )


def test_many_threads_may_wait_for_one_delivery() -> None:
    with fake_broker() as broker, seglog.connect(broker.address) as client, client.producer("t") as producer:
        delivery = producer.send(b"x")
        assert in_threads(8, lambda _: delivery.result(60).offset) == [0] * 8


def test_closing_in_one_thread_ends_the_waits_of_others() -> None:
    with fake_broker() as broker:
        client = seglog.connect(broker.address)
        producer = client.producer("t")
        consumer = client.consumer("t", follow=True)
        broker.script = lambda request, _: SILENCE if isinstance(request, AppendRequest | OffsetsRequest) else None
        delivery = producer.send(b"x")

        def work(number: int) -> str:
            waits: list[Any] = [
                lambda: delivery.result(60),
                lambda: client.offsets("t"),
                lambda: next(iter(consumer)),
                lambda: _close_when_all_wait(broker, client),
            ]
            try:
                waits[number]()
            except (ClientClosedError, ConnectionLostError) as error:
                return type(error).__name__
            return "closed"

        assert in_threads(4, work) == ["ClientClosedError"] * 3 + ["closed"]


def _close_when_all_wait(broker: FakeBroker, client: seglog.Client) -> None:
    with broker.changed:
        assert broker.changed.wait_for(
            lambda: (
                all(broker.asked(kind) for kind in (AppendRequest, FetchRequest)) and broker.asked(OffsetsRequest) == 2
            ),
            60,
        )
    client.__exit__(ValueError, ValueError("leaving"), None)


# --- What both faces do, and threads make hard ------------------------------------------------------------------------


def test_a_producer_without_a_broker_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    step = seglog.Producer._step

    def counted(self: seglog.Producer, *arguments: Any) -> None:
        nonlocal steps
        steps += 1
        step(self, *arguments)

    monkeypatch.setattr(seglog.Producer, "_step", counted)
    with fake_broker() as broker, seglog.connect(broker.address) as client:
        producer = client.producer("t", delivery_timeout=1.0)
        broker.stop()
        with pytest.raises(seglog.ClientTimeoutError):
            producer.send(b"x").result(60)
        assert steps < 200
        producer.close()
