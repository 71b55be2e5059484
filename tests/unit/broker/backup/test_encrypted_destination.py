"""Encrypted backups, whose format is the documented one, and the files of their keys."""

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from seglog_broker.__main__ import main
from seglog_broker.backup.destination import Destination, DestinationError, MissingFileError
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.encrypted_destination import (
    CHUNK_BYTES,
    HEADER_BYTES,
    MAGIC,
    BackupKey,
    EncryptedDestination,
    KeyFileError,
    make_key_file,
    read_key_file,
)
from seglog_broker.backup.object_store import ObjectStoreDestination
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.support import each_case, examples

KEY = BackupKey(bytes(range(32)))
SEALED = CHUNK_BYTES + 16


def _made(fs: ForgetfulFileSystem, key: BackupKey = KEY) -> Destination:
    return EncryptedDestination(fs, DirectoryDestination(fs, "/backup"), key)


def _stored(content: bytes) -> bytes:
    fs = ForgetfulFileSystem()
    _made(fs).put("files/a", [content])
    return fs.snapshot()["/backup/files/a"]


def _read(stored: bytes, *, name: str = "files/a", key: BackupKey = KEY) -> bytes:
    fs = ForgetfulFileSystem()
    fs.load({f"/backup/{name}": stored})
    return b"".join(_made(fs, key).read(name))


@each_case("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7])
def test_what_is_put_is_read(size: int) -> None:
    content = os.urandom(size)
    stored = _stored(content)
    assert len(stored) == HEADER_BYTES + size + 16 * max(1, -(-size // CHUNK_BYTES))
    assert not size > 20 or content[:20] not in stored
    assert _read(stored) == content


@each_case("size", [20, CHUNK_BYTES, 3 * CHUNK_BYTES + 7])
@each_case("is_encrypted", [True, False])
def test_a_part_of_a_file_is_read_and_little_else(size: int, is_encrypted: bool) -> None:
    content, fs, throttle = os.urandom(size), ForgetfulFileSystem(), Throttle(None, lambda: 0.0, lambda _: None)
    plain = DirectoryDestination(fs, "/backup", throttle=throttle)
    store = ObjectStoreDestination(fs, MemoryStore(), "s3://bucket/path", throttle=throttle)
    for inner in (plain, store):
        destination = EncryptedDestination(fs, inner, KEY) if is_encrypted else inner
        destination.put("a", [content])
        for start in {0, 7, size // 2, size - 1, min(size - 1, CHUNK_BYTES), 2 * CHUNK_BYTES % size}:
            for end in {start + 1, start + 5, size, size + 9, start + CHUNK_BYTES}:
                before = throttle.total
                assert b"".join(destination.read("a", start, end)) == content[start:end]
                around = 2 * SEALED if is_encrypted else 0
                assert throttle.total - before <= max(0, min(end, size) - start) + around
            assert b"".join(destination.read("a", start)) == content[start:]


def test_a_new_file_is_put_where_there_is_none_and_encrypted() -> None:
    fs = ForgetfulFileSystem()
    assert [_made(fs).put_new("a", [b"mine"]), _made(fs).put_new("a", [b"more"])] == [True, False]
    assert b"".join(_made(fs).read("a")) == b"mine"
    assert b"mine" not in fs.snapshot()["/backup/a"]


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 400_000), max_size=12))
def test_chunks_of_any_sizes_give_the_same_file(sizes: list[int]) -> None:
    fs = ForgetfulFileSystem()
    content = os.urandom(sum(sizes))
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    _made(fs).put("a", [content[end - size : end] for end, size in zip(ends, sizes, strict=True)])
    assert b"".join(_made(fs).read("a")) == content


def test_the_format_is_the_documented_one() -> None:
    """Opened by code of its own, from the description of the module."""
    content = os.urandom(CHUNK_BYTES + 5)
    stored = _stored(content)
    assert stored.startswith(b"seglog encrypted 1\n")
    header, salt = stored[:43], stored[27:43]
    key = HKDF(SHA256(), 32, salt, b"seglog backup file files/a").derive(bytes(range(32)))
    assert stored[19:27] == HKDF(SHA256(), 8, None, b"seglog backup key id").derive(bytes(range(32)))
    first = AESGCM(key).decrypt(bytes(12), stored[43 : 43 + SEALED], header)
    last = AESGCM(key).decrypt(bytes(10) + b"\1\1", stored[43 + SEALED :], header)
    assert first + last == content


def test_the_same_file_twice_has_no_bytes_in_common_but_its_beginning() -> None:
    one, two = _stored(b"x" * 1000), _stored(b"x" * 1000)
    assert one[: HEADER_BYTES - 16] == two[: HEADER_BYTES - 16]
    assert one[HEADER_BYTES - 16 :][:16] != two[HEADER_BYTES - 16 :][:16]
    assert one[HEADER_BYTES:] != two[HEADER_BYTES:]


def test_a_file_of_the_source_is_put_and_never_linked() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/data/b": b"segment and tail"})
    destination = _made(fs)
    destination.put_file("files/b", "/data/b", size=7, link=True)
    assert b"".join(destination.read("files/b")) == b"segment"
    assert [name for name, _ in destination.names()] == ["files/b"]
    destination.delete("files/b")
    with pytest.raises(MissingFileError, match="has no files/b"):
        list(destination.read("files/b"))


def test_another_key_is_told_from_damage() -> None:
    other = BackupKey(os.urandom(32))
    with pytest.raises(
        DestinationError,
        match=f"/backup/files/a was encrypted with another key: it needs .* {KEY.id.hex()}, .* has {other.id.hex()}$",
    ):
        _read(_stored(b"content"), key=other)


def test_a_file_that_is_not_encrypted_is_not_believed() -> None:
    for content in (b"", b"plain", b"plain" * 100):
        with pytest.raises(DestinationError, match="is not encrypted, or was damaged"):
            _read(content)


def test_a_file_under_the_name_of_another_is_found_out() -> None:
    with pytest.raises(DestinationError, match="or the file has another one's name"):
        _read(_stored(b"content"), name="files/b")


def _swapped(stored: bytes) -> bytes:
    first, second = HEADER_BYTES, HEADER_BYTES + SEALED
    return stored[:first] + stored[second : second + SEALED] + stored[first:second] + stored[second + SEALED :]


@each_case(
    ("change", "sentence"),
    [
        (_swapped, "chunk 0, at about 0 bytes, was damaged"),
        (lambda stored: stored[:HEADER_BYTES] + stored[HEADER_BYTES + SEALED :], "chunk 0"),
        (lambda stored: stored[: HEADER_BYTES + 2 * SEALED], "was cut: its end is missing"),
        (lambda stored: stored[: HEADER_BYTES + SEALED], "was cut: its end is missing"),
        (lambda stored: stored[:HEADER_BYTES], "was cut: its end is missing"),
        (lambda stored: stored[: HEADER_BYTES - 1], "was cut: its end is missing"),
        (lambda stored: stored[:-1], "chunk 2"),
        (lambda stored: stored + b"x", "chunk 2"),
        (lambda stored: stored + stored[HEADER_BYTES:], "chunk 2"),
        (
            lambda stored: stored[: HEADER_BYTES - 1] + bytes([stored[HEADER_BYTES - 1] ^ 1]) + stored[HEADER_BYTES:],
            "chunk 0",
        ),
    ],
)
def test_what_was_moved_cut_or_added_is_found_out(change: Callable[[bytes], bytes], sentence: str) -> None:
    stored = _stored(bytes(2 * CHUNK_BYTES + 100))
    with pytest.raises(DestinationError, match=sentence):
        _read(change(stored))


def test_every_changed_bit_and_every_cut_is_found_out() -> None:
    stored = _stored(b"0123456789")
    for position in range(len(stored)):
        for bit in range(8):
            changed = bytearray(stored)
            changed[position] ^= 1 << bit
            with pytest.raises(DestinationError):
                _read(bytes(changed))
        with pytest.raises(DestinationError):
            _read(stored[:position])
    assert len(MAGIC) < HEADER_BYTES < len(stored)


def test_a_source_that_fails_leaves_nothing() -> None:
    fs = ForgetfulFileSystem()

    def broken() -> Iterator[bytes]:
        yield bytes(2 * CHUNK_BYTES)
        raise OSError(5, "bad sector")

    with pytest.raises(OSError, match="bad sector"):
        _made(fs).put("files/a", broken())
    assert list(_made(fs).names()) == []


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
