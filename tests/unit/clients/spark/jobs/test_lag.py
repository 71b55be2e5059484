from pathlib import Path

import pytest

from seglog.cli.exits import InputError
from seglog_spark.jobs.lag import Lag, lag_of
from seglog_spark.jobs.manifest import Manifest, save
from seglog_spark.planning import Ends
from tests.spark.fake_log import tp

ENDS = {tp("a-0"): Ends(0, 100), tp("a-1"): Ends(10, 50)}


def test_an_archive_is_behind_by_what_it_lacks(tmp_path: Path) -> None:
    save(tmp_path, Manifest("a", "id", partitions={0: (0, 70)}))
    assert lag_of(tmp_path, ENDS) == [Lag(0, 70, 100), Lag(1, 10, 50)]
    assert [found.lag for found in lag_of(tmp_path, ENDS)] == [30, 40]


def test_a_query_is_behind_by_what_its_last_finished_micro_batch_left(tmp_path: Path) -> None:
    for name, number, text in (
        ("offsets", 9, 'v1\n{"batchWatermarkMs":0}\n{"a": {"0": 60}}'),
        ("offsets", 10, 'v1\n{"batchWatermarkMs":0}\n-\n{"a": {"0": 90, "1": 50}}'),
        ("offsets", 11, 'v1\n{"batchWatermarkMs":0}\n{"a": {"0": 95, "1": 50}}'),
        ("commits", 9, "v1\n{}"),
        ("commits", 10, "v1\n{}"),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / str(number)).write_text(text)
        (tmp_path / name / f".{number}.crc").touch()
    assert [found.lag for found in lag_of(tmp_path, ENDS)] == [10, 0]
    with pytest.raises(InputError, match="is of a, and not of the topic"):
        lag_of(tmp_path, {tp("b-0"): Ends(0, 1)})
    (tmp_path / "offsets" / "10").write_text('v1\n{}\n{"a": 5}')
    with pytest.raises(InputError, match="is not what a query on seglog notes"):
        lag_of(tmp_path, ENDS)


def test_a_query_that_has_finished_nothing_is_at_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    assert [found.lag for found in lag_of(tmp_path, ENDS)] == [100, 40]


def test_any_other_folder_is_neither(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not an archive .* nor a checkpoint"):
        lag_of(tmp_path, ENDS)
