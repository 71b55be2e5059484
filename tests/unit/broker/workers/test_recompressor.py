"""Recompression of appends: small batches on the loop, others in a process; appends keep their order.

So they do around a check of records as well, the other reason for which an append waits for a process.
"""

import os
from typing import Any, Final

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.storage.log.batch_checks import RecordRules
from seglog_broker.storage.log.recompression import Recompression
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import messages
from seglog_protocol.batch_builder import NewRecord, encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, iter_batches, parse_header, seal_batch, verify_crc
from seglog_protocol.records import decode_records
from tests.appends import append_request
from tests.logs import contents
from tests.support import examples
from tests.unit.broker.brokers import open_broker
from tests.unit.broker.listeners.fake_broker import serving

CODECS: Final = list(Codec)
NAMES: Final = {
    Codec.NONE: "uncompressed",
    Codec.GZIP: "gzip",
    Codec.SNAPPY: "snappy",
    Codec.LZ4: "lz4",
    Codec.ZSTD: "zstd",
}
MIB: Final = 1024 * 1024
NOW: Final = 1_700_000_000_000
LARGE: Final = encode_batch([(NOW, b"k", os.urandom(100_000), ())])
SMALL: Final = encode_batch([(NOW, b"k", b"v", ())])
RECOMPRESSED: Final = {"compression_type": "zstd"}
CHECKED: Final = {"cleanup_policy": "compact"}
KEYLESS: Final = encode_batch([(NOW, None, bytes(100_000), ())])


def view(batch: bytes) -> memoryview:
    return memoryview(bytearray(batch))


# --- Appends ----------------------------------------------------------------------------------------------------------


class CountingOffload(InlineOffload):
    """Works when the test allows it; ``begun`` is how many batches were brought here."""

    def __init__(self, *, is_held: bool = False) -> None:
        super().__init__()
        self.begun = 0
        self.let_go = trio.Event()
        if not is_held:
            self.let_go.set()

    async def recompress(self, batch: memoryview, wanted: Recompression, rules: RecordRules | None) -> bytearray:
        self.begun += 1
        await self.let_go.wait()
        return await super().recompress(batch, wanted, rules)

    async def check_records(self, batch: memoryview, rules: RecordRules) -> None:
        self.begun += 1
        await self.let_go.wait()
        await super().check_records(batch, rules)


async def broker_with(offload: InlineOffload | None = None, **config: str | int) -> Broker:
    """A broker with the topic ``t``, which has this configuration."""
    broker = open_broker(offload=offload)
    named: dict[str, Any] = {name.replace("_", "."): value for name, value in config.items()}
    await broker.create_topic(messages.CreateTopicRequest("t", 1, named))
    return broker


def request_of(*batches: bytes, topic: str = "t", ack: messages.Ack = "os") -> tuple[messages.AppendRequest, bytes]:
    return messages.AppendRequest([messages.AppendPartition(topic, 0, len(batch)) for batch in batches], ack), b"".join(
        batches
    )


async def append(broker: Broker, *batches: bytes) -> list[messages.AppendResult]:
    request, payload = request_of(*batches)
    pending = append_request(broker, request, view(payload))
    while not pending.is_written:
        await pending.write_rest()
    assert pending.reply is not None
    return pending.reply.partitions


def stored(broker: Broker) -> list[tuple[BatchHeader, bytes]]:
    """The batches of the topic's log, as they are on the disk."""
    assert isinstance(broker.fs, ForgetfulFileSystem)
    log = contents(broker.fs)["/data/t-0/00000000000000000000.log"]
    return [(header, bytes(batch)) for header, batch in iter_batches(log)]


_RECORDS = st.lists(
    st.tuples(
        st.integers(NOW - 1000, NOW),
        st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=20)), max_size=2),
    ),
    min_size=1,
    max_size=10,
)
_BATCHES = st.lists(st.tuples(_RECORDS, st.sampled_from([1, 3, 200]), st.sampled_from(CODECS)), min_size=1, max_size=6)


@given(
    batches=_BATCHES,
    target=st.sampled_from(CODECS),
    is_stamped=st.booleans(),
    is_compacted=st.booleans(),
    is_idempotent=st.booleans(),
)
@settings(max_examples=examples(100), deadline=None)
def test_whatever_is_sent_its_records_are_stored_in_the_codec_of_the_topic(
    batches: list[tuple[list[NewRecord], int, Codec]],
    target: Codec,
    is_stamped: bool,
    is_compacted: bool,
    is_idempotent: bool,
) -> None:
    sent: list[bytes] = []
    sequence = 0
    for records, copies, codec in batches:
        identity: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        sent.append(encode_batch(records * copies, codec=codec, **(identity if is_idempotent else {})))
        sequence += len(records) * copies

    async def run() -> None:
        broker = await broker_with(
            compression_type=NAMES[target],
            message_timestamp_type="LogAppendTime" if is_stamped else "CreateTime",
            cleanup_policy="compact" if is_compacted else "delete",
        )
        results = await append(broker, *sent)
        assert [result.error for result in results] == [None] * len(sent)
        offset = 0
        for result, before, (header, after) in zip(results, sent, stored(broker), strict=True):
            was = parse_header(before)
            assert result.base_offset == header.base_offset == offset
            offset = header.next_offset
            assert verify_crc(after, 0, header)
            assert header.codec is target
            assert header.is_log_append_time is is_stamped
            kept = was._replace(base_offset=header.base_offset, leader_epoch=header.leader_epoch)
            kept = kept._replace(batch_length=header.batch_length, crc=header.crc, attributes=header.attributes)
            assert header == (kept._replace(max_timestamp=NOW) if is_stamped else kept)
            if was.codec is target:
                assert after[HEADER_SIZE:] == before[HEADER_SIZE:], "it stays as it is"
            expected = decode_records(was, before)
            found = decode_records(header, after)
            assert [record[2:] for record in found] == [record[2:] for record in expected]
            assert [record.offset - header.base_offset for record in found] == [record.offset for record in expected]
            times = [NOW] * len(found) if is_stamped else [record.timestamp for record in expected]
            assert [record.timestamp for record in found] == times

    trio.run(run)


async def test_the_level_of_the_topic_is_used_and_only_large_batches_go_to_a_process() -> None:
    offload = CountingOffload()
    broker = await broker_with(offload, compression_type="gzip", compression_gzip_level=5)
    text = b" ".join(b"%d" % number for number in range(30_000))
    for value, processes in ((text[:500], 0), (text, 1)):
        await append(broker, encode_batch([(NOW, b"k", value, ())]))
        assert (
            stored(broker)[-1][1][HEADER_SIZE:]
            == (encode_batch([(NOW, b"k", value, ())], codec=Codec.GZIP, level=5)[HEADER_SIZE:])
        )
        assert offload.begun == processes


async def test_a_topic_without_the_setting_never_looks_at_records() -> None:
    offload = CountingOffload()
    broker = await broker_with(offload)
    request, payload = request_of(LARGE)
    assert broker.is_plain(request, view(payload))
    assert append_request(broker, request, view(payload)).is_written, "at once"
    assert stored(broker)[-1][0].codec is Codec.NONE
    await broker.alter_topic(messages.AlterTopicRequest("t", {"compression.type": "zstd"}))
    assert not broker.is_plain(request, view(payload)), "from the next append on"
    await append(broker, LARGE)
    assert stored(broker)[-1][0].codec is Codec.ZSTD
    assert offload.begun == 1


async def test_a_repeated_batch_is_recognised_and_one_out_of_order_refused_before_any_work() -> None:
    offload = CountingOffload()
    broker = await broker_with(offload, compression_type="zstd")
    first, second, far = (
        encode_batch([(NOW, b"k", bytes(100_000), ())], producer_id=5, producer_epoch=0, base_sequence=sequence)
        for sequence in (0, 1, 7)
    )
    [result] = await append(broker, first)
    assert (result.base_offset, result.duplicate) == (0, False)
    [result] = await append(broker, first)
    assert (result.base_offset, result.duplicate) == (0, True)
    [result] = await append(broker, far)
    assert result.error is not None
    assert (result.error.code, offload.begun) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", 1)
    results = await append(broker, second, second, first, far, encode_batch([(NOW, b"k", b"v", ())]))
    assert [each.base_offset for each in results] == [1, 1, 0, None, 2]
    assert [each.duplicate for each in results] == [False, True, True, None, False]
    assert offload.begun == 2
    assert [header.codec for header, _ in stored(broker)] == [Codec.ZSTD] * 3


@pytest.mark.parametrize("value_size", [100, 100_000])
async def test_records_are_checked_before_they_are_compressed(value_size: int) -> None:
    broker = await broker_with(compression_type="zstd", cleanup_policy="compact")
    keyless = encode_batch([(NOW, None, bytes(value_size), ())])
    keyed = encode_batch([(NOW, b"k", bytes(value_size), ())])
    refused, taken = await append(broker, keyless, keyed)
    assert refused.error is not None
    assert refused.error.message == "record 0 has no key, which a compacted topic needs"
    assert taken.base_offset == 0
    assert [header.codec for header, _ in stored(broker)] == [Codec.ZSTD]


async def test_one_batch_that_is_too_large_or_cannot_be_opened_fails_no_other() -> None:
    broker = await broker_with(compression_type="uncompressed", max_message_bytes=50_000)
    opens_to_much = encode_batch([(NOW, b"k", bytes(60_000), ())], codec=Codec.ZSTD)
    whole = [encode_batch([(NOW, b"k", os.urandom(size), ())], codec=Codec.LZ4) for size in (10, 30_000)]
    cut = [seal_batch(parse_header(batch), batch[HEADER_SIZE:-8]) for batch in whole]
    results = await append(broker, SMALL, opens_to_much, SMALL, cut[0], SMALL, cut[1], SMALL)
    assert [result.base_offset for result in results] == [0, None, 1, None, 2, None, 3]
    codes = [result.error.code for result in results if result.error is not None]
    assert codes == ["MESSAGE_TOO_LARGE", "INVALID_RECORD", "INVALID_RECORD"]
    assert results[1].error is not None
    assert results[1].error.facts["limit"] == 50_000


@pytest.mark.parametrize("config", [RECOMPRESSED, CHECKED])
async def test_appends_keep_their_order_around_work_in_a_process(config: dict[str, str]) -> None:
    """Appends of a connection keep their order while a batch is recompressed or checked and others are served."""
    offload = CountingOffload(is_held=True)
    broker = await broker_with(offload, **config)
    async with serving(broker) as served:
        peer, other = await served.greeted(), await served.greeted()
        await peer.send(1, *request_of(LARGE))
        await peer.send(2, *request_of(SMALL))
        with trio.fail_after(60):
            while not offload.begun:  # noqa: ASYNC110 - a real socket is between
                await trio.sleep(0.001)
        await other.send(3, *request_of(SMALL))
        [result] = (await other.receive()).header["partitions"]
        assert result["base_offset"] == 0, "no other request waits"
        offload.let_go.set()
        replies = [(await peer.receive()).header for _ in range(2)]
        assert [reply["id"] for reply in replies] == [1, 2]
        assert [reply["partitions"][0]["base_offset"] for reply in replies] == [1, 2]
    sizes = [decode_records(header, batch)[0].value for header, batch in stored(broker)]
    assert [len(value or b"") for value in sizes] == [1, 100_000, 1]


@pytest.mark.parametrize(
    ("config", "batch", "change", "outcome"),
    [
        (RECOMPRESSED, LARGE, None, "UNKNOWN_TOPIC"),
        (RECOMPRESSED, LARGE, {"max.message.bytes": 1_000}, "MESSAGE_TOO_LARGE"),
        (RECOMPRESSED, LARGE, {"compression.type": "lz4"}, Codec.LZ4),
        (RECOMPRESSED, LARGE, {"compression.type": "producer"}, Codec.NONE),
        (CHECKED, LARGE, None, "UNKNOWN_TOPIC"),
        (CHECKED, LARGE, {"max.message.bytes": 1_000}, "MESSAGE_TOO_LARGE"),
        (CHECKED, KEYLESS, {}, "INVALID_RECORD"),
    ],
)
async def test_changes_of_the_topic_while_a_batch_is_in_a_process_take_effect(
    config: dict[str, str], batch: bytes, change: dict[str, str | int] | None, outcome: str | Codec
) -> None:
    """A topic that is deleted where there is no change."""
    offload = CountingOffload(is_held=True)
    broker = await broker_with(offload, **config)
    request, payload = request_of(batch)
    pending = append_request(broker, request, view(payload))
    assert not pending.is_written
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pending.write_rest)
        await wait_all_tasks_blocked()
        if change is None:
            await broker.delete_topic(messages.DeleteTopicRequest("t"))
        elif change:
            await broker.alter_topic(messages.AlterTopicRequest("t", {**change}))
        offload.let_go.set()
    assert pending.reply is not None
    [result] = pending.reply.partitions
    if isinstance(outcome, Codec):
        assert result.base_offset == 0
        assert [header.codec for header, _ in stored(broker)] == [outcome]
    else:
        assert result.error is not None
        assert result.error.code == outcome
