"""Producers of either face: what arrives, what is sent again, what fails; and the blocking one by itself."""

import threading
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import seglog
from seglog_protocol.compression import Codec
from seglog_protocol.errors import (
    ClientClosedError,
    ClientTimeoutError,
    DeliveryFailed,
    InvalidRecordError,
    MessageTooLargeError,
    UnknownPartitionError,
)
from seglog_protocol.messages import (
    AppendReply,
    AppendRequest,
    AppendResult,
    HelloRequest,
    InitProducerRequest,
    Request,
)
from seglog_protocol.record_batch import parse_header
from tests.support import each_case
from tests.unit.clients.faces import Face, heard, together
from tests.unit.clients.fake_broker import CLOSE, SILENCE, Answer, FakeBroker, FakePartition, fake_broker, on_append
from tests.unit.clients.hand_clock import HandClock


async def test_a_record_arrives_as_it_was_sent_and_its_receipt_says_where_it_is(face: Face) -> None:
    async with (
        face(topics={"t": 3}) as (broker, client),
        client.producer("t") as producer,
    ):
        moment = datetime(2019, 1, 1, tzinfo=UTC)
        first = await producer.send("välue", key="key", timestamp=moment, partition=2, headers={"a": b"1", "b": None})
        second = await producer.send(None, key=b"key", timestamp=5, partition=2, headers=[("a", "2"), ("a", "3")])
        assert await first == seglog.Receipt("t", 2, 0, 1546300800000, "disk")
        assert await second == seglog.Receipt("t", 2, 1, 5, "disk")
        assert first.done()
        assert await first.exception() is None
        records = broker.logs["t"][2].records()
        assert records[0][2:] == (b"key", "välue".encode(), (("a", b"1"), ("b", None)))
        assert records[1][2:] == (b"key", None, (("a", b"2"), ("a", b"3")))


@pytest.mark.parametrize("linger_ms", [0, 20])
async def test_a_partition_may_be_a_whole_number_of_any_type(face: Face, linger_ms: int) -> None:
    async with (
        face(topics={"t": 3}) as (_, client),
        client.producer("t", linger_ms=linger_ms) as producer,
    ):
        numbers: list[Any] = [np.int64(1), np.uint8(1), 1]
        receipts = [await (await producer.send(b"x", partition=number)) for number in numbers]
        assert [(receipt.partition, receipt.offset) for receipt in receipts] == [(1, 0), (1, 1), (1, 2)]
        assert type(receipts[0].partition) is int
        wrongs: list[Any] = ["1", True, 0.5]
        for wrong in wrongs:
            with pytest.raises(TypeError, match="a partition is a whole number"):
                await producer.send(b"x", partition=wrong)
        assert (await (await producer.send(b"y"))).ack == "disk", "a record that was refused ends nothing"


async def test_an_append_time_of_the_broker_is_the_receipts_timestamp(face: Face) -> None:
    async with face() as (broker, client), client.producer("t") as producer:
        broker.script = on_append(lambda *_: AppendReply([AppendResult("t", 0, 40, 777, "disk", False)]))
        assert (await (await producer.send(b"x", timestamp=5))).timestamp == 777


async def test_records_that_linger_share_a_batch_and_leaving_the_block_flushes(face: Face) -> None:
    async with face() as (broker, client):
        async with client.producer("t", linger_ms=3_600_000) as producer:
            deliveries = [await producer.send(b"%d" % number) for number in range(100)]
            assert broker.asked(AppendRequest) == 0
        assert broker.values() == [b"%d" % number for number in range(100)]
        assert len(broker.logs["t"][0].batches) == 1
        assert [(await delivery).offset for delivery in deliveries] == list(range(100)), "also after the end"
        with pytest.raises(ClientClosedError):
            await producer.send(b"late")
        await producer.close()


async def test_lingering_records_go_out_by_themselves(face: Face) -> None:
    async with face() as (broker, client):
        producer = await client.producer("t", linger_ms=1)
        await producer.send(b"x")
        await heard(broker, AppendRequest)
        await producer.close()
        assert broker.values() == [b"x"]


def test_without_linger_there_is_no_thread(broker: FakeBroker) -> None:
    """Without linger a record is on its way when send returns and there is no thread."""
    with seglog.connect(broker.address) as client:
        threads = {thread.name for thread in threading.enumerate()}
        with client.producer("t", linger_ms=0) as producer:
            for number in range(50):
                producer.send(b"%d" % number)
            assert not any("seglog-producer" in t.name for t in threading.enumerate() if t.name not in threads)
            with broker.changed:
                assert broker.changed.wait_for(lambda: len(broker.values()) == 50, 30), "nobody flushed"
        assert broker.values() == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_codec_by_its_name(face: Face, codec: Codec) -> None:
    async with face() as (broker, client):
        async with client.producer("t", compression=codec.name.lower()) as producer:
            for _ in range(100):
                await producer.send(b"the same again")
        assert parse_header(broker.logs["t"][0].batches[0]).codec is codec
        assert broker.values() == [b"the same again"] * 100


async def test_ack_none_is_not_answered(face: Face) -> None:
    async with face() as (broker, client):
        async with client.producer("t", ack="none") as producer:
            receipt = await (await producer.send(b"x", timestamp=1))
        assert receipt == seglog.Receipt("t", 0, -1, 1, "none")
        await heard(broker, AppendRequest)
        assert broker.values() == [b"x"]


async def test_after_a_lost_connection_everything_is_sent_again_in_order(face: Face) -> None:
    async with face(topics={"t": 2}) as (broker, client):
        faults = iter([None, CLOSE, None, None, CLOSE])
        broker.script = on_append(lambda *_: next(faults, None))
        async with client.producer("t", linger_ms=0) as producer:
            for number in range(30):
                await producer.send(b"%d" % number, partition=number % 2)
        for partition in (0, 1):
            assert broker.values("t", partition) == [b"%d" % n for n in range(partition, 30, 2)]


async def test_a_broker_that_is_away_for_a_while_loses_nothing(face: Face) -> None:
    async with face() as (broker, client):
        async with client.producer("t", linger_ms=1) as producer:
            await (await producer.send(b"before"))
            broker.stop()
            deliveries = [await producer.send(b"%d" % number) for number in range(10)]
            assert not any(delivery.done() for delivery in deliveries)
            broker.start()
            assert [(await delivery).offset for delivery in deliveries] == list(range(1, 11))
        assert broker.values() == [b"before", *(b"%d" % number for number in range(10))]


async def test_records_of_a_batch_that_is_split_have_their_receipts(face: Face) -> None:
    async with face(max_message_bytes=100_000) as (broker, client):

        def answer(_request: AppendRequest, payload: memoryview) -> Answer | None:
            if len(payload) <= 300:
                return None
            error = MessageTooLargeError("too large", size=len(payload), limit=300)
            return AppendReply([AppendResult("t", 0, error=error)])

        broker.script = on_append(answer)
        producer = await client.producer("t", linger_ms=3_600_000)
        deliveries = [await producer.send(b"%03d" % number) for number in range(200)]
        await producer.flush()
        assert [(await delivery).offset for delivery in deliveries] == list(range(200))
        await producer.close()


async def test_a_full_buffer_makes_send_wait_and_at_last_fail(face: Face) -> None:
    async with face() as (broker, client):
        producer = await client.producer("t", linger_ms=0, buffer_bytes=2_000)
        for _ in range(500):
            await producer.send(b"x" * 100)
            assert producer.unacknowledged <= 20
        await producer.close()
        broker.script = on_append(lambda *_: SILENCE)
        impatient = await client.producer("t", buffer_bytes=1000, delivery_timeout=0.2, linger_ms=1)
        with pytest.raises(ClientTimeoutError, match=r"stayed full|not acknowledged"):  # noqa: PT012 - any of them
            for delivery in [await impatient.send(b"x" * 300) for _ in range(10)]:
                await delivery
        await impatient.abort(0)


async def test_senders_that_wait_for_room_learn_that_the_producer_is_closed(face: Face) -> None:
    async with face() as (broker, client):
        broker.script = on_append(lambda *_: SILENCE)
        producer = await client.producer("t", linger_ms=0, buffer_bytes=500)

        async def send() -> bool:
            try:
                await producer.send(b"x" * 100)
            except ClientClosedError:
                return True
            return False

        async def abort() -> None:
            await heard(broker, AppendRequest)
            await producer.abort(0)

        assert (await together(client, *[send] * 20, abort)).count(True) > 10


async def test_an_append_that_is_never_answered_is_sent_again_over_a_new_connection(face: Face) -> None:
    async with face() as (broker, client):
        faults: list[Answer] = []
        broker.script = on_append(lambda *_: faults.pop() if faults else None)
        for linger_ms in (0, 1):
            faults.append(SILENCE)
            hellos = broker.asked(HelloRequest)
            async with client.producer("t", linger_ms=linger_ms) as producer:
                producer._core.request_seconds = 0.1
                await producer.send(b"%d" % linger_ms)
            assert broker.asked(HelloRequest) >= hellos + 2
        assert list(dict.fromkeys(broker.values())) == [b"0", b"1"], "a slow answer is sent again, too"


async def test_what_failed_unseen_is_raised_by_the_next_flush_and_only_once(face: Face) -> None:
    async with face() as (broker, client), client.producer("t") as producer:
        broker.script = on_append(lambda *_: AppendReply([AppendResult("t", 0, error=InvalidRecordError("no"))]))
        await producer.send(b"0")
        with pytest.raises(DeliveryFailed, match=r"not acknowledged: 1 record to t.*no"):
            await producer.flush()
        await producer.flush()


async def test_a_record_not_acknowledged_in_time_fails_with_the_cause(face: Face) -> None:
    async with face() as (broker, client):
        producer = await client.producer("t", delivery_timeout=0.1)
        broker.stop()
        delivery = await producer.send(b"x")
        with pytest.raises(ClientTimeoutError, match=r"not sent within 0.1 s|sent, but not acknowledged"):
            await delivery
        await producer.close()


def test_result_gives_up_waiting_but_not_the_record(broker: FakeBroker) -> None:
    with seglog.connect(broker.address) as client:
        with client.producer("t", linger_ms=3_600_000) as producer:
            delivery = producer.send(b"x")
            with pytest.raises(ClientTimeoutError, match="still on its way"):
                delivery.result(0.01)
            with pytest.raises(ClientTimeoutError):
                delivery.exception(0)
        assert delivery.result().offset == 0


async def test_leaving_by_an_exception_sends_nothing_new_and_never_masks_it(face: Face) -> None:
    async with face() as (broker, client):
        with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
            async with client.producer("t", linger_ms=3_600_000) as producer:
                delivery = await producer.send(b"x")
                await producer.send(b"y")
                raise ZeroDivisionError
        assert caught.value.__notes__ == ["seglog: not acknowledged: 2 records to t"]
        assert broker.asked(AppendRequest) == 0
        with pytest.raises(ClientClosedError, match="before this record was sent"):
            await delivery
        with pytest.raises(ClientClosedError):
            await producer.send(b"z")


async def test_leaving_by_an_exception_waits_for_what_is_on_the_way(face: Face) -> None:
    async with face() as (_, client):
        with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
            async with client.producer("t", linger_ms=0) as producer:
                delivery = await producer.send(b"x")
                raise ZeroDivisionError
        assert not hasattr(caught.value, "__notes__")
        assert (await delivery).offset == 0


async def test_what_cannot_be_sent_is_refused_before_it_is_kept(face: Face) -> None:
    async with face() as (_, client), client.producer("t") as producer:
        with pytest.raises(UnknownPartitionError, match="has no partition 1"):
            await producer.send(b"x", partition=1)
        with pytest.raises(ValueError, match="zone"):
            await producer.send(b"x", timestamp=datetime(2019, 1, 1))  # noqa: DTZ001
        with pytest.raises(ValueError, match="milliseconds"):
            await producer.send(b"x", timestamp=-2)
        with pytest.raises(TypeError, match="value is bytes, str or None, not int"):
            await producer.send(5)
        with pytest.raises(MessageTooLargeError, match="max"):
            await producer.send(b"x" * 2_000_000)
        assert producer.unacknowledged == 0
        for options in ({"ack": "all"}, {"compression": "brotli"}, {"linger_ms": -1}, {"batch_bytes": 0}):
            with pytest.raises(ValueError, match=r"ack|compression|linger_ms|batch_bytes"):
                await client.producer("t", **options)


@each_case(
    ("headers", "wrong"),
    [
        (5, "a mapping, or pairs of a name and a value, not 5"),
        ("ab", "pairs of a name and a value, not 'a'"),
        ([5], "pairs of a name and a value, not 5"),
        ([("a",)], r"pairs of a name and a value, not \('a',\)"),
        ([("a", b"", 1)], r"pairs of a name and a value, not \('a', b'', 1\)"),
        ([(5, b"")], "name of a record's header is str, not int"),
        ({b"a": b""}, "name of a record's header is str, not bytes"),
        ({"a": 5}, "header value is bytes, str or None, not int"),
    ],
)
async def test_headers_that_are_none_are_a_type_error_that_says_what_headers_are(
    face: Face, headers: Any, wrong: str
) -> None:
    async with face() as (broker, client), client.producer("t") as producer:
        with pytest.raises(TypeError, match=wrong):
            await producer.send(b"x", headers=headers)
        assert producer.unacknowledged == 0
        assert (await (await producer.send(b"y", headers=[["a", "b"]]))).offset == 0
        assert broker.logs["t"][0].records()[0].headers == (("a", b"b"),)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_bytes": 1e5, "buffer_bytes": 1e6, "linger_ms": np.int64(1), "delivery_timeout": np.float32(60)},
        {"batch_bytes": np.int64(5), "buffer_bytes": np.float64(0.5), "linger_ms": True, "delivery_timeout": 60},
        {"batch_bytes": float("inf"), "buffer_bytes": float("inf"), "linger_ms": Fraction(1)},
        {"compression": "gzip", "compression_level": np.int64(3)},
    ],
)
async def test_options_may_be_numbers_of_any_type(face: Face, options: Any) -> None:
    async with face() as (_, client), client.producer("t", **options) as producer:
        assert [(await (await producer.send(b"x"))).offset for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("level", [3.0, "3", 99, -5])
async def test_a_compression_level_that_does_not_exist_is_refused_before_anything_is_sent(
    face: Face, level: Any
) -> None:
    async with face() as (broker, client):
        with pytest.raises(ValueError, match=f"gzip has no level {level!r}"):
            await client.producer("t", compression="gzip", compression_level=level)
        assert broker.asked(InitProducerRequest) == 0


async def test_a_partition_asked_for_by_number_is_looked_up_before_it_counts_as_unknown(face: Face) -> None:
    async with face() as (broker, client), client.producer("t") as producer:
        broker.logs["t"] += [FakePartition()]
        assert (await (await producer.send(b"v", partition=1))).partition == 1
        with pytest.raises(UnknownPartitionError, match="it has 2"):
            await producer.send(b"v", partition=2)


async def test_an_unanswered_topic_of_another_reply_length_is_no_answer(face: Face) -> None:
    async with face() as (broker, client):
        broker.script = on_append(lambda *_: AppendReply([]))
        producer = await client.producer("t")
        assert "another number of batches" in str(await (await producer.send(b"x")).exception())
        await producer.close()


async def test_every_producer_has_a_connection_of_its_own(face: Face) -> None:
    """Every producer has a connection of its own and closing the client flushes them."""
    async with face() as (broker, client):
        for number in range(3):
            producer = await client.producer("t", linger_ms=3_600_000)
            await producer.send(b"%d" % number)
        await client.close()
        assert sorted(value or b"" for value in broker.values()) == [b"0", b"1", b"2"]
        assert broker.asked(HelloRequest) == 4


# --- A broker that hangs ----------------------------------------------------------------------------------------------


def test_a_broker_that_takes_no_bytes_keeps_no_record_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, frozen, thawed = HandClock(), threading.Event(), threading.Event()
    monkeypatch.setattr("seglog.producer.time", clock)
    with fake_broker(topics={"t": 25}) as broker, seglog.connect(broker.address) as client:
        producer = client.producer("t", delivery_timeout=25, batch_bytes=1_000_000)

        def freeze(_request: Request, _payload: memoryview) -> Answer | None:
            frozen.set()
            thawed.wait()
            return SILENCE

        look = producer._nothing_expires

        def look_later() -> bool:
            clock.pass_by(14)
            return look()

        broker.script = freeze
        monkeypatch.setattr(producer, "_nothing_expires", look_later)
        try:
            early = producer.send(b"early", partition=0)
            clock.pass_by(1)
            assert frozen.wait(60)
            clock.pass_by(14)
            late = [producer.send(bytes(900_000), partition=partition) for partition in range(1, 25)]
            clock.pass_by(0.5)
            assert isinstance(early.exception(), ClientTimeoutError)
            assert clock.now == 29.5, "it was due at 25, and what keeps the socket full is at 40"
            assert not any(delivery.done() for delivery in late)
        finally:
            thawed.set()
            producer.abort(0)
