"""The blocking client with compiled modules beside the sources: records of 100 bytes, sent and read in a ``for`` loop.

Each side is a process of its own (``python -m benchmarks.clients ADDRESS COUNT``), whose packages PYTHONPATH names.
Without the wheel of ``make compiled`` the sources are measured alone.
"""

import json
import sys
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Final

import seglog
from benchmarks.batches import values
from benchmarks.harness import REPOSITORY, Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.processes import daemon, run_worker
from seglog_protocol import records

_TOPIC: Final = "bench-clients"
_WHATS: Final = ("produce", "produce with keys", "consume")


def run(bench: Bench) -> Iterator[Row]:
    """Rate, and processor time of the client, for each thing that it does."""
    count = bench.pick(200_000, 5_000)
    with bench.fresh_directory() as packages, daemon(bench) as running:
        sides = [partial(run_worker, "benchmarks.clients", running.address, str(count))]
        missing = _unpack_compiled_wheel(packages)
        if not missing:
            sides.append(partial(run_worker, "benchmarks.clients", running.address, str(count), packages=packages))
        sources, *others = take_turns(bench.rounds, *sides)
    compiled: list[Any] = others[0] if others else []
    if any(Path(one["records"]).suffix == ".py" for one in compiled) or Path(sources[0]["records"]).suffix != ".py":
        raise BenchmarkError("the builds that were compared are not a compiled one and the sources")
    for what in _WHATS:
        for key, unit, of in ((what, "records/s", _rate), (f"{what}, processor time", "ns a record", _cost)):
            pure = [of(one[key], count) for one in sources]
            yield Row(f"{what}, sources", unit, pure)
            yield Row(
                f"{what}, compiled", unit, [of(one[key], count) for one in compiled], pure, "sources", None, missing
            )


def _rate(seconds: float, count: int) -> float:
    return count / seconds


def _cost(seconds: float, count: int) -> float:
    return seconds / count * 1e9


def _unpack_compiled_wheel(folder: Path) -> str:
    """Unpack the wheel of ``make compiled`` into ``folder``; why there is none for these sources, or nothing."""
    suffix = EXTENSION_SUFFIXES[0]
    for path in (REPOSITORY / "dist").glob("seglog-*.whl"):
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            if f"seglog__mypyc{suffix}" not in names:
                continue
            sources = [name.removesuffix(suffix) + ".py" for name in names if "/" in name and name.endswith(suffix)]
            if all(wheel.read(name) == _source(name) for name in sources):
                wheel.extractall(folder)
                return ""
            return "the compiled wheel in dist is one of other sources: make compiled"
    return "there is no compiled wheel for this Python in dist: make compiled"


def _source(name: str) -> bytes:
    (path,) = (path for folder in ("protocol", "clients") if (path := REPOSITORY / folder / name).exists())
    return path.read_bytes()


# --- The client's process ---------------------------------------------------------------------------------------------


def main(address: str, count: int) -> dict[str, float | str]:
    """Seconds and processor time of it to produce ``count`` records until the last ack (os), and to consume them."""
    contents = values(count)
    keys = [b"%012d" % (number * 7919) for number in range(count)]  # each hashed, because none comes again
    measured: dict[str, float | str] = {"records": records.__file__}
    with seglog.connect(address) as client:
        client.create_topic(_TOPIC, 1)
        began = time.perf_counter(), time.process_time()
        with client.producer(_TOPIC, ack="os") as producer:
            for value in contents:
                producer.send(value)
        _note(measured, "produce", began)
        began = time.perf_counter(), time.process_time()
        with client.consumer(_TOPIC) as consumer:
            found = sum(1 for _ in consumer)
        _note(measured, "consume", began)
        began = time.perf_counter(), time.process_time()
        with client.producer(_TOPIC, ack="os") as producer:
            for key, value in zip(keys, contents, strict=True):
                producer.send(value, key)
        _note(measured, "produce with keys", began)
        client.delete_topic(_TOPIC)
    if found != count:
        raise SystemExit(f"{count} records were acknowledged, {found} came back")
    return measured


def _note(measured: dict[str, float | str], what: str, began: tuple[float, float]) -> None:
    wall, processor = began
    measured[what] = time.perf_counter() - wall
    measured[f"{what}, processor time"] = time.process_time() - processor


BENCHMARK = Benchmark("clients", "blocking client, one partition, ack os, values of 100 bytes", "the sources", run)

if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
