"""The shared connection, and one client for many threads: interrupts, a fork, an end."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import seglog
from seglog.access import Access
from seglog.core.retries import backoff_seconds
from seglog.core.security import target_of
from seglog.link import Dialer, Link
from seglog_protocol import messages
from seglog_protocol.errors import (
    ClientClosedError,
    ClientTimeoutError,
    ConnectionLostError,
    NotReachableError,
)
from seglog_protocol.messages import AppendRequest, FetchRequest, OffsetsRequest, Request
from tests.unit.clients.fake_broker import CLOSE, SILENCE, Answer, FakeBroker, fake_broker


def dialer_of(broker: FakeBroker) -> Dialer:
    return Dialer(Access(target_of(broker.address)), "test")


def dial(broker: FakeBroker) -> Link:
    return dialer_of(broker).dial(10)


def test_a_call_that_timed_out_leaves_the_connection_in_step(broker: FakeBroker) -> None:
    link = dial(broker)
    broker.script = lambda request, _: SILENCE if isinstance(request, messages.TopicsRequest) else None
    with pytest.raises(ClientTimeoutError, match="did not answer topics"):
        link.call(messages.TopicsRequest(), messages.TopicsReply, timeout=0.01)
    reply, _ = link.call(messages.OffsetsRequest([messages.OffsetsPartition("t")]), messages.OffsetsReply, timeout=10)
    assert reply.partitions[0].topic == "t"
    link.close()


def test_an_interrupt_while_waiting_leaves_the_connection_usable(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = dial(broker)
    waited = link._poll

    def interrupted(event: int, deadline: float) -> bool:
        monkeypatch.setattr(link, "_poll", waited)
        raise KeyboardInterrupt

    monkeypatch.setattr(link, "_poll", interrupted)
    with pytest.raises(KeyboardInterrupt):
        link.call(messages.TopicsRequest(), messages.TopicsReply, timeout=10)
    reply, _ = link.call(messages.OffsetsRequest([messages.OffsetsPartition("t")]), messages.OffsetsReply, timeout=10)
    assert reply.partitions[0].latest == 0
    link.close()


def test_an_interrupt_while_bytes_are_in_motion_closes_the_connection(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = dial(broker)

    def interrupted(size: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(link._connection, "received", interrupted)
    with pytest.raises(KeyboardInterrupt):
        link.call(messages.TopicsRequest(), messages.TopicsReply, timeout=10)
    with pytest.raises(ConnectionLostError):
        link.call(messages.TopicsRequest(), messages.TopicsReply, timeout=10)
    assert not link.is_usable()
    link.close()


def test_an_interrupt_in_the_middle_of_a_request_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(ours, "test")

        def interrupted(event: int, deadline: float) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(link, "_poll", interrupted)
            with pytest.raises(KeyboardInterrupt):
                link.send(messages.TopicsRequest(), [bytes(50_000_000)], on_reply=None, timeout=10)
        with pytest.raises(ConnectionLostError, match="KeyboardInterrupt"):
            link.send(messages.TopicsRequest(), on_reply=None, timeout=10)
        link.close()


def test_a_request_of_which_nothing_could_be_written_leaves_the_connection_usable() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(ours, "test")
        with pytest.raises(BlockingIOError):  # noqa: PT012 - at some time
            while True:
                link._socket.send(bytes(100_000))
        with pytest.raises(ClientTimeoutError, match="took no more bytes"):
            link.send(messages.TopicsRequest(), on_reply=None, timeout=0.01)
        assert link.is_usable()
        with pytest.raises(BlockingIOError):  # noqa: PT012 - at some time
            while True:
                theirs.recv(1_000_000, socket.MSG_DONTWAIT)
        with pytest.raises(ClientTimeoutError, match="took no more bytes"):
            link.send(messages.TopicsRequest(), [bytes(50_000_000)], on_reply=None, timeout=0.01)
        assert not link.is_usable(), "half a request is worse than none"
        link.close()


def test_connecting_tries_again_until_the_broker_is_there(broker: FakeBroker) -> None:
    refusals = iter([CLOSE, SILENCE, CLOSE, CLOSE])
    broker.script = lambda request, _: next(refusals, None) if isinstance(request, messages.HelloRequest) else None
    dialer = dialer_of(broker)
    with pytest.raises(NotReachableError, match="closed the connection without an answer"):
        dialer.dial_once(10)
    with pytest.raises(NotReachableError, match="does not answer"):
        dialer.dial_once(0.05)
    dialer.dial(10).close()
    assert next(refusals, None) is None


def test_nobody_there_is_said_with_the_address_and_what_to_do() -> None:
    with fake_broker() as broker:
        address = broker.address
    with pytest.raises(NotReachableError, match=rf"{address}.*is seglogd running there") as caught:
        seglog.connect(address, connect_timeout=0.05)
    assert caught.value.server == address


def test_a_broker_that_answers_nobody_is_asked_for_its_lease(broker: FakeBroker) -> None:
    broker.script = lambda _request, _: CLOSE
    with pytest.raises(NotReachableError, match=r"running there, and does it hold its lease \(see its /readyz\)\?"):
        dialer_of(broker).dial(0.05)


def test_backoff_doubles_is_spread_and_has_an_end() -> None:
    assert [backoff_seconds(n, lambda: 1.0) for n in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff_seconds(0, lambda: 0.0) == 0.025
    assert backoff_seconds(10**6, lambda: 1.0) == 1.0


def test_large_payloads_arrive_whole_while_the_other_end_reads_slowly(broker: FakeBroker) -> None:
    seen: list[int] = []

    def script(request: messages.Request, payload: memoryview) -> Answer | None:
        if isinstance(request, messages.TopicsRequest):
            seen.append(len(payload))
        return None

    broker.script = script
    link = dial(broker)
    parts = [bytes([n % 256]) * 10_000 for n in range(2000)]
    message: messages.Message
    message, _ = link.call(messages.TopicsRequest(), messages.TopicsReply, parts, timeout=60)
    assert isinstance(message, messages.TopicsReply)
    assert seen == [20_000_000]
    link.close()


# --- One client for many threads: what they share, and what ends the waits of all of them -----------------------------


def in_threads(count: int, work: Any) -> list[Any]:
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait(30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_share_a_producer_through_lost_connections_each_in_its_own_order(broker: FakeBroker) -> None:
    with seglog.connect(broker.address) as client:
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


def test_closing_in_one_thread_ends_the_waits_of_others(broker: FakeBroker) -> None:
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
