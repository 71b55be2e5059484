"""Rows are kept from one scrape to the next, their values are not."""

from collections.abc import Iterator, Sequence

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.kept_rows import ROWS_MAX, KeptRows
from seglog_broker.api.monitoring.samples import SAMPLES_MAX, Column
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset
from seglog_protocol import messages
from tests.unit.broker.api.monitoring.test_group_sources import commit
from tests.unit.broker.api.monitoring.test_service import samples, value
from tests.unit.broker.api.monitoring.test_topic_sources import append, create


def test_rows_are_found_again_only_when_the_stamp_changes_and_values_are_read_each_time() -> None:
    stamp, numbers, found = [0], list(range(ROWS_MAX + 1)), list[int]()

    def find() -> Iterator[tuple[tuple[str, ...], int] | None]:
        for number in numbers:
            found.append(number)
            yield None
            yield (str(number),), number

    def read(factor: int) -> list[tuple[Sequence[tuple[str, ...]], list[object]]]:
        columns = rows.columns(lambda some: [factor * number for number in some])
        return [(column.labels, list(column.values)) for column in columns if column is not None]

    rows = KeptRows(find, list, lambda: stamp[0])
    first, second = read(1), read(2)
    assert [len(values) for _, values in first] == [ROWS_MAX, 1]
    assert len(found) == ROWS_MAX + 1, "once"
    assert [one is other for (one, _), (other, _) in zip(first, second, strict=True)] == [True, True]
    assert second[0][1][:3] == [0, 2, 4]
    stamp[0], numbers[:] = 1, [7]
    assert [(kept, values) for kept, values in read(1)] == [([("7",)], [7])]


def test_what_changes_while_rows_are_found_has_them_found_again() -> None:
    stamp = [0]

    def find() -> Iterator[tuple[tuple[str, ...], int]]:
        stamp[0] += stamp[0] == 0
        yield (str(stamp[0]),), stamp[0]

    rows = KeptRows(find, list, lambda: stamp[0])
    found = []
    for _ in range(2):
        found += [column for column in rows.columns(lambda some: some) if column is not None]
    assert found[0].labels is not found[1].labels


def test_so_many_rows_are_kept_and_no_more() -> None:
    """Those that came while the others were found have no samples before the next page."""
    rows = KeptRows(lambda: (((str(number),), number) for number in range(2 * SAMPLES_MAX)), list, lambda: 0)
    for _ in range(2):
        columns = [column for column in rows.columns(lambda some: some) if column is not None]
        assert sum(len(column.values) for column in columns) == SAMPLES_MAX


def test_a_column_with_gaps_has_samples_for_the_rest() -> None:
    column = Column([("a",), ("b",), ("c",)], [1, None, 3])
    assert [(sample.labels, sample.value) for sample in column.samples] == [(("a",), 1), (("c",), 3)]


async def test_topics_that_come_and_go_and_grow_are_seen_by_the_next_scrape(broker: Broker) -> None:
    await create(broker, "a")
    name = "seglog_partition_log_end_offset"
    assert [s.labels for s in samples(broker, name)] == [("a", "0")]
    await create(broker, "b")
    append(broker, "a", 3)
    assert [(s.labels, s.value) for s in samples(broker, name)] == [(("a", "0"), 3), (("b", "0"), 0)]
    await broker.alter_topic(messages.AlterTopicRequest("b", partitions=2))
    assert [s.labels for s in samples(broker, name)] == [("a", "0"), ("b", "0"), ("b", "1")]
    await broker.delete_topic(messages.DeleteTopicRequest("a"))
    await create(broker, "a")
    assert value(broker, name, "a", "0") == 0, "that of the new topic"


async def test_offsets_that_are_committed_and_dropped_are_seen_also_while_a_page_is_made(broker: Broker) -> None:
    await create(broker, "t", 2)
    append(broker, "t", 5)
    commit(broker, "g", 1)
    name = "seglog_group_lag"
    assert [(s.labels, s.value) for s in samples(broker, name)] == [(("g", "t", "0"), 4)]
    commit(broker, "g", 3)
    commit(broker, "g", 0, partition=1)
    commit(broker, "h", 5)
    assert {s.labels: s.value for s in samples(broker, name)} == {
        ("g", "t", "0"): 2,
        ("g", "t", "1"): 0,
        ("h", "t", "0"): 0,
    }
    committed = broker.groups._offsets.committed
    before = committed.changes
    commit(broker, "g", 4)
    assert committed.changes == before, "the same rows"
    slices = broker.monitoring.slices(["seglog_group_committed_offset", name])
    assert len(next(slices).samples) == 3
    committed.drop("h", ("t", 0))
    assert {s.labels for piece in slices for s in piece.samples} == {("g", "t", "0"), ("g", "t", "1")}
    committed.drop("g", ("t", 0))
    committed.put("g", ("t", 0), CommittedOffset(5, -1, "", 0))
    assert value(broker, name, "g", "t", "0") == 0


async def test_the_size_of_a_log_is_that_of_its_segments_whenever_these_change(broker: Broker) -> None:
    await create(broker, "t", segment_bytes=1024)
    log = broker.partitions["t", 0].log
    for _ in range(30):
        append(broker, "t")
        assert log.segments.known_size == log.segments.size_between(0, len(log.segments)) == log.size
    assert len(log.segments) > 2
    await broker.truncate(messages.TruncateRequest([messages.TruncatePartition("t", 0, 25)]))
    assert log.segments.known_size == log.segments.size_between(0, len(log.segments)) == log.size
