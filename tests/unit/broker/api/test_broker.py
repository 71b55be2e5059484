"""The broker on the forgetful disk: when acks are sent, when fetches wait, and the errors for bad input."""

import errno
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.engine.turns import LOOKUPS_A_TURN
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import errors, messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.frames import HEADER_BYTES_MAX, decode_value, encode_value
from seglog_protocol.record_batch import parse_header, rewrite_offset_and_epoch, seal_batch
from seglog_protocol.records import decode_records
from tests.appends import append_request
from tests.logs import ManualClock, batch
from tests.support import each_case
from tests.unit.broker.brokers import open_broker

NOW = 1_700_000_000_000


async def with_topic(broker: Broker, **config: str | int) -> None:
    named: dict[str, Any] = {name.replace("_", "."): value for name, value in config.items()}
    await broker.create_topic(messages.CreateTopicRequest("t", 2, named))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = open_broker()
    await with_topic(broker)
    yield broker
    broker.close()
    assert isinstance(broker.fs, ForgetfulFileSystem)
    assert broker.fs.open_files == []


async def append(
    broker: Broker, *batches: bytes, ack: messages.Ack = "os", partition: int = 0
) -> list[messages.AppendResult]:
    request = messages.AppendRequest(
        [messages.AppendPartition("t", partition, len(encoded)) for encoded in batches], ack
    )
    pending = append_request(broker, request, memoryview(bytearray(b"".join(batches))))
    reply: messages.AppendReply = pending.reply or await pending.wait()
    return reply.partitions


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


async def test_a_first_segment_that_is_gone_is_one_problem() -> None:
    fs = ForgetfulFileSystem()
    broker = open_broker(fs)
    await with_topic(broker, segment_bytes=1024)
    for number in range(40):
        await append(broker, batch(b"%d" % number))
    second = broker.partitions["t", 0].log.segments.bases[1]
    broker.close()
    fs.unlink("/data/t-0/00000000000000000000.log")
    for _ in range(2):
        broker = open_broker(fs)
        [problem] = broker.hello().problems
        assert problem.startswith(f"t-0: the records 0 to {second - 1} are missing")
        assert problem.endswith("stop the broker and accept the loss with `seglogd check --repair /data`")
        broker.close()


# --- What an ack has reached ------------------------------------------------------------------------------------------


async def test_a_disk_ack_comes_after_the_write_and_the_fdatasync_of_that_very_file(broker: Broker) -> None:
    fs = broker.fs
    assert isinstance(fs, ForgetfulFileSystem)
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


async def test_without_the_fsync_a_power_cut_takes_what_was_acked() -> None:
    """An error made on purpose, which the tests above must catch."""

    class Lying(InlineOffload):
        async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
            await trio.lowlevel.checkpoint()
            return [None] * len(flushes)

    fs = ForgetfulFileSystem()
    broker = open_broker(fs, offload=Lying())
    await with_topic(broker)
    [result] = await append(broker, batch(b"v"), ack="disk")
    assert result.ack == "disk", "the lie"
    after = open_broker(fs.found_after(POWER_LOSS))
    assert after.partitions["t", 0].log.log_end_offset == 0
    broker.close()


async def test_disk_acks_that_arrive_together_share_an_fsync(broker: Broker) -> None:
    fs = broker.fs
    assert isinstance(fs, ForgetfulFileSystem)
    requests = [
        append_request(
            broker,
            messages.AppendRequest([messages.AppendPartition("t", 0, len(one))], "disk"),
            memoryview(bytearray(one)),
        )
        for one in [batch(b"v")] * 50
    ]
    fs.operations.clear()
    async with trio.open_nursery() as nursery:
        for pending in requests:
            nursery.start_soon(pending.wait)
    assert [op.name for op in fs.operations] == ["fdatasync"]


async def test_a_cancelled_waiter_leaves_the_batch_and_the_flush(broker: Broker) -> None:
    pending = append_request(
        broker,
        messages.AppendRequest([messages.AppendPartition("t", 0, len(batch(b"v")))], "disk"),
        memoryview(bytearray(batch(b"v"))),
    )
    with trio.CancelScope() as scope:
        scope.cancel()
        await pending.wait()
    assert broker.partitions["t", 0].log.log_end_offset == 1
    [result] = await append(broker, batch(b"w"), ack="disk")
    assert result.base_offset == 1


async def test_a_failed_fsync_is_final() -> None:
    """A failed fsync is final for that partition and no other also after a restart."""
    fs = ForgetfulFileSystem()
    broker = open_broker(fs)
    await with_topic(broker)
    fs.inject(Fault("fdatasync", "t-0/00000000000000000000.log", error=errno.EIO))
    [failed] = await append(broker, batch(b"v"), ack="disk")
    assert isinstance(failed.error, errors.PartitionReadOnlyError)
    assert not failed.error.retriable
    [again] = await append(broker, batch(b"v"), ack="none")
    assert isinstance(again.error, errors.PartitionReadOnlyError)
    [other] = await append(broker, batch(b"v"), ack="disk", partition=1)
    assert other.error is None
    assert any("t-0 is read-only" in problem for problem in broker.hello().problems)
    broker.close()
    broker = open_broker(fs)
    [still] = await append(broker, batch(b"v"))
    assert isinstance(still.error, errors.PartitionReadOnlyError)
    assert await values(broker, fetch_request()) == [b"v"], "reading goes on"
    broker.close()


async def test_too_few_descriptors_are_no_failed_fsync() -> None:
    fs = ForgetfulFileSystem()
    broker = open_broker(fs)
    await with_topic(broker, segment_bytes=1024)
    while len(broker.partitions["t", 0].log.segments) == 1:
        await append(broker, batch(b"x" * 100))
    fs.inject(Fault("sync_directory", "t-0", error=errno.EMFILE))
    [short] = await append(broker, batch(b"v"), ack="disk")
    assert isinstance(short.error, errors.StorageError)
    assert short.error.retriable
    [fine] = await append(broker, batch(b"w"), ack="disk")
    assert fine.error is None, "the partition goes on once there is a descriptor again"
    assert broker.hello().problems == []
    after = open_broker(fs.found_after(POWER_LOSS))
    assert after.partitions["t", 0].log.log_end_offset == broker.partitions["t", 0].log.log_end_offset
    broker.close()


async def test_a_full_disk_is_reported_to_the_operator_until_it_has_room_again(broker: Broker) -> None:
    fs = broker.fs
    assert isinstance(fs, ForgetfulFileSystem)
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


async def test_a_producer_that_begins_on_a_full_disk(broker: Broker) -> None:
    """A producer that begins on a full disk gets a retriable error with the free space."""
    fs = broker.fs
    assert isinstance(fs, ForgetfulFileSystem)
    fs.inject(Fault("pwritev", "seglog-producer-ids.json.tmp", error=errno.ENOSPC, sticky=True))
    with pytest.raises(errors.DiskFullError, match=r"no producer id could be given: .* bytes are free") as caught:
        await broker.init_producer()
    assert caught.value.retriable
    fs.heal()
    assert (await broker.init_producer()).producer_id >= 0


async def test_a_write_that_fails_leaves_the_log_as_it_was(broker: Broker) -> None:
    fs = broker.fs
    assert isinstance(fs, ForgetfulFileSystem)
    await append(broker, batch(b"before"))
    fs.inject(Fault("pwritev", ".log", short=10))
    fs.inject(Fault("pwritev", ".log", error=errno.ENOSPC, nth=2))
    [failed] = await append(broker, batch(b"lost"))
    assert isinstance(failed.error, errors.StorageError)
    fs.heal()
    [fine] = await append(broker, batch(b"after"), ack="disk")
    assert fine.base_offset == 1
    assert await values(broker, fetch_request()) == [b"before", b"after"]


# --- Who waits for what -----------------------------------------------------------------------------------------------


async def test_a_fetch_at_the_end_waits_and_an_append_wakes_it(broker: Broker, autojump_clock: object) -> None:
    got: list[bytes | None] = []

    async def consume() -> None:
        got.extend(await values(broker, fetch_request(max_wait_ms=30_000)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await append(broker, batch(b"v"))
    assert got == [b"v"]
    assert trio.current_time() == began


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


async def test_a_waiting_fetch_learns_that_its_topic_is_gone(broker: Broker) -> None:
    async with trio.open_nursery() as nursery:

        async def consume() -> None:
            with await broker.fetch(fetch_request(max_wait_ms=30_000)) as answer:
                assert isinstance(answer.reply.partitions[0].error, errors.UnknownTopicError)

        nursery.start_soon(consume)
        await trio.testing.wait_all_tasks_blocked()
        await broker.delete_topic(messages.DeleteTopicRequest("t"))


async def test_a_fetch_by_timestamp_needs_one_round_trip(broker: Broker) -> None:
    for number in range(10):
        await append(broker, batch(b"%d" % number, timestamp=1000 + number))
    with await broker.fetch(fetch_request(timestamp=1005)) as answer:
        assert answer.reply.partitions[0].offset == 5
        assert [record.value for record in _records(answer)] == [b"5", b"6", b"7", b"8", b"9"]
    with await broker.fetch(fetch_request(timestamp=2000)) as answer:
        assert answer.reply.partitions[0].offset == 10
        assert answer.slices == []


async def test_a_reader_finishes_while_its_topic_is_deleted(broker: Broker) -> None:
    await append(broker, batch(b"still readable"))
    with await broker.fetch(fetch_request()) as answer:
        await broker.delete_topic(messages.DeleteTopicRequest("t"))
        assert [record.value for record in _records(answer)] == [b"still readable"]


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
    there = {"t": broker.directory.registry.topics["t"].id}
    assert await ids(broker, None) == await ids(broker, 1) == await ids(broker, 0, 1, 7) == there
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


async def test_a_topic_that_was_altered_is_the_same(broker: Broker) -> None:
    before = await ids(broker, None)
    await append(broker, batch(b"v"))
    await broker.alter_topic(messages.AlterTopicRequest("t", partitions=3))
    assert await values(broker, msgspec.structs.replace(fetch_request(), topic_ids=before)) == [b"v"]


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


@each_case("codec", list(Codec))
async def test_a_compacted_topic_refuses_a_keyless_record_by_its_index(codec: Codec) -> None:
    broker = open_broker()
    await with_topic(broker, cleanup_policy="compact")
    keyless = encode_batch([(NOW, b"k", b"v", ()), (NOW, None, b"v", ())], codec=codec)
    [result] = await append(broker, keyless)
    assert isinstance(result.error, errors.InvalidRecordError)
    assert result.error.record == 1
    broker.close()


async def test_a_timestamp_before_the_topics_limit_is_refused_by_its_index() -> None:
    broker = open_broker()
    await with_topic(broker, message_timestamp_before_max_ms=1000)
    [result] = await append(broker, encode_batch([(NOW, None, b"v", ()), (NOW - 1001, None, b"v", ())]))
    assert isinstance(result.error, errors.InvalidTimestampError)
    assert (result.error.record, result.error.timestamp) == (1, NOW - 1001)
    broker.close()


async def test_a_log_append_time_topic_stamps_the_brokers_time() -> None:
    broker = open_broker()
    await with_topic(broker, message_timestamp_type="LogAppendTime")
    [result] = await append(broker, batch(b"v", timestamp=12345))
    assert result.timestamp == NOW
    with await broker.fetch(fetch_request()) as answer:
        assert [record.timestamp for record in _records(answer)] == [NOW]
    broker.close()


async def test_a_batch_larger_than_a_segment_is_refused() -> None:
    broker = open_broker()
    await with_topic(broker, segment_bytes=2048)
    [result] = await append(broker, batch(b"x" * 3000))
    assert isinstance(result.error, errors.RecordListTooLargeError)
    assert result.error.limit == 2048
    broker.close()


async def test_unknown_names_are_refused_with_the_nearest_name(broker: Broker) -> None:
    await broker.create_topic(messages.CreateTopicRequest("commits", 1, {}))
    with await broker.fetch(
        messages.FetchRequest([messages.FetchPartition("comits", 0, 0), messages.FetchPartition("t", 9, 0)])
    ) as answer:
        unknown, beyond = (result.error for result in answer.reply.partitions)
    assert isinstance(unknown, errors.UnknownTopicError)
    assert unknown.nearest == "commits"
    assert isinstance(beyond, errors.UnknownPartitionError)
    assert beyond.partitions == 2
    assert "comits" not in broker.directory.registry.topics, "a fetch never creates a topic"


async def test_a_request_whose_sizes_do_not_add_up_is_refused_as_a_whole(broker: Broker) -> None:
    with pytest.raises(errors.InvalidRequestError, match="have 10 bytes by the request"):
        append_request(
            broker, messages.AppendRequest([messages.AppendPartition("t", 0, 10)], "os"), memoryview(bytearray(9))
        )
    with await broker.fetch(messages.FetchRequest([messages.FetchPartition("t", 0)])) as answer:
        assert isinstance(answer.reply.partitions[0].error, errors.InvalidRequestError)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (messages.CreateTopicRequest("t", 1, {}), errors.TopicExistsError),
        (messages.CreateTopicRequest("no/slash", 1, {}), errors.InvalidTopicError),
        (messages.CreateTopicRequest("x" * 250, 1, {}), errors.InvalidTopicError),
        (messages.CreateTopicRequest("zero", 0, {}), errors.InvalidPartitionsError),
        (messages.CreateTopicRequest("many", 10_001, {}), errors.InvalidPartitionsError),
        (messages.CreateTopicRequest("config", 1, {"segment.byte": 1}), errors.InvalidConfigError),
        (messages.CreateTopicRequest("config", 1, {"segment.bytes": 1}), errors.InvalidConfigError),
    ],
)
async def test_an_invalid_topic_is_refused(
    broker: Broker, request_: messages.CreateTopicRequest, kind: type[errors.SeglogError]
) -> None:
    with pytest.raises(kind):
        await broker.create_topic(request_)
    assert list(broker.directory.registry.topics) == ["t"]


async def test_a_topic_that_finds_no_room_leaves_no_trace(broker: Broker) -> None:
    fs = broker.fs
    assert isinstance(fs, ForgetfulFileSystem)
    before = set(fs.list_directory("/data"))
    fs.inject(Fault("make_directory", "wide-3", error=errno.ENOSPC))
    with pytest.raises(errors.StorageError):
        await broker.create_topic(messages.CreateTopicRequest("wide", 5, {}))
    assert set(fs.list_directory("/data")) == before
    fs.heal()
    assert (await broker.create_topic(messages.CreateTopicRequest("wide", 5, {}))).partitions == 5


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


async def test_offset_and_epoch_are_written_into_the_stored_batch(broker: Broker) -> None:
    await append(broker, batch(b"first"))
    await append(broker, batch(b"second"))
    stored = bytearray(batch(b"second"))
    rewrite_offset_and_epoch(stored, 0, 1, 0)
    assert isinstance(broker.fs, ForgetfulFileSystem)
    assert broker.fs.snapshot()["/data/t-0/00000000000000000000.log"].endswith(stored)


async def test_a_stop_is_clean_also_when_more_segments_were_begun_than_files_may_be_open() -> None:
    fs = ForgetfulFileSystem()
    broker = open_broker(fs, "seglog.handles.max=150")
    await with_topic(broker, segment_bytes=1024)
    for _ in range(400):
        [result] = await append(broker, batch(bytes(600)))
        assert result.error is None
    assert len(broker.partitions["t", 0].log.segments) > 150
    broker.close()
    assert "/data/.kafka_cleanshutdown" in fs.snapshot()


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


async def test_what_may_take_long_is_not_answered_at_once(broker: Broker) -> None:
    await append(broker, batch(b"v", timestamp=NOW))
    assert broker.answer_now(messages.OffsetsRequest([messages.OffsetsPartition("t")])) is None, "of a whole topic"
    assert (
        broker.answer_now(messages.OffsetsRequest([messages.OffsetsPartition("t", 0)] * (LOOKUPS_A_TURN + 1))) is None
    )
    assert broker.answer_now(messages.TopicsRequest()) is None
    by_time = messages.OffsetsRequest([messages.OffsetsPartition("t", 0, NOW)])
    assert broker.answer_now(by_time) is not None
    assert isinstance(broker.fs, ForgetfulFileSystem)
    broker.fs.evict("/data/t-0/00000000000000000000.log")
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
