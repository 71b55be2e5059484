"""Reading at read_committed the directories that Kafka 4.3.1 wrote: Kafka's answers, from the engine to both wires."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.isolation import Isolation
from seglog_protocol.kafka import messages
from seglog_protocol.messages import FetchPartition, FetchRequest, FetchResult, OffsetsPartition, OffsetsRequest
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import decode_records
from tests.interop.golden import (
    CASES,
    Row,
    adopted,
    digest,
    load_case,
    log_of,
    row_of,
    unpack,
    unpack_open_transactions,
)
from tests.interop.golden_differences import DIFFERENCES
from tests.logs import ManualClock, append_one, batch
from tests.support import each_case
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaServed, fetch, latest
from tests.unit.broker.listeners.kafka.kafka_peer import kafka as serving_kafka
from tests.unit.broker.storage.log.transactions import fetch_committed, read_committed, without_aborted

ANSWERED: Final = tuple(name for name in CASES if name != "unclean")


@pytest.fixture(scope="module", params=ANSWERED)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[str, PartitionLog, Any]]]:
    """(partition, its log, what Kafka said) of those where nothing is meant to differ; not to be changed."""
    case = load_case(request.param)
    directory: Path = tmp_path_factory.mktemp(case.name)
    unpack(case, directory)
    with ExitStack() as stack:
        logs = stack.enter_context(adopted(directory))
        differing = DIFFERENCES.get(case.name, {})
        yield [(name, log_of(logs, name), told) for name, told in case.answered.items() if name not in differing]


def test_the_last_stable_offset_is_kafkas(opened: list[tuple[str, PartitionLog, Any]]) -> None:
    for name, log, kafka in opened:
        assert log.last_stable_offset == kafka["last_stable_offset"], name
        if "read_committed" in kafka:
            assert log.last_stable_offset == kafka["read_committed"]["list_latest"][2], name


def test_a_fetch_names_the_aborted_transactions_that_kafka_names(opened: list[tuple[str, PartitionLog, Any]]) -> None:
    """Kafka takes the end of what it sends from its sparse index, and so names some that begin behind it; we do not."""
    for name, log, kafka in opened:
        for told in kafka.get("fetches", ()):
            if told["error"]:
                continue
            fetched = fetch_committed(log, told["offset"], told["partition_max_bytes"])
            assert bool(fetched.data) == bool(told["bytes"]), (name, told)
            end = max((header.next_offset for header, _ in iter_batches(fetched.data)), default=0)
            assert fetched.aborted == [each for each in told["aborted"] if each[1] < end], (name, told)


@each_case("bytes_max", [1, 1000, 1 << 20])
def test_the_committed_records_are_those_of_kafkas_consumer(
    opened: list[tuple[str, PartitionLog, Any]], bytes_max: int
) -> None:
    for name, log, kafka in opened:
        told = kafka["read_committed"]["records"] if "read_committed" in kafka else kafka["records"]
        rows = [row_of(record, header) for record, header in read_committed(log, bytes_max)]
        assert (len(rows), digest(rows)) == (told["count"], told["sha256"]), name


# --- Both wires, over a broker ----------------------------------------------------------------------------------------


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


async def test_a_committed_fetch_waits_at_the_last_stable_offset(tmp_path: Path, autojump_clock: object) -> None:
    """Whatever is appended behind it."""
    unpack(load_case("transactions"), tmp_path)
    config, _ = load_config(None, "", {}, [f"log.dir={tmp_path}"])
    broker = Broker.open(config, PosixFileSystem(), ManualClock(), InlineOffload())
    log = broker.partitions["ledger", 0].log
    for offset in (162, 170, 192):
        async with trio.open_nursery() as nursery:
            began = trio.current_time()

            async def append() -> None:
                await trio.sleep(1)
                append_one(log, memoryview(bytearray(batch(b"v", key=b"k"))))
                broker.partitions["ledger", 0].note_append(1000)

            nursery.start_soon(append)
            _, data = await natively(broker, offset, "read_committed", max_wait_ms=5_000)
            assert not data
            assert trio.current_time() - began == pytest.approx(5)
    assert (await natively(broker, 162, None, max_wait_ms=5_000))[1]
    broker.close()


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
