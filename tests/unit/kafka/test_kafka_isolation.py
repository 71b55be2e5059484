"""Reading at read_committed a directory with transactions that Kafka 4.3.1 wrote, through both wires."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from seglog_broker.api.broker import Broker
from seglog_protocol.isolation import Isolation
from seglog_protocol.kafka import messages
from seglog_protocol.messages import FetchPartition, FetchRequest, FetchResult, OffsetsPartition, OffsetsRequest
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import decode_records
from tests.interop.golden import (
    Row,
    digest,
    load_case,
    row_of,
    unpack_open_transactions,
)
from tests.logs import append_one, batch
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaServed, fetch, latest
from tests.unit.broker.listeners.kafka.kafka_peer import kafka as serving_kafka
from tests.unit.broker.storage.log.transactions import without_aborted


@pytest.fixture
async def ledgers(tmp_path: Path) -> AsyncIterator[KafkaServed]:
    """A broker on the directory with transactions; one is open in ``ledger``-0 from its last stable offset on."""
    unpack_open_transactions(tmp_path)
    async with serving_kafka(folder=tmp_path, topics={}) as served:
        yield served


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("name", ["ledger-0", "ledger-1", "version-2-0"])
async def test_a_kafka_consumer_gets_the_records_that_kafkas_got(ledgers: KafkaServed, name: str, level: int) -> None:
    kafka_said = load_case("transactions").answered[name]
    topic, _, number = name.rpartition("-")
    peer = await ledgers.connect()
    rows: list[Row] = []
    offset, end = 0, kafka_said["last_stable_offset" if level else "high_watermark"]
    while offset < end:
        await peer.send(fetch((topic, int(number), offset), isolation_level=level), 12)
        (place,) = (await peer.receive(messages.FetchResponse)).responses[0].partitions
        assert place.error_code == 0
        assert place.high_watermark == kafka_said["high_watermark"]
        assert place.last_stable_offset == kafka_said["last_stable_offset"]
        assert (place.aborted_transactions is None) == (level == 0)
        assert isinstance(place.records, bytes | memoryview)
        aborted = [(one.producer_id, one.first_offset) for one in place.aborted_transactions or ()]
        batches = list(iter_batches(bytes(place.records)))
        assert batches
        for header, view in without_aborted(batches, aborted):
            rows += [row_of(record, header) for record in decode_records(header, view) if record.offset >= offset]
        offset = batches[-1][0].next_offset
    assert offset == end, "nothing of an open transaction at read_committed"
    told = kafka_said["read_committed"]["records"] if level else kafka_said["records"]
    assert (len(rows), digest(rows)) == (told["count"], told["sha256"])


@pytest.mark.parametrize("level", [0, 1])
async def test_the_latest_offset_is_that_of_the_isolation_level(ledgers: KafkaServed, level: int) -> None:
    kafka_said = load_case("transactions").answered["ledger-0"]
    peer = await ledgers.connect()
    request = latest("ledger", 0)
    request.isolation_level = level
    await peer.send(request)
    (place,) = (await peer.receive(messages.ListOffsetsResponse)).topics[0].partitions
    wanted = kafka_said["read_committed"]["list_latest"] if level else kafka_said["list_offsets"]["latest"]
    assert [place.error_code, place.timestamp, place.offset, place.leader_epoch] == wanted


async def natively(broker: Broker, offset: int, isolation: Isolation | None, **more: Any) -> tuple[FetchResult, bytes]:
    asked = FetchRequest([FetchPartition("ledger", 0, offset)], isolation=isolation, **{"max_wait_ms": 0, **more})
    with await broker.fetch(asked) as answer:
        data = answer.payload + b"".join(piece.file.pread(piece.size, piece.position) for piece in answer.slices)
        return answer.reply.partitions[0], data


async def test_natively_the_same_bounds_and_transactions_are_told(ledgers: KafkaServed) -> None:
    broker = ledgers.broker
    result, data = await natively(broker, 0, "read_committed")
    assert (result.latest, result.last_stable_offset) == (192, 162)
    assert result.aborted == [[0, 29]]
    plain, same = await natively(broker, 0, None)
    assert (plain.latest, plain.last_stable_offset, plain.aborted, same) == (192, 162, None, data)
    for offset in (162, 170, 192):
        result, data = await natively(broker, offset, "read_committed")
        assert (data, result.error, result.gaps, result.aborted) == (b"", None, None, []), offset
    assert (await natively(broker, 193, "read_committed"))[0].error is not None
    ends: dict[Isolation | None, int] = {"read_committed": 162, "read_uncommitted": 192, None: 192}
    for isolation, end in ends.items():
        reply = await broker.offsets(OffsetsRequest([OffsetsPartition("ledger", 0)], isolation))
        assert (reply.partitions[0].latest, reply.partitions[0].last_stable_offset) == (end, 162)


async def test_no_record_of_an_open_transaction_is_found_by_its_time(ledgers: KafkaServed) -> None:
    """A plain record behind the last stable offset is the only one from its time on."""
    broker = ledgers.broker
    moment = 4_000_000_000_000
    append_one(broker.partitions["ledger", 0].log, memoryview(bytearray(batch(b"late", timestamp=moment, key=b"k"))))
    wanted: dict[Isolation, int | None] = {"read_uncommitted": 192, "read_committed": None}
    for isolation, found in wanted.items():
        reply = await broker.offsets(OffsetsRequest([OffsetsPartition("ledger", 0, moment)], isolation))
        assert reply.partitions[0].offset == found
        asked = FetchRequest([FetchPartition("ledger", 0, timestamp=moment)], max_wait_ms=0, isolation=isolation)
        with await broker.fetch(asked) as answer:
            assert answer.reply.partitions[0].offset == (found or 162)
            assert bool(answer.size) == (found is not None)


async def test_an_answer_names_a_bounded_number_of_aborted_transactions(
    ledgers: KafkaServed,
) -> None:
    """So that its header fits a frame: behind the partition that makes it up, no other is read in this answer."""
    asked = FetchRequest(
        [FetchPartition("ledger", 0, 0), FetchPartition("ledger", 1, 0)], max_wait_ms=0, isolation="read_committed"
    )
    sizes = []
    for most in (10_000, 0):
        ledgers.broker._fetches.aborted_max = most
        with await ledgers.broker.fetch(asked) as answer:
            sizes.append([result.size > 0 for result in answer.reply.partitions])
    assert sizes == [[True, True], [True, False]]
    ledgers.broker._fetches.bytes_with_aborted_max = 1000
    assert (await natively(ledgers.broker, 0, "read_committed"))[0].size <= 1000
    assert (await natively(ledgers.broker, 0, None))[0].size > 1000
