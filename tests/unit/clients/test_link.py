"""The shared connection: many threads, interrupts, a fork, an end."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

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
from tests.unit.clients.fake_broker import CLOSE, SILENCE, Answer, FakeBroker, fake_broker
from tests.unit.clients.hand_clock import HandClock


def dialer_of(broker: FakeBroker) -> Dialer:
    return Dialer(Access(target_of(broker.address)), "test")


def dial(broker: FakeBroker) -> Link:
    return dialer_of(broker).dial(10)


def test_hello_tells_who_answers() -> None:
    with fake_broker() as broker:
        link = dial(broker)
        assert isinstance(link.hello, messages.HelloReply)
        assert link.hello.broker == "fake/1"
        assert broker.requests == [messages.HelloRequest("seglog", "test")]
        link.close()


def test_a_call_that_timed_out_leaves_the_connection_in_step() -> None:
    with fake_broker() as broker:
        link = dial(broker)
        broker.script = lambda request, _: SILENCE if isinstance(request, messages.TopicsRequest) else None
        with pytest.raises(ClientTimeoutError, match="did not answer topics"):
            link.call(messages.TopicsRequest(), messages.TopicsReply, timeout=0.01)
        reply, _ = link.call(
            messages.OffsetsRequest([messages.OffsetsPartition("t")]), messages.OffsetsReply, timeout=10
        )
        assert reply.partitions[0].topic == "t"
        link.close()


def test_an_interrupt_while_waiting_leaves_the_connection_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_broker() as broker:
        link = dial(broker)
        waited = link._poll

        def interrupted(event: int, deadline: float) -> bool:
            monkeypatch.setattr(link, "_poll", waited)
            raise KeyboardInterrupt

        monkeypatch.setattr(link, "_poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            link.call(messages.TopicsRequest(), messages.TopicsReply, timeout=10)
        reply, _ = link.call(
            messages.OffsetsRequest([messages.OffsetsPartition("t")]), messages.OffsetsReply, timeout=10
        )
        assert reply.partitions[0].latest == 0
        link.close()


def test_an_interrupt_while_bytes_are_in_motion_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_broker() as broker:
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


def test_everybody_who_waits_learns_that_the_connection_broke() -> None:
    with fake_broker() as broker:
        link = dial(broker)
        waiting = threading.Barrier(4)
        broker.script = lambda request, _: SILENCE

        def ask(_: int) -> str:
            waiting.wait(10)
            with pytest.raises(ConnectionLostError) as caught:
                link.call(messages.TopicsRequest(), messages.TopicsReply, timeout=60)
            return str(caught.value)

        with ThreadPoolExecutor(3) as pool:
            answers = pool.map(ask, range(3))
            waiting.wait(10)
            with broker.changed:
                broker.changed.wait_for(lambda: broker.asked(messages.TopicsRequest) == 3, 10)
            broker.drop_connections()
            assert all(broker.address in answer for answer in answers)
        link.close()


def test_closing_wakes_whoever_waits() -> None:
    with fake_broker() as broker:
        link = dial(broker)
        broker.script = lambda request, _: SILENCE
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: link.call(messages.TopicsRequest(), messages.TopicsReply, timeout=60))
            with broker.changed:
                broker.changed.wait_for(lambda: broker.asked(messages.TopicsRequest) == 1, 10)
            link.close()
            with pytest.raises(ClientClosedError):
                waiting.result(10)


def test_a_closed_copy_in_a_real_child_does_not_hurt_the_parent() -> None:
    with fake_broker() as broker:
        link = dial(broker)
        # What the child inherits is a copy of the descriptor: closing it must not shut the connection down.
        link.owner._pid += 1
        copy = link._socket.dup()
        original, link._socket = link._socket, copy
        link.close()
        link._socket = original
        link.owner._pid -= 1
        reply, _ = link.call(messages.TopicsRequest(), messages.TopicsReply, timeout=10)
        assert not reply.more
        link.close()


def test_connecting_tries_again_until_the_broker_is_there() -> None:
    with fake_broker() as broker:
        refusals = iter([CLOSE, SILENCE, CLOSE, CLOSE])
        broker.script = lambda request, _: next(refusals, None) if isinstance(request, messages.HelloRequest) else None
        dialer = dialer_of(broker)
        with pytest.raises(NotReachableError, match="closed the connection without an answer"):
            dialer.dial_once(10)
        with pytest.raises(NotReachableError, match="does not answer"):
            dialer.dial_once(0.05)
        dialer.dial(10).close()
        assert next(refusals, None) is None


def test_a_peer_that_only_hangs_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something that only hangs up is named for what it may be when the time is over."""
    clock, hellos = HandClock(), 0
    monkeypatch.setattr("seglog.link.time", clock)

    def hang_up(_request: messages.Request, _payload: memoryview) -> Answer:
        nonlocal hellos
        hellos += 1
        if hellos == 4:
            clock.pass_by(30)
        return CLOSE

    with fake_broker() as broker:
        broker.script = hang_up
        with pytest.raises(NotReachableError, match=r"does not speak the seglog protocol.*9192.*tried for 30 s"):
            dialer_of(broker).dial(30, sleep=lambda _: None)
    assert hellos == 4


def test_nobody_there_is_said_with_the_address_and_what_to_do() -> None:
    with fake_broker() as broker:
        address = broker.address
    with pytest.raises(NotReachableError, match=rf"{address}.*is seglogd running there") as caught:
        seglog.connect(address, connect_timeout=0.05)
    assert caught.value.server == address


def test_backoff_doubles_is_spread_and_has_an_end() -> None:
    assert [backoff_seconds(n, lambda: 1.0) for n in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff_seconds(0, lambda: 0.0) == 0.025
    assert backoff_seconds(10**6, lambda: 1.0) == 1.0


def test_large_payloads_arrive_whole_while_the_other_end_reads_slowly() -> None:
    with fake_broker() as broker:
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
