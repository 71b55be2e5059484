"""The broker on the forgetful disk: when acks are sent, when fetches wait, and the errors for bad input."""

import errno
import struct
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.engine.turns import LOOKUPS_A_TURN
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol import errors, messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.frames import HEADER_BYTES_MAX, decode_value, encode_value
from seglog_protocol.record_batch import parse_header, seal_batch
from seglog_protocol.records import decode_records
from tests.appends import append_request
from tests.logs import ManualClock, batch
from tests.support import each_case
from tests.unit.broker.api.scene import append
from tests.unit.broker.brokers import open_broker

NOW = 1_700_000_000_000


async def with_topic(broker: Broker, **config: str | int) -> None:
    named: dict[str, Any] = {name.replace("_", "."): value for name, value in config.items()}
    await broker.create_topic(messages.CreateTopicRequest("t", 2, named))


def fetch_request(offset: int = 0, *, timestamp: int | None = None, **limits: Any) -> messages.FetchRequest:
    start = messages.FetchPartition("t", 0, None if timestamp is not None else offset, timestamp)
    return messages.FetchRequest([start], **{"max_wait_ms": 0, **limits})


async def values(broker: Broker, request: messages.FetchRequest) -> list[bytes | None]:
    with await broker.fetch(request) as answer:
        assert answer.reply.partitions[0].error is None, answer.reply
        return [record.value for record in _records(answer)]


def _records(answer: FetchAnswer) -> list[Any]:
    records: list[Any] = []
    for data in (answer.payload, *(piece.file.pread(piece.size, piece.position) for piece in answer.slices)):
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            records += decode_records(header, data[position : position + header.size])
            position += header.size
    return records


# --- What an ack has reached ------------------------------------------------------------------------------------------


async def test_a_disk_ack_comes_after_the_write_and_the_fdatasync_of_that_very_file(
    broker: Broker, fs: ForgetfulFileSystem
) -> None:
    fs.operations.clear()
    log = "/data/t-0/00000000000000000000.log"
    pending = append_request(
        broker,
        messages.AppendRequest([messages.AppendPartition("t", 0, len(batch(b"v")))], "disk"),
        memoryview(bytearray(batch(b"v"))),
    )
    assert pending.reply is None, "no answer before the disk has it"
    assert [(op.name, op.path) for op in fs.operations] == [("pwritev", log)]
    reply = await pending.wait()
    assert [(op.name, op.path) for op in fs.operations] == [("pwritev", log), ("fdatasync", log)]
    week_ago = broker.clock.now_ms() - 604_800_000  # retention.ms, by default
    assert reply.partitions == [
        messages.AppendResult(
            "t", 0, base_offset=0, timestamp=-1, ack="disk", duplicate=False, expired_before=week_ago
        ),
    ]


async def test_a_disk_ack_survives_a_power_cut_across_a_roll_and_an_os_ack_need_not() -> None:
    fs = ForgetfulFileSystem()
    broker = open_broker(fs)
    await with_topic(broker, segment_bytes=1024)
    for number in range(40):
        await append(broker, batch(b"os %d" % number))
    assert len(broker.partitions["t", 0].log.segments) > 2
    [result] = await append(broker, batch(b"disk"), ack="disk")
    assert result.base_offset == 40
    await append(broker, batch(b"os at the end"))
    after = open_broker(fs.found_after(POWER_LOSS))
    found = await values(after, fetch_request(max_bytes=1 << 20))
    offset = len(found)
    while offset < 41:
        found += await values(after, fetch_request(offset))
        offset = len(found)
    assert found[-1] == b"disk", "and every lower offset with it"
    assert len(found) == 41
    after.close()
    broker.close()


async def test_a_full_disk_is_reported_to_the_operator_until_it_has_room_again(
    broker: Broker, fs: ForgetfulFileSystem
) -> None:
    fs.inject(Fault("pwritev", "t-0/00000000000000000000.log", error=errno.ENOSPC, sticky=True))
    await append(broker, batch(b"v"))
    assert any("t-0 takes no records" in problem for problem in broker.hello().problems)
    fs.heal()
    await append(broker, batch(b"v"))
    assert broker.hello().problems == []


async def test_however_many_problems_there_are_the_greeting_fits_a_header_and_counts_them(broker: Broker) -> None:
    broker.directory.report.problems += ["p" * 10_000] * 20_000
    hello = broker.hello()
    assert len(encode_value(messages.reply_header(1, hello))) < HEADER_BYTES_MAX / 2
    assert hello.problems[-1] == "and 19,800 more problems, which the broker's log names"


async def test_a_producer_that_begins_on_a_full_disk(broker: Broker, fs: ForgetfulFileSystem) -> None:
    """A producer that begins on a full disk gets a retriable error with the free space."""
    fs.inject(Fault("pwritev", "seglog-producer-ids.json.tmp", error=errno.ENOSPC, sticky=True))
    with pytest.raises(errors.DiskFullError, match=r"no producer id could be given: .* bytes are free") as caught:
        await broker.init_producer()
    assert caught.value.retriable
    fs.heal()
    assert (await broker.init_producer()).producer_id >= 0


# --- Who waits for what -----------------------------------------------------------------------------------------------


async def test_a_fetch_waits_for_min_bytes_and_not_longer_than_it_said(broker: Broker, autojump_clock: object) -> None:
    size = len(batch(b"v"))

    async def produce() -> None:
        for _ in range(3):
            await trio.sleep(1)
            await append(broker, batch(b"v"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        began = trio.current_time()
        assert await values(broker, fetch_request(min_bytes=2 * size, max_wait_ms=30_000)) == [b"v", b"v"]
        assert trio.current_time() - began == pytest.approx(2)
    assert await values(broker, fetch_request(3, max_wait_ms=5_000)) == []
    assert trio.current_time() - began == pytest.approx(8)


async def test_a_fetch_by_timestamp_needs_one_round_trip(broker: Broker) -> None:
    for number in range(10):
        await append(broker, batch(b"%d" % number, timestamp=1000 + number))
    with await broker.fetch(fetch_request(timestamp=1005)) as answer:
        assert answer.reply.partitions[0].offset == 5
        assert [record.value for record in _records(answer)] == [b"5", b"6", b"7", b"8", b"9"]
    with await broker.fetch(fetch_request(timestamp=2000)) as answer:
        assert answer.reply.partitions[0].offset == 10
        assert answer.slices == []


# --- Topics that are made again ---------------------------------------------------------------------------------------


async def ids(broker: Broker, *partitions: int | None) -> dict[str, str] | None:
    request = messages.OffsetsRequest([messages.OffsetsPartition("t", partition) for partition in partitions])
    return (await broker.offsets(request)).topic_ids


async def make_again(broker: Broker, count: int) -> None:
    """Another topic of the same name, with so many records in it."""
    await broker.delete_topic(messages.DeleteTopicRequest("t"))
    await with_topic(broker)
    await append(broker, *[batch(b"new %d" % number) for number in range(count)])


async def test_offsets_come_with_the_id_of_their_topic_for_any_partitions(broker: Broker) -> None:
    """It is that of before where the topic was altered, and another one where it was made again."""
    there = {"t": broker.directory.registry.topics["t"].id}
    assert await ids(broker, None) == await ids(broker, 1) == await ids(broker, 0, 1, 7) == there
    await append(broker, batch(b"v"))
    await broker.alter_topic(messages.AlterTopicRequest("t", partitions=3))
    assert await values(broker, msgspec.structs.replace(fetch_request(), topic_ids=there)) == [b"v"]
    await make_again(broker, 0)
    assert await ids(broker, None) not in (there, {}, None)
    unknown = await broker.offsets(
        messages.OffsetsRequest([messages.OffsetsPartition("T"), messages.OffsetsPartition("t", 0)])
    )
    assert unknown.topic_ids == await ids(broker, 0)


@pytest.mark.parametrize("offset", [0, 2, 3, 7])
@pytest.mark.parametrize("max_wait_ms", [0, 30_000])
async def test_a_fetch_with_the_id_of_a_deleted_topic(
    broker: Broker, autojump_clock: object, offset: int, max_wait_ms: int
) -> None:
    """A fetch with the id of a deleted topic gets nothing of the new one and does not wait."""
    await append(broker, batch(b"old"), batch(b"old too"))
    former = await ids(broker, None)
    await make_again(broker, 3)
    began = trio.current_time()
    meant = msgspec.structs.replace(fetch_request(offset, max_wait_ms=max_wait_ms), topic_ids=former)
    with await broker.fetch(meant) as answer:
        assert answer.size == 0
        error = answer.reply.partitions[0].error
    assert trio.current_time() == began
    assert isinstance(error, errors.InconsistentTopicIdError)
    assert not error.retriable
    assert (error.topic, error.partition, {"t": error.topic_id}) == ("t", 0, await ids(broker, None))
    assert error.message == (
        "topic t was deleted and made again, and positions in the former topic mean nothing in this one; "
        "start the consumer again: at the earliest, at the latest, or at a moment"
    )


async def test_other_topics_of_such_a_fetch(
    broker: Broker,
) -> None:
    """Other topics of such a fetch are read and removed partitions get the same error."""
    former = await ids(broker, None)
    await make_again(broker, 3)
    await broker.create_topic(messages.CreateTopicRequest("other", 1, {}))
    asked = [
        messages.FetchPartition("t", 9, timestamp=0),
        messages.FetchPartition("other", 0, 0),
        messages.FetchPartition("gone", 0, 0),
    ]
    with await broker.fetch(messages.FetchRequest(asked, topic_ids={**(former or {}), "gone": "x"})) as answer:
        found = [type(result.error) for result in answer.reply.partitions]
    assert found == [errors.InconsistentTopicIdError, type(None), errors.UnknownTopicError]


async def test_a_shared_reply_for_the_new_topic_is_not_given_to_a_fetch_with_the_old_id(broker: Broker) -> None:
    former = await ids(broker, None)
    await make_again(broker, 1)
    here = fetch_request()
    for wanted, count in ((await ids(broker, None), 1), (None, 1), (former, 0), (await ids(broker, 0), 1), (former, 0)):
        with await broker.fetch(msgspec.structs.replace(here, topic_ids=wanted)) as answer:
            assert len(_records(answer)) == count
            assert (answer.reply.partitions[0].error is None) is (count == 1)


async def test_a_fetch_that_waits_while_its_topic_is_made_again(broker: Broker, autojump_clock: object) -> None:
    """When it is woken, it finds no topic of that name, or one with another id, however soon that was created."""
    meant = msgspec.structs.replace(fetch_request(max_wait_ms=30_000), topic_ids=await ids(broker, None))
    found: list[errors.SeglogError | None] = []

    async def consume() -> None:
        for _ in range(2):
            with await broker.fetch(meant) as answer:
                found.append(answer.reply.partitions[0].error)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await trio.testing.wait_all_tasks_blocked()
        await make_again(broker, 5)
    assert type(found[0]) in {errors.UnknownTopicError, errors.InconsistentTopicIdError}
    assert type(found[1]) is errors.InconsistentTopicIdError


# --- What bad input is answered ---------------------------------------------------------------------------------------


def _with_crc(encoded: bytes, **changes: int) -> bytes:
    """The batch with changed header fields and a correct checksum."""
    header = parse_header(encoded)._replace(**changes)
    return seal_batch(header, encoded[61:])


GOOD = batch(b"value", timestamp=NOW)


@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        (b"", errors.CorruptBatchError, "0 bytes are not a record batch"),
        (GOOD[:40], errors.CorruptBatchError, "not a record batch"),
        (GOOD[:-1], errors.CorruptBatchError, "72 were sent for it"),
        (GOOD + b"x", errors.InvalidRecordError, "1 bytes follow the batch"),
        (GOOD + GOOD, errors.InvalidRecordError, "exactly one batch"),
        (GOOD[:-1] + b"\x01", errors.CorruptBatchError, "CRC-32C"),
        (GOOD[:16] + b"\x00" + GOOD[17:], errors.UnsupportedMagicError, "magic 0"),
        (GOOD[:16] + b"\x01" + GOOD[17:], errors.UnsupportedMagicError, "older than Kafka 0.11"),
        (GOOD[:16] + b"\x03" + GOOD[17:], errors.UnsupportedMagicError, "magic 3"),
        (struct.pack(">q", 7) + GOOD[8:], errors.InvalidRecordError, "base offset 7"),
        (_with_crc(GOOD, attributes=5), errors.InvalidRecordError, "codec 5"),
        (_with_crc(GOOD, attributes=0x08), errors.InvalidTimestampError, "LogAppendTime"),
        (_with_crc(GOOD, attributes=0x10), errors.InvalidRecordError, "transaction"),
        (_with_crc(GOOD, attributes=0x20), errors.InvalidRecordError, "control"),
        (_with_crc(GOOD, attributes=0x40), errors.InvalidRecordError, "0x0040"),
        (_with_crc(GOOD, attributes=0x0100), errors.InvalidRecordError, "0x0100"),
        (_with_crc(GOOD, record_count=2), errors.InvalidRecordError, "counts 2 records"),
        (_with_crc(GOOD, record_count=0, last_offset_delta=-1), errors.InvalidRecordError, "counts 0 records"),
        (_with_crc(GOOD, max_timestamp=NOW + 3_600_001), errors.InvalidTimestampError, "in the future"),
        (_with_crc(GOOD, max_timestamp=NOW - 1), errors.InvalidTimestampError, "before its base timestamp"),
        (batch(b"x" * 1_100_000), errors.MessageTooLargeError, "max.message.bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_bad_batch_gets_one_sentence_and_nothing_else_stops(
    broker: Broker, bad: bytes, kind: type[errors.SeglogError], words: str
) -> None:
    results = await append(broker, GOOD, bad, GOOD)
    assert [result.base_offset for result in results] == [0, None, 1]
    error = results[1].error
    assert type(error) is kind
    assert words in error.message
    assert "\n" not in error.message
    assert (error.facts["topic"], error.facts["partition"]) == ("t", 0)
    assert len(await values(broker, fetch_request())) == 2


async def test_checked_batches_take_turns(broker: Broker) -> None:
    """Batches whose records are looked at take turns and are not gathered with others."""
    late = encode_batch([(NOW + 10**8, None, b"%d" % number, ()) for number in range(700)])
    good = memoryview(bytearray(GOOD))
    assert broker.is_plain(messages.AppendRequest([messages.AppendPartition("t", 0, len(good))], "os"), good)
    both = messages.AppendRequest(
        [messages.AppendPartition("t", 0, len(good)), messages.AppendPartition("t", 1, len(late))], "os"
    )
    assert not broker.is_plain(both, memoryview(bytearray(GOOD + late)))
    requests = [messages.AppendRequest([messages.AppendPartition("t", 0, len(late))], "os") for _ in range(3)]
    pending = broker.append(requests, [memoryview(bytearray(late)) for _ in requests])
    assert not pending.is_written
    await pending.write_rest()
    assert pending.replies is not None
    for reply in pending.replies:
        assert isinstance(reply, messages.AppendReply)
        assert len(getattr(reply.partitions[0].error, "records", ())) == 700


@each_case("codec", [Codec.NONE, Codec.LZ4])
@each_case("config", [{}, {"cleanup_policy": "compact"}])
async def test_of_a_large_batch_as_well_each_record_of_the_future_is_named(
    codec: Codec, config: dict[str, str]
) -> None:
    """Its records are looked at in a process, as those of topics with rules for them are."""
    broker = open_broker()
    await with_topic(broker, **config)
    records = [(NOW + 10**8 * (number in (3, 140)), b"key", bytes(200), ()) for number in range(150)]
    good, large, last = (encode_batch(some, codec=codec) for some in (records[:1], records, records[:2]))
    parts = [messages.AppendPartition("t", 0, len(data)) for data in (good, large, last)]
    payload = memoryview(bytearray(good + large + last))
    pending = broker.append([messages.AppendRequest(parts, "os")], [payload])
    await pending.write_rest()
    assert pending.replies is not None
    [reply] = pending.replies
    assert isinstance(reply, messages.AppendReply)
    assert [result.base_offset for result in reply.partitions] == [0, None, 1]
    error = reply.partitions[1].error
    assert isinstance(error, errors.InvalidTimestampError)
    assert (error.record, list(error.records), error.facts["topic"]) == (3, [3, 140], "t")
    assert "in the future" in error.message
    broker.close()


async def test_an_hour_ahead_is_just_accepted_and_so_is_no_timestamp(broker: Broker) -> None:
    ahead = batch(b"v", timestamp=NOW + 3_600_000)
    assert [r.error for r in await append(broker, ahead, batch(b"v", timestamp=-1))] == [None, None]


async def test_a_timestamp_before_the_topics_limit_is_refused_by_its_index() -> None:
    broker = open_broker()
    await with_topic(broker, message_timestamp_before_max_ms=1000)
    [result] = await append(broker, encode_batch([(NOW, None, b"v", ()), (NOW - 1001, None, b"v", ())]))
    assert isinstance(result.error, errors.InvalidTimestampError)
    assert (result.error.record, result.error.timestamp) == (1, NOW - 1001)
    broker.close()


async def test_a_request_whose_sizes_do_not_add_up_is_refused_as_a_whole(broker: Broker) -> None:
    with pytest.raises(errors.InvalidRequestError, match="have 10 bytes by the request"):
        append_request(
            broker, messages.AppendRequest([messages.AppendPartition("t", 0, 10)], "os"), memoryview(bytearray(9))
        )
    with await broker.fetch(messages.FetchRequest([messages.FetchPartition("t", 0)])) as answer:
        assert isinstance(answer.reply.partitions[0].error, errors.InvalidRequestError)


async def test_deletion_can_be_switched_off() -> None:
    broker = open_broker(None, "delete.topic.enable=false")
    await with_topic(broker)
    with pytest.raises(errors.PolicyViolationError):
        await broker.delete_topic(messages.DeleteTopicRequest("t"))
    broker.close()


# --- Listings ---------------------------------------------------------------------------------------------------------


async def test_topics_are_listed_in_pages(broker: Broker) -> None:
    for name in ("a", "b", "c"):
        await broker.create_topic(messages.CreateTopicRequest(name, 1, {}))
    seen: list[str] = []
    more, after = True, ""
    while more:
        reply, payload = await broker.topics(messages.TopicsRequest(after=after, limit=3))
        names = [topic["name"] for topic in decode_value(payload, "topics")]
        seen += names
        more, after = reply.more, names[-1]
    assert seen == ["a", "b", "c", "t"]
    reply, payload = await broker.topics(messages.TopicsRequest(names=["b", "x"], config=True))
    [described] = decode_value(payload, "topics")
    assert described["config"]["segment.bytes"] == {"value": "1073741824", "origin": "default", "where": ""}
    assert isinstance(reply.unknown[0], errors.UnknownTopicError)


async def test_offsets_of_all_partitions_name_ends_durability_and_epoch(broker: Broker) -> None:
    await append(broker, batch(b"v", timestamp=5000), ack="disk")
    await append(broker, batch(b"w", timestamp=6000), ack="os")
    reply = await broker.offsets(
        messages.OffsetsRequest([messages.OffsetsPartition("t", timestamp=5500), messages.OffsetsPartition("nope")])
    )
    first, second, unknown = reply.partitions
    assert (first.earliest, first.latest, first.durable, first.leader_epoch) == (0, 2, 1, 0)
    assert (first.offset, first.timestamp) == (1, 6000)
    assert (second.partition, second.latest, second.offset) == (1, 0, None)
    assert isinstance(unknown.error, errors.UnknownTopicError)


# --- One answer for many ----------------------------------------------------------------------------------------------


async def test_equal_fetches_at_the_end_share_an_answer_until_something_changes(broker: Broker) -> None:
    await append(broker, batch(b"a"))
    await append(broker, batch(b"b"))
    request = fetch_request(1)

    def answer() -> tuple[object, int]:
        with_leases = broker.fetch_now(fetch_request(1))
        assert with_leases is not None
        with with_leases:
            return with_leases.reply, with_leases.size

    first, size = answer()
    assert size == len(batch(b"b"))
    for _ in range(3):  # from the file, and then from a copy
        assert answer() == (first, size)
    assert await values(broker, request) == [b"b"]
    other = broker.fetch_now(fetch_request(0))
    assert other is not None
    with other:
        assert other.reply is not first
    first, _ = answer()
    await append(broker, batch(b"c"), ack="disk")
    second, size = answer()
    assert second is not first
    assert size == 2 * len(batch(b"b"))
    assert await values(broker, request) == [b"b", b"c"]
    second, _ = answer()
    broker.partitions["t", 0].log.truncate_before(1)
    third, _ = answer()
    assert third is not second, "it tells where the log begins"
    await append(broker, batch(b"d"))
    before, _ = answer()
    [acked] = await append(broker, batch(b"other"), ack="disk", partition=1)
    assert acked.error is None
    assert answer()[0] is before, "another partition is no news here"
    broker.partitions["t", 0].log.flusher.flush()
    after, _ = answer()
    assert after is not before, "it tells what is durable"


async def test_those_who_wait_for_nothing_share_an_empty_answer_until_something_changes(broker: Broker) -> None:
    await append(broker, batch(b"a"))

    def answer(offset: int, max_bytes: int = 1 << 20) -> FetchAnswer:
        found = broker.fetch_now(fetch_request(offset, max_bytes=max_bytes))
        assert found is not None
        found.close()
        return found

    first = answer(1)
    assert (first.size, first.reply.partitions[0].latest) == (0, 1)
    assert answer(1).reply is first.reply
    assert answer(1, 1000).reply is not first.reply, "another question"
    first = answer(1)
    broker.partitions["t", 0].log.flusher.flush()
    durable = answer(1)
    assert (durable.size, durable.reply.partitions[0].durable) == (0, 1), "it tells what is durable"
    await append(broker, batch(b"b"))
    with_bytes = answer(1)
    assert (with_bytes.size, with_bytes.reply.partitions[0].latest) == (len(batch(b"b")), 2)
    at_the_end = answer(2)
    broker.partitions["t", 0].log.truncate_before(1)
    assert answer(2).reply.partitions[0].earliest == 1, "it tells where the log begins"
    assert answer(2).reply is not at_the_end.reply
    beyond = answer(3).reply.partitions[0].error
    assert isinstance(beyond, errors.OffsetOutOfRangeError)


async def test_an_answer_from_elsewhere_is_not_given_again_as_one_from_the_end(broker: Broker) -> None:
    for number in range(4):
        await append(broker, batch(b"%d" % number))
    assert await values(broker, fetch_request(3)) == [b"3"]
    tail = broker.partitions["t", 0].log.active.tail
    near = tail.latest
    assert near is not None
    tail.forget()  # as after a restart, but for the next append
    await append(broker, batch(b"4"))
    assert await values(broker, fetch_request(4)) == [b"4"]
    for _ in range(2):
        assert await values(broker, fetch_request(0)) == [b"0", b"1", b"2", b"3", b"4"]
        assert await values(broker, fetch_request(4)) == [b"4"]


# --- Answers at once --------------------------------------------------------------------------------------------------


async def test_offsets_are_answered_at_once_as_they_are_by_a_task(broker: Broker) -> None:
    for timestamp in range(NOW - 9_000, NOW, 1_000):
        await append(broker, batch(b"v", timestamp=timestamp))
    asked = [
        messages.OffsetsRequest([messages.OffsetsPartition("t", 0), messages.OffsetsPartition("t", 1)]),
        messages.OffsetsRequest([messages.OffsetsPartition("t", 0, NOW - moment) for moment in range(0, 10_000, 700)]),
        messages.OffsetsRequest(
            [
                messages.OffsetsPartition("T", 0),
                messages.OffsetsPartition("t", 7),
                messages.OffsetsPartition("t", 0, NOW - 5_500),
            ]
        ),
    ]
    for request in asked:
        at_once = broker.answer_now(request)
        assert at_once is not None
        by_a_task, _ = await broker.answer(request)
        assert at_once.to_wire() == by_a_task.to_wire()


async def test_what_may_take_long_is_not_answered_at_once(broker: Broker, fs: ForgetfulFileSystem) -> None:
    await append(broker, batch(b"v", timestamp=NOW))
    assert broker.answer_now(messages.OffsetsRequest([messages.OffsetsPartition("t")])) is None, "of a whole topic"
    assert (
        broker.answer_now(messages.OffsetsRequest([messages.OffsetsPartition("t", 0)] * (LOOKUPS_A_TURN + 1))) is None
    )
    assert broker.answer_now(messages.TopicsRequest()) is None
    by_time = messages.OffsetsRequest([messages.OffsetsPartition("t", 0, NOW)])
    assert broker.answer_now(by_time) is not None
    fs.evict("/data/t-0/00000000000000000000.log")
    assert broker.answer_now(by_time) is None, "it has to be read from the disk first"
    by_a_task, _ = await broker.answer(by_time)
    assert by_a_task.to_wire()["partitions"][0]["offset"] == 0


async def test_the_epoch_of_kafkas_features_rises_with_each_start() -> None:
    """Also with one whose clock stands before the last time that was trusted."""
    fs = ForgetfulFileSystem()
    epochs = []
    for now in (NOW, NOW + 1, NOW - 100_000):
        broker = open_broker(fs, clock=ManualClock(now))
        epochs.append(broker.features_epoch)
        save_clock = broker.clock_trust.prepare_save()
        assert save_clock is not None
        save_clock()
        broker.close()
    assert epochs == [NOW, NOW + 1, NOW + 2]
