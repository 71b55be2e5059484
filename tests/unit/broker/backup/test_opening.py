import argparse
import os
from pathlib import Path

import pytest

from seglog_broker.backup.commands import add_destination_options, destination_of
from seglog_broker.backup.destination import MARKER, DestinationError
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.encrypted_destination import BackupKey, make_key_file
from seglog_broker.backup.opening import open_destination
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.support import each_case

KEY, OTHER = BackupKey(bytes(32)), BackupKey(bytes(range(32)))


def test_a_directory_is_opened_with_or_without_a_key() -> None:
    fs = ForgetfulFileSystem()
    open_destination(fs, "/plain").put(MARKER, [b"{}"])
    open_destination(fs, "/encrypted", key=KEY).put(MARKER, [b"{}"])
    assert fs.snapshot()[f"/plain/{MARKER}"] == b"{}"
    assert fs.snapshot()[f"/encrypted/{MARKER}"] != b"{}"
    assert b"".join(open_destination(fs, "/plain").read(MARKER)) == b"{}"
    assert b"".join(open_destination(fs, "/encrypted", key=KEY).read(MARKER)) == b"{}"


def test_a_key_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    fs = ForgetfulFileSystem()
    open_destination(fs, "/plain").put(MARKER, [b"{}"])
    open_destination(fs, "/encrypted", key=KEY).put(MARKER, [b"{}"])
    before = fs.snapshot()
    with pytest.raises(DestinationError, match=r"in /plain is not encrypted: leave out the key file, or begin"):
        open_destination(fs, "/plain", key=KEY)
    with pytest.raises(DestinationError, match=f"in /encrypted is encrypted: .* id is {KEY.id.hex()}, by --key-file"):
        open_destination(fs, "/encrypted")
    with pytest.raises(DestinationError, match=f"/encrypted was encrypted with another key: .*{OTHER.id.hex()}$"):
        open_destination(fs, "/encrypted", key=OTHER)
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
