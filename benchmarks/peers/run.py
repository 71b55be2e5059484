"""``python -m benchmarks --peers``: servers started, cases measured in turns, rows handed out as they come."""

import importlib.metadata
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.batches import FIRST_TIMESTAMP, batch_of, dated
from benchmarks.harness import MIB, Bench, BenchmarkError, deadline, take_turns
from benchmarks.kafka_door import Door, door
from benchmarks.peers import compaction, firehose, librdkafka
from benchmarks.peers.cases import APPENDS, COMPACTION_GOAL, FETCHES, GROUPS
from benchmarks.peers.jobs import LoadProcess, load_process
from benchmarks.peers.results import BARE, KAFKA, NATS, REDIS, SEGLOG, Measure, PeerRow, Results
from benchmarks.peers.servers import PeerAbsentError, PeerServer, peer_server
from benchmarks.peers.sides import DELETE_DELAY_MS, Bare, Kafka, Nats, Pace, Redis, Seglog, agree
from benchmarks.processes import daemon
from seglog_broker.version import VERSION
from seglog_protocol.errors import SeglogError

TITLES: Final[Mapping[str, str]] = {
    "kafka": "seglog through Kafka's protocol: the same requests as Kafka gets",
    "small": "appends, one record of 100 bytes a batch, ack os",
    "large": "appends, batches of records of 100 bytes, ack os",
    "disk": "appends, one record of 100 bytes a batch, ack disk",
    "fetch": "fetches of warm data, one at a time",
    "seeks": "offsets looked up by time, one at a time",
    "compaction": "compaction, one worker, 210 B records, 10 % keys, batches of 16 KiB",
    "firehose": "others at 50 requests/s beside a flood of appends, seglog alone",
}
_READ_BATCH_BYTES: Final = 16 * 1024
_KAFKA_SETTINGS: Final = (f"log.segment.delete.delay.ms={DELETE_DELAY_MS}", "log.cleaner.backoff.ms=200")
"""Deleted topics leave the disk soon, and a compaction begins soon; neither changes what is measured."""

_REDIS_SETTINGS: Final = ("appendfsync=no", "auto-aof-rewrite-percentage=0")
"""The file is rewritten between measurements, when the stream has been deleted, and never amid one."""

FLUSH_EACH: Final[Mapping[str, int]] = MappingProxyType({"flush_messages": 1})
"""The topic's setting with which Kafka syncs before it answers."""

_GROUP_SECONDS_MAX: Final = 600


@dataclass(slots=True)
class _Field:
    """Everything that runs; None stands for what was left out."""

    seglog: Seglog
    bare: Bare
    load: LoadProcess
    kafka: Kafka[PeerServer] | None = None
    nats: Nats | None = None
    redis: Redis | None = None


def measure(
    bench: Bench, scripts: Path, groups: Collection[str], results: Results, show: Callable[[str | PeerRow], None]
) -> None:
    """Add rows to ``results``, and ``show`` each, and before the rows of a group its title."""
    with ExitStack() as stack:
        bench.group = "peers"
        field = _start(bench, scripts, results, stack)
        show("")
        if field.kafka is not None and set(groups) - {"firehose"}:
            _warm_up(bench, field.kafka)
        for group in GROUPS:
            if group in groups:
                bench.group = group
                show(f"{group}: {TITLES[group]}")
                try:
                    with deadline(_GROUP_SECONDS_MAX, group):
                        for row in _GROUPS[group](bench, field):
                            results.rows.append(row)
                            show(row)
                except (BenchmarkError, SeglogError, OSError) as error:
                    bench.report(f"could not be measured: {error}")
                    show(f"    ({error})")


# --- Starting ---------------------------------------------------------------------------------------------------------


def _start(bench: Bench, scripts: Path, results: Results, stack: ExitStack) -> _Field:
    directory = stack.enter_context(bench.fresh_directory())
    load = stack.enter_context(load_process("benchmarks.peers.load"))
    running = stack.enter_context(daemon(bench))
    results.versions["seglog"] = f"{VERSION} on Python {sys.version.split()[0]}"
    field = _Field(Seglog(running, load), Bare(directory, load), load)
    for name, start in ((KAFKA, _start_kafka), (NATS, _start_nats), (REDIS, _start_redis)):
        try:
            # A stack of its own: what of a peer was started before the rest could not be is stopped at once.
            with ExitStack() as started:
                results.versions[name] = start(field, scripts, directory, started)
                stack.push(started.pop_all())
        except PeerAbsentError as error:
            results.left_out[name] = str(error)
    return field


def _start_kafka(field: _Field, scripts: Path, directory: Path, stack: ExitStack) -> str:
    server = stack.enter_context(peer_server(scripts, "kafka", directory / "kafka", _KAFKA_SETTINGS, needs=("java",)))
    field.kafka = Kafka(server, field.load, FLUSH_EACH)
    version = server.search_log(r"Kafka version: (\S+)")
    return f"{version} on {_java_version()}"


def _start_nats(field: _Field, scripts: Path, directory: Path, stack: ExitStack) -> str:
    _need_client("nats", "nats-py")
    by_ack = {
        "os": stack.enter_context(peer_server(scripts, "nats", directory / "nats-os")),
        "disk": stack.enter_context(peer_server(scripts, "nats", directory / "nats-disk", ["sync_interval=always"])),
    }
    field.nats = Nats(by_ack, stack.enter_context(load_process("benchmarks.peers.nats_load")))
    version = by_ack["os"].search_log(r"Version:\s+(\S+)")
    return f"{version} through nats-py {importlib.metadata.version('nats-py')}"


def _start_redis(field: _Field, scripts: Path, directory: Path, stack: ExitStack) -> str:
    _need_client("redis", "redis")
    server = stack.enter_context(peer_server(scripts, "redis", directory / "redis", _REDIS_SETTINGS))
    field.redis = Redis(server, stack.enter_context(load_process("benchmarks.peers.redis_load")))
    version = server.search_log(r"Redis version=([\d.]+)")
    return f"{version} through redis-py {importlib.metadata.version('redis')}"


def _need_client(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise PeerAbsentError(f"the package {package} is missing: pip install 'seglog[dev]'")


def _java_version() -> str:
    java = shutil.which("java") or "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', said)
    return f"Java {found[1] if found else 'of an unknown version'}"


def _warm_up(bench: Bench, kafka: Kafka[PeerServer]) -> None:
    """Java compiles what runs often: without this the first cases would measure that."""
    pace = Pace(bench)
    pace.seconds = bench.pick(5.0, 0.2)
    for case in (APPENDS[3], APPENDS[1], APPENDS[0]):
        kafka.append(case, pace)


# --- Groups -----------------------------------------------------------------------------------------------------------


def in_turns(bench: Bench, sides: Mapping[str, Callable[[], Measure]]) -> tuple[dict[str, list[Measure]], list[str]]:
    """Each side's rounds, and a note for each peer that failed, which has none. An error of seglog's is raised."""
    failed: dict[str, str] = {}

    def once(name: str, side: Callable[[], Measure]) -> Measure | None:
        if name in failed:
            return None
        try:
            return side()
        except (BenchmarkError, OSError) as error:
            if name == SEGLOG:
                raise
            failed[name] = f"{name} could not be measured: {error}"
            bench.report(failed[name])
            return None

    rounds = take_turns(bench.rounds, *(partial(once, name, side) for name, side in sides.items()))
    measured = {
        name: [one for one in values if one is not None]
        for name, values in zip(sides, rounds, strict=True)
        if name not in failed
    }
    return measured, list(failed.values())


def _appends(group: str, bench: Bench, field: _Field) -> Iterator[PeerRow]:
    pace, warm = Pace(bench), Pace(bench)
    warm.seconds = bench.pick(0.4, 0.05)
    for case in APPENDS:
        if case.group != group:
            continue
        with field.bare.appends(case, pace) as bare:
            sides: dict[str, Callable[[], Measure]] = {SEGLOG: partial(field.seglog.append, case, pace)}
            for name, peer in ((KAFKA, field.kafka), (NATS, field.nats), (REDIS, field.redis)):
                if peer is not None:
                    sides[name] = partial(peer.append, case, pace)
            sides[BARE] = bare
            field.seglog.append(case, warm)
            if field.kafka is not None:
                field.kafka.append(case, warm)
            measured, notes = in_turns(bench, {name: partial(_after_sync, side) for name, side in sides.items()})
        unit = "MB/s" if case.batch_bytes else "appends/s"
        yield PeerRow(group, case.name, unit, measured, case.goal, case.bare_goal, notes)


def _after_sync(side: Callable[[], Measure]) -> Measure:
    """Sync the disk before a measurement: writing back what the last server wrote would slow this one down."""
    os.sync()
    return side()


def _fetches(bench: Bench, field: _Field) -> Iterator[PeerRow]:
    batch, records = _fill(bench, field)
    pace = Pace(bench)
    for case in FETCHES:
        sides = {SEGLOG: field.seglog.fetches(case, pace, len(batch), records)}
        if field.kafka is not None:
            sides[KAFKA] = field.kafka.fetches(case, pace, len(batch), records)
        with field.bare.fetches(case, pace, field.seglog.segment()) as bare:
            measured, notes = in_turns(bench, {**sides, BARE: bare})
        yield PeerRow("fetch", case.name, "MB/s", measured, case.goal, notes=notes)


def _seeks(bench: Bench, field: _Field) -> Iterator[PeerRow]:
    batch, records = _fill(bench, field)
    count = _read_bytes(bench) // len(batch) * records
    source = random.Random(7)
    times = [FIRST_TIMESTAMP + source.randrange(count * 9 // 10) for _ in range(bench.pick(2000, 100))]
    pace = Pace(bench)
    sides = {SEGLOG: partial(field.seglog.seek, times, pace)}
    if field.kafka is not None:
        agree(field.seglog, field.kafka, times)
        sides[KAFKA] = partial(field.kafka.seek, times, pace)
    measured, notes = in_turns(bench, sides)
    yield PeerRow("seeks", "offset by time, depth 1", "seeks/s", measured, notes=notes)


def _read_bytes(bench: Bench) -> int:
    return bench.pick(512, 16) * MIB


def _fill(bench: Bench, field: _Field) -> tuple[bytes, int]:
    """Fill the topics that are read, once; a batch, and the records in it."""
    batch, records = batch_of(_READ_BATCH_BYTES)
    count = _read_bytes(bench) // len(batch)
    for side in (field.seglog, field.kafka):
        if side is not None and not side.is_filled:
            side.fill(dated(batch, count))
            side.is_filled = True
    return batch, records


def _compaction(bench: Bench, field: _Field) -> Iterator[PeerRow]:
    with compaction.cleaners(bench, None if field.kafka is None else field.kafka.server) as (ours, theirs):
        sides = {SEGLOG: ours.clean}
        if theirs is not None:
            sides[KAFKA] = theirs.clean
        measured, notes = in_turns(bench, sides)
    yield PeerRow("compaction", "compaction", "MB/s", measured, COMPACTION_GOAL, notes=notes)


def _through_kafkas_protocol(bench: Bench, field: _Field) -> Iterator[PeerRow]:
    """Both through Kafka's protocol: the same bytes go to seglog and to Kafka."""
    pace, warm = Pace(bench), Pace(bench)
    warm.seconds = bench.pick(0.4, 0.05)
    with door(bench, field.load) as seglog:
        batch, records = batch_of(_READ_BATCH_BYTES)
        _fill(bench, field)
        seglog.fill(dated(batch, _read_bytes(bench) // len(batch)))
        for case in APPENDS:
            seglog.append(case, warm)
            sides = {SEGLOG: partial(seglog.append, case, pace)}
            if field.kafka is not None:
                sides[KAFKA] = partial(field.kafka.append, case, pace)
            measured, notes = in_turns(bench, {name: partial(_after_sync, side) for name, side in sides.items()})
            yield PeerRow("kafka", case.name, "MB/s" if case.batch_bytes else "appends/s", measured, notes=notes)
        yield from _librdkafka(bench, field, seglog)
        for fetch in FETCHES:
            readers = {SEGLOG: seglog.fetches(fetch, pace, len(batch), records)}
            if field.kafka is not None:
                readers[KAFKA] = field.kafka.fetches(fetch, pace, len(batch), records)
            measured, notes = in_turns(bench, readers)
            yield PeerRow("kafka", fetch.name, "MB/s", measured, notes=notes)


def _librdkafka(bench: Bench, field: _Field, seglog: Kafka[Door]) -> Iterator[PeerRow]:
    python = librdkafka.python_with_librdkafka(bench.peers_python)
    if python is None:
        yield PeerRow("kafka", "librdkafka", "records/s", {}, notes=[librdkafka.ABSENT])
        return
    for step in librdkafka.STEPS:

        def rate(port: int, step: str = step) -> Measure:
            return Measure(librdkafka.rates(bench, python, port)[step])

        sides = {SEGLOG: partial(rate, seglog.server.port)}
        if field.kafka is not None:
            sides[KAFKA] = partial(rate, field.kafka.server.port)
        measured, notes = in_turns(bench, sides)
        yield PeerRow("kafka", f"librdkafka, {step} 100 B", "records/s", measured, notes=notes)


_GROUPS: Final[Mapping[str, Callable[[Bench, _Field], Iterator[PeerRow]]]] = {
    "kafka": _through_kafkas_protocol,
    "small": partial(_appends, "small"),
    "large": partial(_appends, "large"),
    "disk": partial(_appends, "disk"),
    "fetch": _fetches,
    "seeks": _seeks,
    "compaction": _compaction,
    "firehose": lambda bench, field: firehose.rows(bench, field.load),
}
