"""Where the files of an archive lie: a folder, object stores of several kinds, and who may write there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from obstore.store import LocalStore, MemoryStore

from seglog.cli.exits import InputError
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.buckets import Bucket
from seglog_spark.tables.claims import CLAIM, DEAD_SECONDS, RENEW_SECONDS, Claim
from seglog_spark.tables.manifest import MANIFEST, Manifest, load, save
from seglog_spark.tables.parquet_files import find_file, write_file
from seglog_spark.tables.stores import Folder, Store
from tests.spark.jobs.records import batches

PLACE = "s3://bucket/archive"


class Ignoring(Bucket):
    """An object store that takes conditions of writes and does not look at them."""

    def _put(self, name: str, content: bytes, **_: Any) -> None:
        super()._put(name, content)


@pytest.fixture(params=["folder", "memory", "local", "ignoring"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A local store of the library refuses writes on a condition; the one in memory keeps to them."""
    if request.param == "folder":
        return Folder(tmp_path / "archive")
    kind = Ignoring if request.param == "ignoring" else Bucket
    return kind(PLACE, LocalStore(tmp_path) if request.param == "local" else MemoryStore())


def test_files_are_there_whole_or_not_at_all(store: Store) -> None:
    for absent in (store.read, store.size):
        with pytest.raises(FileNotFoundError):
            absent("t-0/a")
    store.remove("t-0/a")
    with store.new("t-0/a") as path:
        path.write_bytes(b"first")
    with pytest.raises(ZeroDivisionError), store.new("t-0/a") as path:
        assert path.write_bytes(b"half") // 0
    store.write("t-0/b", b"second")
    store.write("t-0/b", b"third")
    assert (store.read("t-0/a"), store.read("t-0/b"), store.size("t-0/b")) == (b"first", b"third", 5)
    store.write("_top", b"")
    assert store.read("_top") == b""
    store.write("_top", b"as it was read")
    assert store.read("_top") == b"as it was read"
    assert sorted(store.names()) == ["_top", "t-0/a", "t-0/b"]
    assert sorted(store.names("t-0")) == ["t-0/a", "t-0/b"]
    store.remove("t-0/a")
    assert list(store.names("t-0")) == ["t-0/b"]


def test_parquet_is_written_found_and_read(store: Store) -> None:
    r = OffsetRange("t", 1, 100, 160)
    assert find_file(store, r) is None
    written = write_file(store, r, batches(r), "zstd")
    assert find_file(store, r) == written
    assert pq.ParquetFile(store.open(written.path)).read(["offset"]).column(0).to_pylist() == [*range(100, 160)]


@pytest.mark.parametrize("kind", [Bucket, Ignoring])
def test_a_manifest_that_another_run_has_written_is_not_replaced(kind: type[Bucket]) -> None:
    store, other = (kind(PLACE, objects) for objects in [MemoryStore()] * 2)
    assert load(store) is None
    save(store, Manifest("t", "id"))
    save(store, Manifest("t", "id", partitions={0: (0, 5)}))
    assert load(other) == Manifest("t", "id", partitions={0: (0, 5)})
    save(other, Manifest("t", "id", partitions={0: (0, 9)}))
    with pytest.raises(InputError, match=f"{MANIFEST} was written by another run meanwhile: nothing of it is replaced"):
        save(store, Manifest("t", "id", partitions={0: (0, 7)}))
    assert load(other) == Manifest("t", "id", partitions={0: (0, 9)})


def test_a_write_that_was_answered_too_late_is_no_other_runs() -> None:
    class Late(Bucket):
        def _put(self, name: str, content: bytes, **more: Any) -> None:
            super()._put(name, content, **more)
            super()._put(name, content, **more)  # as the library does after a connection that broke

    late = Late(PLACE, MemoryStore())
    assert load(late) is None
    save(late, Manifest("t", "id"))
    assert load(late) == Manifest("t", "id")


def claim_of(store: Store, while_it_sleeps: Callable[[float], None] = lambda _: None) -> Claim:
    return Claim(store, while_it_sleeps)


def buckets() -> list[Bucket]:
    """Two that see the same objects, as two runs do."""
    objects = MemoryStore()
    return [Ignoring(PLACE, objects) for _ in range(2)]


def test_a_claim_is_dead_when_it_does_not_change_for_long() -> None:
    first, second = buckets()
    claim_of(first).take()
    slept: list[float] = []
    taking = claim_of(second, slept.append)
    taking.take()
    assert sum(slept[:-1]) == DEAD_SECONDS
    taking.check()
    taking.renew()
    taking.release()
    assert CLAIM not in set(second.names())


def test_a_claim_that_is_renewed_keeps_others_away_and_says_whose_it_is() -> None:
    first, second = buckets()
    held = claim_of(first)
    held.take()
    slept: list[float] = []

    def meanwhile(seconds: float) -> None:
        slept.append(seconds)
        held.renew()

    with pytest.raises(InputError, match=rf"another run \(process {os.getpid()} on \S+, since \S+\) is writing to s3"):
        claim_of(second, meanwhile).take()
    assert slept == [RENEW_SECONDS]
    held.check()


def test_a_claim_that_is_released_meanwhile_is_taken() -> None:
    first, second = buckets()
    held = claim_of(first)
    held.take()
    taking = claim_of(second, lambda _: held.release())
    taking.take()
    taking.check()


def test_of_two_runs_that_found_no_claim_one_has_it() -> None:
    first, second = buckets()
    others = claim_of(second)

    def meanwhile(_: float) -> None:
        others._write()  # it had looked before the first one wrote

    with pytest.raises(InputError, match="another run"):
        claim_of(first, meanwhile).take()
    others.check()


def test_of_two_runs_that_write_at_once_the_second_is_told_who_has_it() -> None:
    class Met(Bucket):
        def write(self, name: str, content: bytes) -> None:
            claim_of(Bucket(PLACE, self.given)).take()
            super().write(name, content)

    with pytest.raises(InputError, match=rf"another run \(process {os.getpid()} on \S+, since \S+\) is writing to s3"):
        claim_of(Met(PLACE, MemoryStore())).take()


def test_an_owner_that_stood_still_loses_its_claim_and_commits_nothing_more() -> None:
    first, second = buckets()
    still = claim_of(first)
    still.take()
    taking = claim_of(second)
    taking.take()
    for step in (still.check, still.renew):
        with pytest.raises(InputError, match="another run"):
            step()
    still.release()
    taking.check()


def test_what_is_no_claim_is_left_alone() -> None:
    bucket, _ = buckets()
    bucket.write(CLAIM, b"{}")
    with pytest.raises(InputError, match="is no claim of seglog"):
        claim_of(bucket).take()


def test_a_second_run_on_a_folder_is_told_who_has_it(tmp_path: Path) -> None:
    store = Folder(tmp_path / "archive")
    with (
        store.claimed(),
        pytest.raises(InputError, match=rf"another run \(process {os.getpid()} on \S+, since \S+\) is writing to /"),
        store.claimed(),
    ):
        pass
    with store.claimed() as check:
        check()
