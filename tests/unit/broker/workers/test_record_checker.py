"""Checks of records: small batches on the loop, others in a process; and look-ups by timestamp."""

from typing import Final

import pytest

from seglog_broker.storage.log.batch_checks import RecordRules, check_small_records
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.errors import OutOfResourcesError
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, seal_batch
from tests.appends import append_batch
from tests.support import memory_taken
from tests.unit.broker.brokers import open_broker

KEYED: Final = RecordRules(needs_key=True, earliest=None, before_max_ms=0)
DATED: Final = RecordRules(needs_key=False, earliest=1_000, before_max_ms=500)
MIB: Final = 1024 * 1024


def view(batch: bytes) -> memoryview:
    return memoryview(bytearray(batch))


def bomb(key: bytes | None = b"k") -> bytes:
    """Some kilobytes that decompress to eight megabytes."""
    return encode_batch([(-1, key, bytes(8 * MIB), ())], codec=Codec.GZIP)


# --- On the loop ------------------------------------------------------------------------------------------------------


def test_a_large_batch_or_one_that_decompresses_to_much_is_left_to_the_process() -> None:
    large = encode_batch([(-1, None, bytes(20_000), ())])
    assert not check_small_records(parse_header(large), view(large), KEYED), "it is not looked at: it has no key"
    packed = bomb()
    with memory_taken() as taken:
        assert not check_small_records(parse_header(packed), view(packed), KEYED)
    assert taken() < MIB, "no more than a little is ever opened on the loop"


# --- Look-ups by timestamp --------------------------------------------------------------------------------------------


class CountingOffload(InlineOffload):
    searched = 0

    async def find_record(self, batch: bytes, timestamp: int, offset_min: int) -> tuple[int, int, int] | None:
        self.searched += 1
        return await super().find_record(batch, timestamp, offset_min)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(("value_size", "is_searched"), [(10, 0), (50_000, 1)], ids=["small", "large"])
async def test_a_timestamp_in_a_large_batch_is_searched_in_a_process_with_the_same_answer(
    codec: Codec, value_size: int, is_searched: int
) -> None:
    offload = CountingOffload()
    broker = open_broker(offload=offload)
    await broker.create_topic(messages.CreateTopicRequest("plain", 1))
    batch = encode_batch([(time, b"k", bytes(value_size), ()) for time in (10, 20, 30)], codec=codec)
    await append_batch(broker, batch, "plain").wait()
    for moment in (5, 15, 25, 35):
        log = broker.partitions["plain", 0].log
        plain = log.find_timestamp(moment)
        offload.searched = 0
        [found] = (
            await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("plain", 0, moment)]))
        ).partitions
        assert (found.timestamp, found.offset) == ((None, None) if plain is None else (plain.timestamp, plain.offset))
        assert offload.searched == (is_searched if moment < 35 else 0)
        with await broker.fetch(
            messages.FetchRequest([messages.FetchPartition("plain", 0, timestamp=moment)], max_wait_ms=0)
        ) as answer:
            assert answer.reply.partitions[0].offset == (3 if plain is None else plain.offset)
        assert offload.searched <= is_searched, "what was found is kept for who asks again"
    broker.close()


async def test_so_many_results_of_searches_are_kept() -> None:
    broker = open_broker(offload=CountingOffload())
    broker.scheduler.found_max = 3
    await broker.create_topic(messages.CreateTopicRequest("plain", 1))
    records = [(number, b"k", bytes(5_000), ()) for number in range(20)]
    await append_batch(broker, encode_batch(records), "plain").wait()
    found = broker.directory.handles.only_warm.found
    for moment in range(1, 19):
        await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("plain", 0, moment)]))
        assert 1 <= len(found) <= 3
    broker.close()


async def test_headers_with_false_timestamps() -> None:
    """Headers that promise timestamps that no record has are searched only so often."""
    offload = CountingOffload()
    broker = open_broker(offload=offload)
    broker.scheduler.searches_max = 3
    await broker.create_topic(messages.CreateTopicRequest("plain", 1))
    for _ in range(5):
        batch = bytearray(encode_batch([(10, b"k", bytes(50_000), ())]))
        header = parse_header(batch)
        lying = bytes(seal_batch(header._replace(max_timestamp=1_000), bytes(batch[HEADER_SIZE:])))
        await append_batch(broker, lying, "plain").wait()
    with pytest.raises(OutOfResourcesError, match="promise"):
        await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition("plain", 0, 500)]))
    assert offload.searched == 3
    broker.close()
