"""Transactions as a broker serves them while they go on: appends, waiting fetches, offsets, what is deleted."""

from typing import Any, Final

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config import TopicConfig
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.server import compaction_of, scrub_of
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_protocol import errors, messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import decode_records
from seglog_protocol.transaction_files import END_MARKER_SIZE
from tests.logs import flip_bit
from tests.unit.broker.api import scene
from tests.unit.broker.storage.log.transactions import due_of, without_aborted

PRODUCER: Final = 7
OTHER: Final = 8


async def append(broker: Broker, encoded: bytes, *, ack: messages.Ack = "os") -> messages.AppendResult:
    [result] = await scene.append(broker, encoded, ack=ack)
    return result


def of_transaction(broker: Broker, producer_id: int, value: bytes) -> bytes:
    """The next batch of a producer."""
    epoch, sequence = due_of(broker.partitions["t", 0].log, producer_id)
    return encode_batch(
        [(-1, None, value, ())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


async def begin(broker: Broker, producer_id: int, value: bytes) -> messages.AppendResult:
    """A batch of a producer's transaction, which the coordinator has added the partition to."""
    log = broker.partitions["t", 0].log
    log.producers.expect(producer_id, due_of(log, producer_id)[0])
    result = await append(broker, of_transaction(broker, producer_id, value))
    assert result.error is None
    return result


def end(broker: Broker, producer_id: int, *, commit: bool) -> int:
    partition = broker.partitions["t", 0]
    epoch, _ = due_of(partition.log, producer_id)
    return partition.append_marker(TransactionEnd(producer_id, epoch, 0, commit, 1))


def request(offset: int = 0, *, isolation: Any = "read_committed", **limits: Any) -> messages.FetchRequest:
    start = messages.FetchPartition("t", 0, offset)
    return messages.FetchRequest([start], isolation=isolation, **{"max_wait_ms": 0, **limits})


async def committed(broker: Broker, asked: messages.FetchRequest) -> list[bytes | None]:
    """The values that a consumer delivers of one fetch."""
    with await broker.fetch(asked) as answer:
        [result] = answer.reply.partitions
        assert result.error is None
        data = answer.payload + b"".join(piece.file.pread(piece.size, piece.position) for piece in answer.slices)
    kept = without_aborted(iter_batches(data), result.aborted or ())
    return [record.value for header, view in kept if not header.is_control for record in decode_records(header, view)]


async def test_a_batch_of_a_transaction_needs_a_producer_id(broker: Broker) -> None:
    refused = await append(broker, encode_batch([(-1, None, b"v", ())], transactional=True))
    assert isinstance(refused.error, errors.InvalidRecordError)
    assert "producer id" in refused.error.message


@pytest.mark.parametrize("finds", ["fetch", "scrub", "compaction"])
async def test_a_transaction_index_in_which_a_bit_turns_is_built_again_and_told(broker: Broker, finds: str) -> None:
    for producer_id, value in ((PRODUCER, b"aborted"), (OTHER, b"committed")):
        await begin(broker, producer_id, value)
        end(broker, producer_id, commit=producer_id == OTHER)
    path = f"/data/t-0/{0:020d}.txnindex"
    right = read_file(broker.fs, path)
    flip_bit(broker.fs, path, 9)  # of the producer id
    with capture_logs() as logged:
        if finds == "scrub":
            await scrub_of(broker).scrub_all(TaskBoundary("scrub"))
        elif finds == "compaction":
            broker.partitions["t", 0].log.reconfigure(TopicConfig(cleanup_policy=("compact",)))
            broker.partitions["t", 0].log.roller.roll(4, RollReason.SIZE)
            assert await compaction_of(broker).clean_next()
        else:
            assert await committed(broker, request()) == [b"committed"]
    assert read_file(broker.fs, path) == right
    [told] = [entry for entry in logged if entry["event"] == "index_wrong"]
    assert (told["topic"], told["partition"], told["segment"], told["log_level"]) == ("t", 0, 0, "warning")


@pytest.mark.parametrize("commit", [True, False])
async def test_the_end_of_a_transaction_wakes_those_who_wait_for_committed_records(
    broker: Broker, commit: bool, autojump_clock: object
) -> None:
    """Its records do not: they are delivered when it has ended, though nothing but the marker has come since."""
    got: list[bytes | None] = []
    times: list[float] = []

    async def consume() -> None:
        got.extend(await committed(broker, request(max_wait_ms=30_000, min_bytes=2 * END_MARKER_SIZE)))
        times.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await trio.sleep(1)
        await begin(broker, PRODUCER, b"v" * 100)
        await trio.sleep(1)
        assert not times
        end(broker, PRODUCER, commit=commit)
        ended = trio.current_time()
    assert got == ([b"v" * 100] if commit else [])
    assert times == [ended]


async def test_answers_from_the_end_are_shared_only_until_a_transaction_ends(broker: Broker) -> None:
    await begin(broker, PRODUCER, b"v")
    for _ in range(3):
        assert await committed(broker, request()) == []
    end(broker, PRODUCER, commit=True)
    for _ in range(3):
        assert await committed(broker, request()) == [b"v"]


async def test_a_marker_counts_as_not_durable_until_it_is(broker: Broker) -> None:
    await begin(broker, PRODUCER, b"v")
    partition = broker.partitions["t", 0]
    partition.log.flusher.flush()
    before = broker.metrics.not_durable.size
    end_offset = end(broker, PRODUCER, commit=True)
    assert broker.metrics.not_durable.size == before + END_MARKER_SIZE
    assert partition.log.durable_end_offset < end_offset == partition.log.log_end_offset


async def test_no_marker_is_written_into_a_topic_that_was_deleted(broker: Broker) -> None:
    await begin(broker, PRODUCER, b"v")
    partition = broker.partitions["t", 0]
    await broker.delete_topic(messages.DeleteTopicRequest("t"))
    with pytest.raises(errors.UnknownTopicError):
        partition.append_marker(TransactionEnd(PRODUCER, 0, 0, False, 1))
