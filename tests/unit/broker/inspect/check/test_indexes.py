"""The expected bytes of indexes equal those that a segment writes, live and rebuilt, with any interval."""

from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.inspect.check.indexes import ExpectedIndexes, IndexBytes, interval_of
from tests.logs import LogOnDisk, batches_of

_BATCHES = st.lists(st.tuples(st.integers(0, 230), st.sampled_from([-1, 0, 5, 7, 7, 1000, 2000])), max_size=30)


@given(_BATCHES, st.integers(0, 900), st.sampled_from([24, 60, 1 << 20]))
def test_expected_indexes_equal_those_of_a_segment(
    batches: list[tuple[int, int]], interval: int, bytes_max: int
) -> None:
    disk = LogOnDisk(TopicConfig(segment_bytes=4096, index_interval_bytes=interval, segment_index_bytes=bytes_max))
    for size, timestamp in batches:
        disk.append(b"." * size, timestamp=timestamp)
    models = []
    for segment in disk.log.segments:
        model = ExpectedIndexes(segment.base_offset, interval, bytes_max)
        for position, header in batches_of(disk.fs, segment):
            model.add(position, header)
        models.append(model)
        found = IndexBytes(segment.offset_index.read(), segment.time_index.read())
        assert found == (model.live() if segment.log.is_active else model.closed())
    active = disk.log.active
    disk.log.close()
    assert IndexBytes(active.offset_index.read(), active.time_index.read()) == models[-1].closed()


@given(_BATCHES, st.integers(0, 900))
def test_the_interval_is_derived_from_the_entries(batches: list[tuple[int, int]], interval: int) -> None:
    """It may be another interval, but one that gives the same bytes."""
    disk = LogOnDisk(TopicConfig(segment_bytes=1 << 20, index_interval_bytes=interval))
    for size, timestamp in batches:
        disk.append(b"." * size, timestamp=timestamp)
    data = disk.log.active.offset_index.read()
    found = interval_of(data)
    if not data:
        assert found is None
        return
    assert found is not None
    assert found >= interval
    again = ExpectedIndexes(0, found, 1 << 20)
    for position, header in batches_of(disk.fs, disk.log.active):
        again.add(position, header)
    assert again.live() == IndexBytes(data, disk.log.active.time_index.read())


def test_entries_that_do_not_rise_give_no_interval() -> None:
    assert interval_of(bytes(8)) is None
    assert interval_of(b"") is None
