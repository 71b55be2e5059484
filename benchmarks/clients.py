"""The blocking client: records of 100 bytes through ``send`` and out of a ``for`` loop, for each codec.

Then, where ``make compiled`` has left a wheel, the same with compiled modules, beside the sources.
"""

import time
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import seglog
from benchmarks.batches import FIRST_TIMESTAMP, values
from benchmarks.harness import REPOSITORY, Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.processes import daemon, run_worker
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import parse_header, verify_crc
from seglog_protocol.records import iter_records

TOPIC: Final = "bench-clients"
_BATCH_BYTES: Final = 256 * 1024  # the producer's default


def run(bench: Bench) -> Iterator[Row]:
    """A producer's and a consumer's row for each codec; each round consumes what it has just produced."""
    contents = values(bench.pick(100_000, 5_000))
    with daemon(bench) as running, seglog.connect(running.address) as client:
        for codec in Codec:
            sides = take_turns(
                bench.rounds,
                lambda codec=codec: _through_seglog(client, codec, contents),  # type: ignore[misc]
                lambda codec=codec: _codec_alone(codec, contents),  # type: ignore[misc]
            )
            for which, what in enumerate(("produce", "consume")):
                yield Row(
                    f"{what}, {codec.name.lower()}",
                    "records/s",
                    [len(contents) / pair[which] for pair in sides[0]],
                    [len(contents) / pair[which] for pair in sides[1]],
                    "codec alone",
                )
    yield from _compiled_beside_sources(bench)


def _compiled_beside_sources(bench: Bench) -> Iterator[Row]:
    whats = ("produce", "produce with keys", "consume")
    count = bench.pick(200_000, 5_000)
    with bench.fresh_directory() as packages, daemon(bench) as running:
        missing = _unpack_compiled_wheel(packages)
        if missing:
            for what in whats:
                yield Row(f"{what}, compiled", "records/s", note=missing)
            return
        compiled, sources = take_turns(
            bench.rounds,
            partial(run_worker, "benchmarks.client_run", running.address, str(count), packages=packages),
            partial(run_worker, "benchmarks.client_run", running.address, str(count)),
        )
    if any(Path(one["records"]).suffix == ".py" for one in compiled) or Path(sources[0]["records"]).suffix != ".py":
        raise BenchmarkError("the builds that were compared are not a compiled one and the sources")
    for what in whats:
        rates = [[count / one[what] for one in side] for side in (compiled, sources)]
        yield Row(f"{what}, compiled", "records/s", rates[0], rates[1], "the sources")
        work = f"{what}, processor time"
        costs = [[one[work] / count * 1e9 for one in side] for side in (compiled, sources)]
        yield Row(f"{what}, compiled", "ns of CPU a record", costs[0], costs[1], "the sources")


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


def _through_seglog(client: "seglog.Client", codec: Codec, contents: Sequence[bytes]) -> tuple[float, float]:
    """Seconds to produce all, until the last ack (os), and to consume all."""
    client.create_topic(TOPIC, 1)
    began = time.perf_counter()
    with client.producer(TOPIC, ack="os", compression=codec.name.lower()) as producer:
        for value in contents:
            producer.send(value)
    produced = time.perf_counter() - began
    began = time.perf_counter()
    with client.consumer(TOPIC) as consumer:
        count = sum(1 for _ in consumer)
    consumed = time.perf_counter() - began
    client.delete_topic(TOPIC)
    if count != len(contents):
        raise BenchmarkError(f"{len(contents)} records were acknowledged, {count} came back")
    return produced, consumed


def _codec_alone(codec: Codec, contents: Sequence[bytes]) -> tuple[float, float]:
    """Seconds to make the same batches, and to verify and open them, with nothing around it."""
    began = time.perf_counter()
    batches, builder = [], BatchBuilder()
    for value in contents:
        if not builder.try_append(FIRST_TIMESTAMP, None, value, size_max=_BATCH_BYTES):
            batches.append(builder.build(codec))
            builder = BatchBuilder()
            builder.append(FIRST_TIMESTAMP, None, value)
    batches.append(builder.build(codec))
    made = time.perf_counter() - began
    began = time.perf_counter()
    count = 0
    for batch in batches:
        header = parse_header(batch)
        assert verify_crc(batch, 0, header)
        count += sum(1 for _ in iter_records(header, batch))
    assert count == len(contents)
    return made, time.perf_counter() - began


BENCHMARK = Benchmark(
    "clients",
    "blocking client, one partition, ack os, values of 100 bytes that compress like events",
    "the record loop, checksum and compression in process, without client, network and broker",
    run,
)
