"""What a source's tasks read, against a real broker and without Spark."""

import pytest

from seglog.client import Client
from seglog_spark.catalog import Catalog
from seglog_spark.offsets import OffsetRange
from seglog_spark.options import Assign, OptionError, Subscribe, SubscribePattern
from seglog_spark.planning import DataLossError, Ends
from seglog_spark.reading import RangeReader
from tests.processes import Daemon
from tests.spark.fake_log import tp


def fill(client: Client, topic: str, count: int, partitions: int = 1) -> None:
    client.create_topic(topic, partitions=partitions, config={"segment.bytes": 16_384, "retention.ms": -1})
    with client.producer(topic, ack="os", batch_bytes=1000) as producer:
        for number in range(count):
            producer.send(f"value {number}", key=str(number), timestamp=number * 1000)


def offsets(reader: RangeReader, wanted: OffsetRange) -> list[int]:
    return [offset for table in reader.read(wanted) for offset in table.column("offset").to_pylist()]


def test_a_range_has_its_records_and_no_others(running: Daemon, client: Client, topic: str) -> None:
    fill(client, topic, 500)
    reader = RangeReader(running.address, ("offset", "value"))
    assert offsets(reader, OffsetRange(topic, 0, 123, 321)) == list(range(123, 321))
    (table,) = reader.read(OffsetRange(topic, 0, 7, 9))
    assert table.to_pydict() == {"offset": [7, 8], "value": [b"value 7", b"value 8"]}
    assert offsets(reader, OffsetRange(topic, 0, 5, 5)) == []


@pytest.mark.parametrize(
    ("start", "end", "why"), [(30, 300, r"offset 30 .*"), (450, 600, "the log ends at 500")], ids=["start", "end"]
)
def test_what_is_gone_when_a_task_comes_to_read_it_is_an_error_or_left_out(
    running: Daemon, client: Client, topic: str, start: int, end: int, why: str
) -> None:
    fill(client, topic, 500)
    client.truncate_topic(topic, {0: 100})
    wanted = OffsetRange(topic, 0, start, end)
    with pytest.raises(DataLossError, match=f"from {start} to {end} cannot all be read: .*{why}"):
        offsets(RangeReader(running.address, ("offset",)), wanted)
    accepting = RangeReader(running.address, ("offset",), fail_on_data_loss=False)
    assert offsets(accepting, wanted) == list(range(max(start, 100), min(end, 500)))


# --- The catalog ------------------------------------------------------------------------------------------------------


def test_topics_are_found_by_name_and_by_pattern(client: Client, topic: str) -> None:
    for name, partitions in ((f"{topic}-a", 1), (f"{topic}-b", 2)):
        client.create_topic(name, partitions=partitions)
    log = Catalog(client)
    both = [tp(f"{topic}-{name}") for name in ("a-0", "b-0", "b-1")]
    assert log.partitions(Subscribe((f"{topic}-a", f"{topic}-b"))) == both
    assert log.partitions(SubscribePattern(f"{topic}-[ab]")) == both
    assert log.partitions(Assign((both[2],))) == both[2:]
    with pytest.raises(OptionError, match="no topic's whole name matches"):
        log.partitions(SubscribePattern(f"{topic}-"))
    with pytest.raises(OptionError, match=f"names partition 2 of {topic}-b, which has 2"):
        log.partitions(Assign((tp(f"{topic}-b-2"),)))


def test_ends_times_and_sizes_are_asked_for_many_partitions_at_once(client: Client, topic: str) -> None:
    fill(client, topic, 3000, partitions=2)
    log = Catalog(client)
    there = log.partitions(Subscribe((topic,)))
    ends = log.ends(there)
    assert sum(end.latest for end in ends.values()) == 3000
    found = log.find_times(dict.fromkeys(there, 100_000))
    with client.consumer(topic) as consumer:
        records = list(consumer)
    for partition in there:
        mine = [record for record in records if record.partition == partition.partition]
        assert found[partition] == next(record.offset for record in mine if record.timestamp >= 100_000)
    assert set(log.find_times(dict.fromkeys(there, 3_000_000)).values()) == {None}
    extents = log.extents(ends)
    size = client.describe_topic(topic).size
    assert 0 <= size - sum(extent.size for (extent,) in extents.values()) <= 2
    assert [(extent.start, extent.end) for (extent,) in extents.values()] == [tuple(ends[p]) for p in extents]
    for partition, (extent,) in extents.items():
        segments = log.segments(partition, ends[partition])
        assert len(segments) > 1
        assert [edge for s in segments for edge in s[:2]][1:-1:2] == [s.start for s in segments[1:]]
        assert (segments[0].start, segments[-1].end) == (extent.start, extent.end)
    assert sum(s.size for p in there for s in log.segments(p, ends[p])) == size
    assert log.ends([there[0]]) == {there[0]: Ends(0, ends[there[0]].latest)}
