"""A broker that is away, or recovers: that it is waited for is said at once, for whom, and when it is over."""

import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio
from trio.testing import MockClock

import seglog
import seglog.trio
from seglog.cli import main
from seglog.core import retries
from seglog.core.dialing import refused
from seglog.core.retries import Outage, Waiting
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    ClientTimeoutError,
    ConnectionLostError,
    DeliveryFailed,
    NotReachableError,
    OutOfResourcesError,
    PartitionRecoveringError,
)
from seglog_protocol.messages import AppendRequest, FetchReply, FetchRequest, FetchResult, OffsetsRequest, Request
from tests.processes import wait_until
from tests.unit.clients.faces import Face
from tests.unit.clients.fake_broker import SILENCE, Answer, FakeBroker, fake_broker
from tests.unit.clients.trio.memory_broker import memory_broker

REFUSED = refused("h:1", ConnectionRefusedError(111, "Connection refused"))
REFUSED.__cause__ = ConnectionRefusedError(111, "Connection refused")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.name.startswith("seglog.")]


# --- What is said -----------------------------------------------------------------------------------------------------


def test_an_outage_is_logged_within_a_second_then_every_ten_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("h:1")
    now, spoke = 100.0, []
    while now < 130:
        before = len(caplog.records)
        outage.failed(REFUSED, now, now)
        spoke += [now - 100] * (len(caplog.records) - before)
        now += 0.125
    assert spoke == [0.5, 10.5, 20.5]
    outage.ended(130.0)
    outage.ended(131.0)  # of another connection
    assert lines(caplog) == [
        "waiting for h:1: Connection refused",
        "still waiting for h:1, for 10 s now: Connection refused",
        "still waiting for h:1, for 20 s now: Connection refused",
        "h:1 is back after 30.0 s",
    ]


def test_a_hiccup_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("h:1")
    for began in (100.0, 200.0):
        outage.failed(REFUSED, began, began + 0.1)
        outage.failed(REFUSED, began + 0.2, began + 0.3)
        outage.ended(began + 0.5)
    assert lines(caplog) == []


def test_an_outage_that_was_given_up_long_ago_is_not_the_same(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("h:1")
    outage.failed(REFUSED, 100.0, 100.0)
    outage.failed(REFUSED, 9_000.0, 9_000.1)
    assert lines(caplog) == []


def test_attempts_become_longer_so_that_the_first_is_over_soon() -> None:
    outage = Outage("h:1")
    lengths = []
    for number in range(6):
        lengths.append(outage.attempt_seconds(60))
        outage.failed(REFUSED, float(number), float(number))
    assert lengths == [0.6, 1.2, 2.4, 4.8, 5.0, 5.0]
    assert outage.attempt_seconds(0.25) == 0.25
    assert outage.attempt_seconds(-1) == 0.001
    outage.ended(7.0)
    assert outage.attempt_seconds(60) == 0.6


# --- The blocking client ----------------------------------------------------------------------------------------------


def unknown_name(*_: object, **__: object) -> list[object]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_a_host_that_does_not_exist_is_no_reason_to_wait(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", unknown_name)
    with pytest.raises(NotReachableError, match="unknown host in nowhere:9192: Name or service"):
        seglog.connect("nowhere:9192", connect_timeout=3600)
    assert lines(caplog) == []


def test_a_host_that_was_there_before_is_waited_for(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with seglog.connect(broker.address) as client, client.consumer("t", follow=True) as reader:
        known = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", unknown_name)
        threading.Timer(0.5, lambda: monkeypatch.setattr(socket, "getaddrinfo", known)).start()
        with broker.changed:
            broker.logs["t"][0].append(one_batch())
        broker.drop_connections()
        assert next(iter(reader)).value == b"x"


def one_batch() -> bytes:
    return encode_batch([(1, None, b"x", ())])


def test_every_connection_of_a_client_waits_and_one_line_says_so(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with seglog.connect(broker.address) as client:
        with client.producer("t") as producer, client.consumer("t", follow=True) as consumer:
            reading = threading.Thread(target=lambda: next(iter(consumer)))
            reading.start()
            broker.stop()
            delivery = producer.send(b"x")
            wait_until(lambda: bool(lines(caplog)), "the first line")
            broker.start()
            delivery.result(30)
            reading.join(30)
            assert not reading.is_alive()
        assert lines(caplog)[0] == f"waiting for {broker.address}: Connection refused"
        assert [line for line in lines(caplog) if line.startswith("waiting")] == lines(caplog)[:1]
        assert [line.partition(" after ")[0] for line in lines(caplog)[1:]] == [f"{broker.address} is back"]


def test_a_broker_that_is_silent_amid_appends_is_logged_and_is_the_cause(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async def main() -> DeliveryFailed:
        async with memory_broker() as broker, broker.connect() as client:
            broker.script = lambda request, _: SILENCE if isinstance(request, AppendRequest) else None
            producer = await client.producer("t", delivery_timeout=8)
            await producer.send(b"x")
            with pytest.raises(DeliveryFailed) as failed:
                await producer.close()
            return failed.value

    failed = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert lines(caplog) == ["the broker has not answered an append to t for 3 s"]
    assert "the broker has not answered an append to t for 8 s" in str(failed)
    assert isinstance(failed.__cause__, ClientTimeoutError)


# --- On trio ----------------------------------------------------------------------------------------------------------


async def test_on_trio_it_is_the_same(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    async def refuse(_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(NotReachableError, match=r"tried for 25 s"):
        async with seglog.trio.connect("h:1", connect_timeout=25, opener=refuse):  # type: ignore[arg-type]
            pytest.fail("not reached")
    said = lines(caplog)
    assert said[0] == "waiting for h:1: Connection refused"
    assert [line.partition(",")[0] for line in said[1:]] == ["still waiting for h:1"] * 2


# --- Closing while it is waited for -----------------------------------------------------------------------------------


def _fetching(broker: FakeBroker) -> None:
    with broker.changed:
        assert broker.changed.wait_for(lambda: broker.asked(FetchRequest) > 0, 30)


def test_a_consumer_that_is_closed_from_another_thread_ends_its_wait_for_a_broker_that_is_away(
    broker: FakeBroker,
) -> None:
    with seglog.connect(broker.address) as client:
        consumer = client.consumer("t", follow=True)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(next, iter(consumer))
            _fetching(broker)
            broker.stop()
            time.sleep(0.2)
            consumer.close()
            assert isinstance(reading.exception(10), seglog.ClientClosedError)
        with pytest.raises(seglog.ClientClosedError, match="the consumer is closed"):
            next(iter(consumer))
        broker.start()


# --- A reader that waits says what for, on both faces and on the command line -----------------------------------------


RECOVERING = PartitionRecoveringError("partition 0 of topic t is being recovered, 3 of 8 bytes are read: try again")
TOLD = "partition 0 of topic t is being recovered, 3 of 8 bytes are read"


def test_a_wait_is_told_after_some_seconds_then_from_time_to_time_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Waiting()
    for now in range(100, 126):
        told.failed(OutOfResourcesError("no memory: try again"), 100.0, now)
    told.ended(126.0)
    told.ended(127.0)
    assert caplog.messages == [
        "waiting for 3 s: no memory",
        "waiting for 13 s: no memory",
        "waiting for 23 s: no memory",
        "the wait is over after 26 s",
    ]


def test_short_waits_and_lost_connections_are_not_told_here(caplog: pytest.LogCaptureFixture) -> None:
    told = Waiting()
    told.failed(RECOVERING, 0.0, 2.9)
    told.failed(ConnectionLostError("gone"), 0.0, 60.0)
    told.failed(NotReachableError("away"), 0.0, 60.0)
    told.ended(61.0)
    assert not caplog.messages


def recovering(broker: FakeBroker, kind: type[Request]) -> None:
    """Two requests of this kind are answered with "recovering"."""
    left = [RECOVERING] * 2

    def answer(request: Request, _payload: memoryview) -> Answer | None:
        if not isinstance(request, kind) or not left:
            return None
        error = left.pop()
        return FetchReply([FetchResult("t", 0, 0, error=error)]) if isinstance(request, FetchRequest) else error

    broker.script = answer


@pytest.mark.parametrize("kind", [OffsetsRequest, FetchRequest])
async def test_each_face_tells_the_log_of_a_recovery_while_it_begins_and_while_it_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, face: Face, kind: type[Request]
) -> None:
    monkeypatch.setattr(retries, "WAIT_LOGGED_SECONDS", 0.0)
    async with face() as (broker, client):
        broker.fill(1)
        recovering(broker, kind)
        async with client.consumer("t") as consumer:
            assert [record.value async for record in consumer] == [b"0"]
    assert any(said.endswith(f" s: {TOLD}") for said in caplog.messages)
    assert caplog.messages[-1].startswith("the wait is over after ")


def test_consume_says_on_standard_error_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(retries, "WAIT_LOGGED_SECONDS", 0.0)
    with fake_broker() as broker:
        broker.fill(1)
        recovering(broker, FetchRequest)
        assert main(["--server", broker.address, "consume", "t"]) == 0
    printed = capfd.readouterr()
    assert printed.out == "0\n"
    assert printed.err.splitlines()[0] == f"seglog: waiting for 0 s: {TOLD}"
