"""What an archive has: its manifest, and what is read of it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cli.exits import InputError
from seglog.core.moments import AtOffset, AtTime, Edge, Moment
from seglog_spark.jobs.inputs import ArchiveInput, archive_ends, spans
from seglog_spark.jobs.manifest import (
    MANIFEST,
    ArchivedFile,
    FileGap,
    Manifest,
    file_name,
    load,
    load_whole,
    locked,
    save,
    sweep,
    whole_file,
    write_whole,
)
from seglog_spark.jobs.parquet_files import write_file
from seglog_spark.offsets import OffsetRange
from seglog_spark.planning import Ends
from tests.spark.fake_log import FakeLog, tp
from tests.spark.jobs.records import batches, in_rows

FIRST = OffsetRange("t", 0, 0, 100)


def archived(r: OffsetRange, *gaps: FileGap) -> ArchivedFile:
    missing = sum(gap.end - gap.start for gap in gaps)
    return ArchivedFile(file_name(r), r.partition, r.start, r.end, r.size - missing, 5000, 0, 99_000, missing, gaps)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    made = Manifest("t", "id").with_planned([FIRST, OffsetRange("t", 1, 5, 9)])
    save(tmp_path, made)
    assert load(tmp_path) == made
    full = made.with_written([archived(OffsetRange("t", 1, 5, 9)), archived(FIRST, FileGap(3, 5, "compacted"))])
    save(tmp_path, full)
    assert load(tmp_path) == full
    assert full.partitions == {0: (0, 100), 1: (5, 9)}
    assert [found.partition for found in full.files] == [0, 1]
    assert full.planned == ()
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_names_of_files_sort_as_their_offsets_do() -> None:
    names = [file_name(OffsetRange("t", 0, start, start + 1)) for start in (9, 10, 99, 10**18)]
    assert names == sorted(names)
    assert names[0] == "t-0/00000000000000000009-00000000000000000010.parquet"


def test_a_folder_with_something_else_in_it_is_no_archive(tmp_path: Path) -> None:
    assert load(tmp_path / "missing") is None
    assert load(tmp_path) is None
    with locked(tmp_path):
        pass
    assert load(tmp_path) is None
    (tmp_path / "letter.txt").write_text("Dear")
    with pytest.raises(InputError, match=r"is not an archive of seglog: it holds other files"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"letter\.txt is a file"):
        load(tmp_path / "letter.txt")
    with pytest.raises(InputError, match="holds no archive"):
        load_whole(tmp_path)
    for text in (
        "",
        "[]",
        '{"format": "other", "version": 1}',
        json.dumps(Manifest("t", "").to_json() | {"version": 2}),
    ):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(InputError, match="is not a manifest that this version can read"):
            load(tmp_path)


def test_a_compaction_that_was_not_finished_is_not_read(tmp_path: Path) -> None:
    save(tmp_path, Manifest("t", "id", "compacted").with_planned([FIRST]))
    with pytest.raises(InputError, match="was not finished"):
        load_whole(tmp_path)
    save(tmp_path, Manifest("t", "id").with_planned([FIRST]))
    assert load_whole(tmp_path).planned == (FIRST,)  # of an archive what is there can be read


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"before")

    def fail(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), whole_file(path) as temporary:
        fail(temporary)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_runs_left_is_swept_away_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    kept = [tmp_path / "t-0" / "a.parquet", tmp_path / ".hidden", tmp_path / "b.tmp"]
    for path in [*kept, tmp_path / "t-0" / ".a.parquet.12.tmp", tmp_path / "._manifest.json.3.tmp"]:
        path.touch()
    sweep(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


def test_a_second_run_waits_its_turn(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InputError, match="another run is writing"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


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
