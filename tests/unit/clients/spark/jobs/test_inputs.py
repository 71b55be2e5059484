from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from seglog.core.moments import AtOffset, AtTime, Edge, Moment
from seglog_spark.jobs.inputs import ArchiveInput, archive_ends, spans
from seglog_spark.jobs.manifest import Manifest
from seglog_spark.jobs.parquet_files import write_file
from seglog_spark.offsets import OffsetRange
from seglog_spark.planning import Ends
from tests.spark.fake_log import FakeLog, tp
from tests.spark.jobs.records import batches, in_rows

RANGES = [OffsetRange("a", 0, 5, 20), OffsetRange("a", 0, 20, 60), OffsetRange("a", 1, 0, 30)]


def archive_of(folder: Path) -> tuple[ArchiveInput, Manifest]:
    files = [write_file(folder, r, batches(r), "none") for r in RANGES]
    manifest = Manifest("a", "id").with_planned(RANGES).with_written(files)
    return ArchiveInput("a", folder, manifest.files), manifest


moments = st.one_of(
    st.none(),
    st.sampled_from(Edge),
    st.integers(0, 80).map(AtOffset),
    st.integers(0, 80_000).map(AtTime),
)


@given(moments, moments)
def test_moments_cut_an_archive_where_they_cut_the_topic(start: Moment | None, until: Moment | None) -> None:
    ends = {tp("a-0"): Ends(5, 60), tp("a-1"): Ends(0, 30)}
    source = FakeLog({tp("a-0"): 60, tp("a-1"): 30}, {tp("a-0"): 5})
    ranges = spans(ends, start, until, source.find_times)
    for (partition, found), r in zip(ends.items(), ranges, strict=True):
        assert r.topic_partition == partition
        wanted = [
            offset
            for offset in range(found.earliest, found.latest)
            if not _is_before(offset, start or Edge.EARLIEST) and _is_before(offset, until or Edge.LATEST)
        ]
        assert list(range(r.start, r.end)) == wanted


def _is_before(offset: int, moment: Moment) -> bool:
    if isinstance(moment, AtOffset):
        return offset < moment.offset
    return moment is Edge.LATEST if isinstance(moment, Edge) else offset * 1000 < moment.timestamp


def test_an_archive_finds_times_as_the_topic_does(tmp_path: Path) -> None:
    archive, manifest = archive_of(tmp_path)
    ends = archive_ends(manifest)
    assert ends == {tp("a-0"): Ends(5, 60), tp("a-1"): Ends(0, 30)}
    source = FakeLog({tp("a-0"): 60, tp("a-1"): 30}, {tp("a-0"): 5})
    for time_ms in (0, 5000, 19_001, 20_000, 29_000, 29_001, 59_000, 59_001):
        times = dict.fromkeys(ends, time_ms)
        assert archive.find_times(times) == source.find_times(times)


def test_a_range_is_read_in_order_over_the_edges_of_files(tmp_path: Path) -> None:
    archive, _ = archive_of(tmp_path)
    rows = in_rows(archive.batches(OffsetRange("a", 0, 18, 22), ["offset", "timestamp"]))
    assert [row["offset"] for row in rows] == [18, 19, 20, 21]
    assert [row["timestamp"] for row in rows] == [offset * 1_000_000 for offset in range(18, 22)]
    assert list(archive.batches(OffsetRange("a", 1, 30, 30), ["offset"])) == []
