import base64
import os
from pathlib import Path

import pytest

from seglog_broker.__main__ import main
from seglog_broker.backup.encrypted_destination import BackupKey, KeyFileError, make_key_file, read_key_file


def test_a_key_that_was_made_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    made = make_key_file(str(path))
    assert read_key_file(str(path)).id == made.id
    assert path.stat().st_mode & 0o777 == 0o600
    assert make_key_file(f"{tmp_path}/another").id != made.id


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key_file(str(path))
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match="is there already, and a key is never overwritten"):
        make_key_file(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("key", [bytes(32), bytes(range(32)), b"\n" * 32, b"A" * 32])
def test_any_32_bytes_are_a_key_raw_or_in_base64(tmp_path: Path, key: bytes) -> None:
    for number, content in enumerate([key, base64.b64encode(key), base64.b64encode(key) + b"\r\n"]):
        path = tmp_path / str(number)
        path.write_bytes(content)
        path.chmod(0o600)
        assert read_key_file(str(path)).id == BackupKey(key).id


@pytest.mark.parametrize("content", [b"", bytes(31), bytes(33), b"password", base64.b64encode(bytes(31)), bytes(9999)])
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="has no key in it: it needs 32 bytes, or one line") as caught:
        read_key_file(str(path))
    assert "password" not in str(caught.value)


def test_a_key_that_others_can_read_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(KeyFileError, match="cannot be read: No such file"):
        read_key_file(str(path))
    make_key_file(str(path))
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match=f"can be read by others than its owner: chmod 600 {path}"):
        read_key_file(str(path))


def test_no_repr_shows_a_key() -> None:
    key = BackupKey(b"k" * 32)
    assert "kkk" not in repr(key) + str(vars(key).keys())


def test_the_command_makes_one_and_says_what_it_is_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "key"
    assert main(["backup-key", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"Made {path}, a key with the id {read_key_file(str(path)).id.hex()}." in printed
    assert path.read_text().strip() not in printed
    assert main(["backup-key", str(path)]) == 1
    assert "never overwritten" in capsys.readouterr().err
    assert main(["backup-key", f"{tmp_path}/no/key"]) == 1
    assert "could not be written: No such file" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["key"]  # noqa: PTH208 - names alone
