"""What the commands say of bad input, and with which exit code."""

import os
from pathlib import Path

import pytest

from seglog_broker.backup.commands import main_backup, main_restore, main_verify
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.store import BackupStore
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.logs import opened_directory


@pytest.fixture(autouse=True)
def _as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests keeps its priority, which it could not get back."""
    monkeypatch.setattr(os, "nice", lambda _more: 0)


def stopped(data: Path) -> Path:
    """The directory of a broker that was started and stopped."""
    assert opened_directory(PosixFileSystem(), str(data)).close() == []
    return data


def test_a_damaged_manifest_is_named_by_the_list_and_does_not_hide_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, to = stopped(tmp_path / "data"), tmp_path / "backups"
    assert main_backup([str(data), "--to", str(to)]) == 0
    assert main_backup([str(data), "--to", str(to)]) == 0
    older, newer = sorted((to / "backups").iterdir())
    older.write_text("{")
    capfd.readouterr()
    assert main_restore([str(to), "--list"]) == 3
    listed = capfd.readouterr()
    assert listed.out.startswith(f"{newer.stem}\t")
    assert f"{older} is damaged" in listed.err
    assert main_backup([str(data), "--to", str(to)]) == 1
    assert "move that file away" in capfd.readouterr().err


def test_the_place_of_a_disk_that_is_not_mounted_is_not_filled(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, mounted = stopped(tmp_path / "data"), tmp_path / "mounted"
    mounted.mkdir()
    assert main_backup([str(data), "--to", f"{mounted}/daily/seglog"]) == 1
    assert f"there is no directory {mounted}/daily for {mounted}/daily/seglog: make it, or" in capfd.readouterr().err
    assert list(mounted.iterdir()) == []


def test_a_list_without_backups_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    BackupStore(DirectoryDestination(PosixFileSystem(), f"{tmp_path}/to")).claim(
        "cluster", "directory", take_over=False
    )
    assert main_restore([f"{tmp_path}/to", "--list"]) == 1
    assert f"{tmp_path}/to has no finished backup yet" in capfd.readouterr().err


def test_a_restore_without_a_directory_is_wrong_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main_restore([str(tmp_path)])
    assert caught.value.code == 2
    assert "name the new log directory by --to DIR" in capfd.readouterr().err


def test_a_scratch_directory_that_is_not_there_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main_verify([str(tmp_path), "--scratch", f"{tmp_path}/nowhere"]) == 1
    assert f"{tmp_path}/nowhere is no directory" in capfd.readouterr().err
