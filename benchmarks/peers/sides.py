"""The servers of a run, each with what it takes to measure one case once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

from benchmarks.fetch import requests_through
from benchmarks.harness import MB, MIB, Bench, BenchmarkError
from benchmarks.peers import kafka_frames
from benchmarks.peers.cases import AppendCase, FetchCase
from benchmarks.peers.jobs import LoadProcess, exchange_job, flood_job
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.results import Measure
from benchmarks.processes import Daemon, bare_server, cpu_seconds
from benchmarks.raw_client import append_frame, connect, encode, fetch_frame, fill, time_frame
from seglog_protocol.messages import HelloRequest

APPEND_TOPIC: Final = "bench-peers-append"
READ_TOPIC: Final = "bench-peers-read"
_GREETING: Final = encode(HelloRequest("seglog", "benchmarks"))
_SAMPLES: Final = 20
DELETE_DELAY_MS: Final = 1000
"""What has been measured leaves the disk before much of it is written back, which would slow the next one."""


class Pace:
    """How long one measurement takes, and how much it may leave on the disk."""

    def __init__(self, bench: Bench) -> None:
        self.seconds = bench.pick(1.5, 0.1)
        self.bytes_max = bench.pick(512, 16) * MIB


def run_beside(load: LoadProcess, job: dict[str, Any], pid: int) -> dict[str, Any]:
    """What a load process found, and as ``server_cpu_seconds`` the processor time of the server ``pid`` meanwhile."""
    cpu = cpu_seconds(pid)
    found = load.run(job)
    return found | {"server_cpu_seconds": cpu_seconds(pid) - cpu}


def measure_of(value: float, found: dict[str, Any]) -> Measure:
    """``value`` with what a load process found."""
    cpu = found.get("server_cpu_seconds")
    return Measure(
        value,
        client_busy=found["client_cpu_seconds"] / found["seconds"],
        server_cpu_us=None if cpu is None else cpu / found["answered"] * 1e6,
        p50_us=found["p50"] * 1e6 if "p50" in found else None,
        p99_us=found["p99"] * 1e6 if "p99" in found else None,
    )


def appended(case: AppendCase, found: dict[str, Any], request_bytes: int) -> Measure:
    """In the unit of the case."""
    rate = found["answered"] / found["seconds"]
    return measure_of(rate * request_bytes / MB if case.batch_bytes else rate, found)


def _answered_as_stored(name: str, answered: int, records: int, stored: int) -> None:
    if answered * records != stored:
        raise BenchmarkError(f"{name} answered {answered} appends of {records} records, its log has {stored}")


def _exchanged(found: dict[str, Any], worths: Sequence[int]) -> Measure:
    """Requests in turn as MB/s of what their replies are worth, in bytes; BenchmarkError where they were shorter."""
    rounds, rest = divmod(found["answered"], len(worths))
    total = rounds * sum(worths) + sum(worths[:rest])
    if found["received"] < total:
        raise BenchmarkError(f"{found['answered']} fetches gave {found['received']} bytes instead of {total}")
    return measure_of(total / MB / found["seconds"], found)


class Seglog:
    """A daemon with its default configuration."""

    def __init__(self, running: Daemon, load: LoadProcess) -> None:
        self._running = running
        self._load = load

    def append(self, case: AppendCase, pace: Pace) -> Measure:
        """To a new topic, deleted afterwards."""
        batch, records = case.batch()
        job = flood_job(
            self._running.port,
            append_frame(APPEND_TOPIC, [batch], case.ack),
            greeting=_GREETING,
            connections=case.connections,
            depth=case.depth,
            seconds=pace.seconds,
            bytes_max=pace.bytes_max,
        )
        with connect(self._running.port) as connection:
            connection.create_topic(APPEND_TOPIC, file_delete_delay_ms=DELETE_DELAY_MS)
            found = run_beside(self._load, job, self._running.pid)
            _answered_as_stored("seglog", found["answered"], records, connection.end_offset(APPEND_TOPIC))
            connection.delete_topic(APPEND_TOPIC)
        return appended(case, found, len(batch))

    def fill(self, batches: Iterator[bytes]) -> None:
        """The topic that is read."""
        with connect(self._running.port) as connection:
            connection.create_topic(READ_TOPIC)
            fill(connection, READ_TOPIC, batches)

    def fetches(self, case: FetchCase, pace: Pace, batch_size: int, records: int) -> Callable[[], Measure]:
        """A function that reads once; the requests are made before."""
        with connect(self._running.port) as connection:
            end = connection.end_offset(READ_TOPIC)
            frames, chunk = requests_through(
                connection, READ_TOPIC, case.partition_bytes, batch_size=batch_size, records=records
            )
        worths = [chunk] * len(frames)
        worths[-1] = end // records * batch_size - chunk * (len(frames) - 1)
        job = exchange_job(self._running.port, frames, greeting=_GREETING, seconds=pace.seconds)
        return lambda: _exchanged(run_beside(self._load, job, self._running.pid), worths)

    def found(self, timestamps: Sequence[int]) -> list[int]:
        """The offset of the first record from each time (ms) on."""
        with connect(self._running.port) as connection:
            replies = [connection.ask_frame(time_frame(READ_TOPIC, at))[0] for at in timestamps]
        return [int(reply["partitions"][0]["offset"]) for reply in replies]

    def seek(self, timestamps: Sequence[int], pace: Pace) -> Measure:
        """Look up offsets by time, one after the other."""
        frames = [time_frame(READ_TOPIC, at) for at in timestamps]
        job = exchange_job(self._running.port, frames, greeting=_GREETING, seconds=pace.seconds)
        found = run_beside(self._load, job, self._running.pid)
        return measure_of(found["answered"] / found["seconds"], found)

    def segment(self) -> Path:
        """The file that a bare loop sends."""
        return self._running.directory / f"{READ_TOPIC}-0" / f"{0:020}.log"


class KafkaServer(Protocol):
    """What speaks Kafka's protocol on a port of 127.0.0.1."""

    @property
    def port(self) -> int:
        """Kafka's."""
        ...

    @property
    def pid(self) -> int:
        """Of the process."""
        ...


KafkaServerT = TypeVar("KafkaServerT", bound=KafkaServer)


class Kafka(Generic[KafkaServerT]):
    """One node that speaks Kafka's protocol. An append at ``disk`` has acks=all, to a topic with ``disk_config``."""

    def __init__(
        self,
        name: str,
        server: KafkaServerT,
        load: LoadProcess,
        disk_config: Mapping[str, int] = MappingProxyType({}),
        access: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """``access`` is what jobs get besides, such as another ``port`` and how to log in there."""
        self.name = name
        self.access = dict(access)
        self.server = server
        self._load = load
        self._disk_config = disk_config

    def append(self, case: AppendCase, pace: Pace) -> Measure:
        """To a new topic, deleted afterwards."""
        batch, records = case.batch()
        job = flood_job(
            self.server.port,
            kafka_frames.produce_frame(
                APPEND_TOPIC, batch, kafka_frames.ACKS_ALL if case.ack == "disk" else kafka_frames.ACKS_LEADER
            ),
            greeting=b"",
            connections=case.connections,
            depth=case.depth,
            seconds=pace.seconds,
            bytes_max=pace.bytes_max,
        )
        config = self._disk_config if case.ack == "disk" else {}
        with connect_kafka(self.server.port) as connection:
            refused = connection.create_topic_as_allowed(APPEND_TOPIC, **config)
            found = run_beside(self._load, job | self.access, self.server.pid)
            _answered_as_stored(self.name, found["answered"], records, connection.end_offset(APPEND_TOPIC))
            connection.delete_topic(APPEND_TOPIC)
        note = f"{self.name} was measured without what it refused: {refused}" if refused else ""
        return replace(appended(case, found, len(batch)), note=note)

    def fill(self, batches: Iterator[bytes]) -> None:
        """The topic that is read."""
        with connect_kafka(self.server.port) as connection:
            connection.create_topic(READ_TOPIC)
            connection.fill(READ_TOPIC, batches)

    def fetches(self, case: FetchCase, pace: Pace, batch_size: int, records: int) -> Callable[[], Measure]:
        """A function that reads once. Of each answer whole batches count: a consumer fetches the rest again."""
        frames, worths, offset = [], [], 0
        with connect_kafka(self.server.port) as connection:
            end = connection.end_offset(READ_TOPIC)
            while offset < end:
                whole = connection.fetched_bytes(READ_TOPIC, offset, case.partition_bytes) // batch_size
                if not whole:
                    raise BenchmarkError(f"{self.name} gave no whole batch at offset {offset}")
                frames.append(kafka_frames.fetch_frame(READ_TOPIC, offset, partition_bytes=case.partition_bytes))
                worths.append(whole * batch_size)
                offset += whole * records
        job = exchange_job(self.server.port, frames, greeting=b"", seconds=pace.seconds)
        return lambda: _exchanged(run_beside(self._load, job | self.access, self.server.pid), worths)

    def found(self, timestamps: Sequence[int]) -> list[int]:
        """The offset of the first record from each time (ms) on."""
        with connect_kafka(self.server.port) as connection:
            replies = [connection.ask(kafka_frames.time_frame(READ_TOPIC, at)) for at in timestamps]
        return [kafka_frames.listed(reply, READ_TOPIC)[1] for reply in replies]

    def seek(self, timestamps: Sequence[int], pace: Pace) -> Measure:
        """Look up offsets by time, one after the other."""
        frames = [kafka_frames.time_frame(READ_TOPIC, at) for at in timestamps]
        job = exchange_job(self.server.port, frames, greeting=b"", seconds=pace.seconds)
        found = run_beside(self._load, job | self.access, self.server.pid)
        return measure_of(found["answered"] / found["seconds"], found)


class Bare:
    """A bare loop that receives what seglog receives; see ``benchmarks.bare``."""

    def __init__(self, directory: Path, load: LoadProcess) -> None:
        self._directory = directory
        self._load = load

    @contextmanager
    def appends(self, case: AppendCase, pace: Pace) -> Iterator[Callable[[], Measure]]:
        """A function that floods it once."""
        batch, _ = case.batch()
        frame = append_frame(APPEND_TOPIC, [batch], case.ack)
        sink = str(self._directory / "sink")
        loop = "sync" if case.ack == "disk" else "write"
        with bare_server(loop if case.connections == 1 else f"{loop}s", sink) as port:
            job = flood_job(
                port,
                frame,
                greeting=b"",
                connections=case.connections,
                depth=case.depth,
                seconds=pace.seconds,
                bytes_max=pace.bytes_max,
            )
            yield lambda: appended(case, self._load.run(job), len(batch))

    @contextmanager
    def fetches(self, case: FetchCase, pace: Pace, segment: Path) -> Iterator[Callable[[], Measure]]:
        """A function that has it send pieces of ``segment``."""
        frame = fetch_frame(READ_TOPIC, 0, partition_bytes=case.partition_bytes)
        with bare_server("sendfile", "--chunk", str(case.partition_bytes), str(segment)) as port:
            job = exchange_job(port, [frame], greeting=b"", seconds=pace.seconds)
            yield lambda: _exchanged(self._load.run(job), [case.partition_bytes])


class Finder(Protocol):
    """A server whose topic is read."""

    def found(self, timestamps: Sequence[int], /) -> list[int]:
        """The offset of the first record from each time (ms) on."""
        ...


def agree(finders: Mapping[str, Finder], timestamps: Sequence[int]) -> None:
    """BenchmarkError where they find different offsets for the same times."""
    sample = timestamps[:_SAMPLES]
    found = {name: finder.found(sample) for name, finder in finders.items()}
    for name, offsets in found.items():
        for beside, others in found.items():
            if offsets != others:
                raise BenchmarkError(f"for times {sample} {name} finds {offsets}, {beside} {others}")
