"""Destinations of backups: how fast closed segments get there and back, beside Python's own copy of a file.

An object store is measured where SEGLOG_BENCH_STORE names one, as ``s3://bucket/path``, and the environment has its
credentials: ``tests/interop/object_stores.py`` has a server for it.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.harness import MB, MIB, Bench, Benchmark, Row, take_turns
from seglog_broker.backup.destination import Destination
from seglog_broker.backup.key_file import BackupKey
from seglog_broker.backup.opening import open_destination
from seglog_broker.storage.io.filesystem import PosixFileSystem

_STORE: Final = "SEGLOG_BENCH_STORE"
_FS: Final = PosixFileSystem()
_KEY: Final = BackupKey(bytes(32))
_SHORT: Final = 1000


def run(bench: Bench) -> Iterator[Row]:
    """Long files, to a directory plain, linked and encrypted, and to a store; then many short ones."""
    count, size = bench.pick((4, 128 * MIB), (2, 4 * MIB))
    with bench.fresh_directory() as path:
        sources = [path / f"source-{number}" for number in range(count)]
        for source in sources:
            source.write_bytes(os.urandom(size))
        os.sync()
        made: dict[str, Destination] = {
            "a directory": open_destination(_FS, f"{path}/plain"),
            "a directory, encrypted": open_destination(_FS, f"{path}/encrypted", key=_KEY),
        }
        store = os.environ.get(_STORE, "").rstrip("/")
        if store:
            made["an object store"] = open_destination(_FS, f"{store}/plain")
            made["an object store, encrypted"] = open_destination(_FS, f"{store}/encrypted", key=_KEY)
        else:
            yield Row("an object store", "MB/s", note=f"{_STORE} names none")
        total = count * size / MB
        for name, destination in made.items():
            there, beside = take_turns(
                bench.rounds,
                partial(_rate, total, partial(_put, destination, sources, size)),
                partial(_rate, total, partial(_copy, sources, path)),
            )
            yield Row(f"to {name}", "MB/s", there, beside, "shutil.copyfile and fsync")
            (back,) = take_turns(bench.rounds, partial(_rate, total, partial(_read, destination, count)))
            yield Row(f"back from {name}, from memory", "MB/s", back)
            for entry in list(destination.names()):
                destination.delete(entry.name)
        yield from _short_files(bench, path, made)


def _short_files(bench: Bench, path: Path, made: dict[str, Destination]) -> Iterator[Row]:
    short = path / "short"
    short.write_bytes(os.urandom(500))
    count = bench.pick(_SHORT, 20)
    for name, destination in made.items():
        (put,) = take_turns(bench.rounds, partial(_rate, count, partial(_put, destination, [short] * count, 500)))
        yield Row(f"files of 500 bytes to {name}", "files/s", put)
        for entry in list(destination.names()):
            destination.delete(entry.name)


def _rate(amount: float, work: Callable[[], None]) -> float:
    """So much a second."""
    began = time.perf_counter()
    work()
    return amount / (time.perf_counter() - began)


def _put(destination: Destination, sources: list[Path], size: int) -> None:
    for number, path in enumerate(sources):
        destination.put_file(f"files/{number}", str(path), size=size)


def _read(destination: Destination, count: int) -> None:
    for number in range(count):
        for _chunk in destination.read(f"files/{number}"):
            pass


def _copy(sources: list[Path], path: Path) -> None:
    for source in sources:
        copy = path / f"copy-{source.name}"
        shutil.copyfile(source, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())
        copy.unlink()


BENCHMARK = Benchmark(
    "destinations",
    "4 files of 128 MiB to and from destinations of backups, and 1,000 short ones; in process",
    "a plain copy of the same files, synced",
    run,
)
