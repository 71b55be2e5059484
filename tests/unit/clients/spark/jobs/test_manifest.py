import json
from pathlib import Path

import pytest

from seglog.cli.exits import InputError
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
from seglog_spark.offsets import OffsetRange

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
