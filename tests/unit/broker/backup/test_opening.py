"""Destinations by their addresses and options, and what the commands say of bad input."""

import argparse
import os
from pathlib import Path

import pytest

from seglog_broker.backup.commands import (
    add_destination_options,
    destination_of,
    main_backup,
    main_restore,
    main_verify,
)
from seglog_broker.backup.destination import MARKER, DestinationError
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.encrypted_destination import make_key_file
from seglog_broker.backup.opening import open_destination
from seglog_broker.backup.store import BackupStore
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.logs import opened_directory
from tests.support import each_case


def test_a_directory_is_encrypted_with_a_key_and_one_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    fs, key_file, other_file = ForgetfulFileSystem(), str(tmp_path / "key"), str(tmp_path / "other")
    key, other = make_key_file(key_file), make_key_file(other_file)
    open_destination(fs, "/plain").put(MARKER, [b"{}"])
    open_destination(fs, "/encrypted", key_file=key_file).put(MARKER, [b"{}"])
    before = fs.snapshot()
    assert before[f"/plain/{MARKER}"] == b"{}" != before[f"/encrypted/{MARKER}"]
    assert b"".join(open_destination(fs, "/plain", key_file="").read(MARKER)) == b"{}"
    assert b"".join(open_destination(fs, "/encrypted", key_file=key_file).read(MARKER)) == b"{}"
    with pytest.raises(DestinationError, match=r"in /plain is not encrypted: leave out the key file, or begin"):
        open_destination(fs, "/plain", key_file=key_file)
    with pytest.raises(
        DestinationError, match=f"in /encrypted is encrypted: .* id is {key.id.hex()}, .* seglog.backup.key.file"
    ):
        open_destination(fs, "/encrypted")
    with pytest.raises(DestinationError, match=f"/encrypted was encrypted with another key: .*{other.id.hex()}$"):
        open_destination(fs, "/encrypted", key_file=other_file)
    assert fs.snapshot() == before


@each_case(
    ("address", "sentence"),
    [
        ("ftp://host/path", "there is no kind of destination ftp://: name a directory, or one of s3://"),
        ("", "the destination is empty: name a directory"),
        ("s3:/bucket/path", "is no address: that has two slashes, as s3://BUCKET/PATH"),
        ("s3://", "names no bucket: it has to be s3://BUCKET/PATH"),
        ("s3://KEY:hidden@bucket/path", "credentials are from the environment"),
        ("az://container/path?sig=hidden", "credentials are from the environment"),
        ("gs://bucket/path#hidden", "credentials are from the environment"),
    ],
)
def test_an_address_of_another_kind_is_refused_without_showing_secrets(address: str, sentence: str) -> None:
    with pytest.raises(DestinationError, match=sentence) as caught:
        open_destination(ForgetfulFileSystem(), address)
    assert "hidden" not in str(caught.value)


@each_case(
    ("variable", "address"), [("AWS_ENDPOINT_URL", "s3://bucket/path"), ("AZURE_STORAGE_ENDPOINT", "az://box/path")]
)
def test_an_endpoint_that_is_no_address_is_told(variable: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "ftp://127.0.0.1:9")
    with pytest.raises(DestinationError, match=f"{variable} in the environment is no address of a store, such as http"):
        open_destination(ForgetfulFileSystem(), address)


def _parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_destination_options(parser)
    return parser.parse_args(arguments)


def test_the_options_name_key_and_bandwidth(tmp_path: Path) -> None:
    make_key_file(f"{tmp_path}/key")
    options = _parsed("--key-file", f"{tmp_path}/key", "--bandwidth", "0.5")
    destination = destination_of(PosixFileSystem(), options, f"{tmp_path}/backup")
    destination.put(MARKER, [os.urandom(10)])
    with pytest.raises(DestinationError, match="is encrypted"):
        destination_of(PosixFileSystem(), _parsed(), f"{tmp_path}/backup")
    for wrong in ("0", "-1", "fast", "nan", "inf"):
        with pytest.raises(argparse.ArgumentError, match="must be a number of megabytes a second"):
            _parsed("--bandwidth", wrong)


def test_the_bandwidth_bounds_what_is_written_and_read() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/data/b": bytes(5_000_000)})
    throttle = Throttle(None, lambda: 0.0, lambda _: None)
    destination = DirectoryDestination(fs, "/backup", throttle=throttle)
    destination.put_file("files/b", "/data/b", size=5_000_000)
    assert throttle.total == 5_000_000
    assert sum(map(len, destination.read("files/b"))) == 5_000_000
    assert throttle.total == 10_000_000
    destination.put("files/c", [bytes(1_000_000)] * 3)
    assert throttle.total == 13_000_000


# --- What the commands say of bad input, and with which exit code -----------------------------------------------------


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
