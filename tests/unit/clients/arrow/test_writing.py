import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

import seglog
from seglog.arrow import writing
from seglog.arrow.schema import HEADERS
from seglog.core.partitioner import partition_for_key
from seglog.testing import Broker
from seglog_protocol.errors import (
    DeliveryFailed,
    PartitionReadOnlyError,
    UnknownPartitionError,
    UnknownTopicError,
)
from seglog_protocol.messages import AppendReply, AppendRequest, AppendResult, Request
from seglog_protocol.record_batch import parse_header
from tests.unit.clients.fake_broker import Answer, FakeBroker, fake_broker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker(topics={"t": 3}) as running:
        yield running


def table(count: int) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([b"key-%d" % (n % 50) for n in range(count)]),
            "value": pa.array([b"%d" % n for n in range(count)]),
            "timestamp": pa.array(range(count), pa.int64()),
        }
    )


def values(broker: FakeBroker) -> list[list[int]]:
    return [[int(record.value or b"-1") for record in log.records()] for log in broker.logs["t"]]


def test_rows_arrive_where_the_producer_would_put_them_in_their_order(broker: FakeBroker) -> None:
    written = seglog.write_arrow(broker.address, "t", table(1_000))
    places = [partition_for_key(b"key-%d" % (n % 50), 3) for n in range(1_000)]
    assert values(broker) == [[n for n in range(1_000) if places[n] == partition] for partition in range(3)]
    for partition, log in enumerate(broker.logs["t"]):
        assert written.partitions[partition] == (writing.WrittenRange(0, log.latest - 1, log.latest))
        assert {record.timestamp for record in log.records()} == {n for n in range(1_000) if places[n] == partition}
    assert (written.records, written.batches, written.topic) == (1_000, 3, "t")
    assert written.batch_bytes == sum(len(batch) for log in broker.logs["t"] for batch in log.batches)


def test_tables_batches_streams_and_readers_are_written_alike(broker: FakeBroker) -> None:
    rows = table(200)
    with seglog.connect(broker.address) as client:
        for one in (
            rows,
            rows.combine_chunks().to_batches()[0],
            rows.to_reader(max_chunksize=7),
            pa.concat_tables([rows.slice(0, 150), rows.slice(150)]),
        ):
            before = [log.latest for log in broker.logs["t"]]
            assert seglog.write_arrow(client, "t", one).records == 200
            for log, start in zip(broker.logs["t"], before, strict=True):
                assert [r[1:] for r in log.records()[start:]] == [r[1:] for r in log.records()[: log.latest - start]]
        with pytest.raises(TypeError, match="Arrow's stream interface, which dict does not"):
            seglog.write_arrow(client, "t", {"value": [b"v"]})


def test_small_record_batches_of_a_stream_share_record_batches_of_the_log(broker: FakeBroker) -> None:
    assert seglog.write_arrow(broker.address, "t", table(1_000).to_reader(max_chunksize=10)).batches == 3


def test_an_empty_table_is_written_in_no_time(broker: FakeBroker) -> None:
    written = seglog.write_arrow(broker.address, "t", table(0))
    assert (written.records, written.batches, dict(written.partitions)) == (0, 0, {})
    assert not any(isinstance(request, AppendRequest) for request in broker.requests)


def test_columns_and_options_are_refused_before_anything_is_sent(broker: FakeBroker) -> None:
    with pytest.raises(ValueError, match="no 'vaule'"):
        seglog.write_arrow(broker.address, "t", pa.table({"vaule": ["v"]}))
    with pytest.raises(ValueError, match="compression is one of"):
        seglog.write_arrow(broker.address, "t", table(1), compression="brotli")
    with pytest.raises(ValueError, match="ack is"):
        seglog.write_arrow(broker.address, "t", table(1), ack="all")  # type: ignore[arg-type]
    assert broker.requests == []
    with pytest.raises(UnknownPartitionError):
        seglog.write_arrow(broker.address, "t", pa.table({"value": ["v"], "partition": [3]}))


def test_rows_that_cannot_be_written_end_a_stream_with_a_note_of_what_was(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_MERGED_ROWS", 1)
    good = [pa.record_batch({"value": [b"%d" % n], "partition": [0]}) for n in range(5)]
    bad = pa.record_batch({"value": [b"5"], "partition": [-7]})
    rows = pa.RecordBatchReader.from_batches(bad.schema, iter([*good, bad]))
    with pytest.raises(ValueError, match="the column partition has -7 in row 5 of the table") as caught:
        seglog.write_arrow(broker.address, "t", rows)
    (note,) = caught.value.__notes__
    count = len(values(broker)[0])
    assert note == f"seglog: {count} record{'s' if count > 1 else ''} or more were written before"
    assert values(broker)[0] == list(range(count))


def test_a_topic_that_does_not_exist_is_created_where_the_broker_does_that() -> None:
    with fake_broker() as strict, pytest.raises(UnknownTopicError):
        seglog.write_arrow(strict.address, "u", table(1))
    with Broker() as running:
        assert seglog.write_arrow(running.address, "commits", table(1)).records == 1
        with pytest.raises(UnknownTopicError, match="commits"):
            seglog.write_arrow(running.address, "comits", table(1), create=False)
        assert seglog.write_arrow(running.address, "commits", table(1), create=False).records == 1
        with seglog.connect(running.address) as client:
            assert [topic.name for topic in client.topics()] == ["commits"]


# --- Failures ---------------------------------------------------------------------------------------------------------


def script(broker: FakeBroker, *answers: Answer | None) -> None:
    """What appends are answered with, one after the other; then as usual."""
    left = list(answers)

    def answer(request: Request, _payload: memoryview) -> Answer | None:
        return left.pop(0) if isinstance(request, AppendRequest) and left else None

    broker.script = answer


@pytest.mark.parametrize(("options", "offset"), [({"idempotent": False}, 0), ({"ack": "none"}, -1)])
def test_it_is_not_idempotent_where_that_was_not_asked_for_or_means_nothing(
    broker: FakeBroker, options: dict[str, Any], offset: int
) -> None:
    """Without acks offsets are not known either."""
    written = seglog.write_arrow(broker.address, "t", table(10), **options)
    assert ({each.first_offset for each in written.partitions.values()}, written.records) == ({offset}, 10)
    with broker.changed:
        assert broker.changed.wait_for(lambda: sum(map(len, values(broker))) == 10, 30)
    assert {parse_header(batch).producer_id for log in broker.logs["t"] for batch in log.batches} == {-1}


def test_what_is_refused_for_good_ends_the_writing_and_is_counted(broker: FakeBroker) -> None:
    refused = PartitionReadOnlyError("read-only", topic="t")
    script(broker, None, AppendReply([AppendResult("t", 0, error=refused)]))
    rows = pa.table({"value": [b"%d" % n for n in range(900)], "partition": [0] * 900})
    with pytest.raises(DeliveryFailed, match=r"not acknowledged: \d+ records to t; \d+ were written") as caught:
        seglog.write_arrow(broker.address, "t", rows, batch_bytes=300)
    assert caught.value.failures[0][:2] == ("t", 0)
    assert isinstance(caught.value.__cause__, PartitionReadOnlyError)
    count, written = caught.value.failures[0][2], len(values(broker)[0])
    assert f"{count} records to t; {written} were written" in str(caught.value)
    assert len(caught.value.failures) == 1, "what was not sent did not fail"
    assert 0 < written < 900 - count
    assert values(broker)[0][:count] == list(range(count))
    assert not any(thread.name.startswith("seglog") for thread in threading.enumerate())


# --- The real thing ---------------------------------------------------------------------------------------------------


def test_a_table_comes_back_from_a_real_broker_as_it_was_and_can_be_copied() -> None:
    count = 3_000
    rows = pa.table(
        {
            "key": pa.array([None if n % 7 == 0 else b"key-%d" % (n % 50) for n in range(count)], pa.binary()),
            "value": pa.array([None if n % 11 == 0 else bytes([n % 256]) * (n % 300) for n in range(count)]),
            "timestamp": pa.array([n * 1_000_000 for n in range(count)], pa.timestamp("us", "UTC")),
            "partition": pa.array([n % 2 for n in range(count)], pa.int32()),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % n}] if n % 3 == 0 else None for n in range(count)], HEADERS.type
            ),
        }
    )
    with Broker() as running, seglog.connect(running.address) as client:
        client.create_topic("a", 2)
        client.create_topic("b", 2)
        assert seglog.write_arrow(client, "a", rows, compression="zstd", batch_bytes=5_000).records == count
        assert seglog.write_arrow(client, "b", seglog.read_arrow(client, "a", headers=True)).records == count
        for topic, partition in product("ab", range(2)):
            found = seglog.read_arrow(client, topic, headers=True, partitions=[partition]).read_all()
            assert found.select(rows.column_names).equals(rows.filter(pa.compute.field("partition") == partition))
        assert "error" not in [line["level"] for line in running.log]
