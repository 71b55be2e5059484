"""The servers of a run, each with what it takes to measure one case once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from benchmarks.batches import RECORD_BYTES
from benchmarks.harness import MB, BenchmarkError
from benchmarks.peers import kafka_frames
from benchmarks.peers.cases import Ack, AppendCase, FetchCase
from benchmarks.peers.jobs import LoadProcess, Pace, exchange_job, flood_job, talks_job
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.results import REDIS, Measure
from benchmarks.peers.servers import PeerServer
from benchmarks.processes import Daemon, bare_server, cpu_seconds
from benchmarks.raw_client import (
    GREETING,
    append_frame,
    connect,
    fetch_frame,
    fill,
    open_socket,
    requests_through,
    time_frame,
)

APPEND_TOPIC: Final = "bench-peers-append"
READ_TOPIC: Final = "bench-peers-read"
_SAMPLES: Final = 20
DELETE_DELAY_MS: Final = 1000
"""What has been measured leaves the disk before much of it is written back, which would slow the next one."""


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
        count=found["answered"],
    )


def talked(
    load: LoadProcess, talk: str, server: "KafkaServer", connections: int, seconds: float, *arguments: int
) -> Measure:
    """What counts a second of a talk with a server, whose ``port`` is the one of the talk's protocol."""
    found = run_beside(load, talks_job(server.port, talk, connections, seconds, *arguments), server.pid)
    return measure_of(found["answered"] / found["seconds"], found)


def appended(case: AppendCase, found: dict[str, Any], request_bytes: int) -> Measure:
    """In the unit of the case."""
    rate = found["answered"] / found["seconds"]
    return measure_of(rate * request_bytes / MB if case.batch_bytes else rate, found)


def answered_as_stored(name: str, answered: int, records: int, stored: int) -> None:
    """BenchmarkError where a log does not have as many records as were acknowledged."""
    if answered * records != stored:
        raise BenchmarkError(f"{name} answered {answered} appends of {records} records, its log has {stored}")


def _exchanged(found: dict[str, Any], worths: Sequence[int]) -> Measure:
    """Requests in turn as MB/s of what their replies are worth, in bytes; BenchmarkError where they were shorter."""
    rounds, rest = divmod(found["answered"], len(worths))
    total = rounds * sum(worths) + sum(worths[:rest])
    if found["received"] < total:
        raise BenchmarkError(f"{found['answered']} fetches gave {found['received']} bytes instead of {total}")
    return measure_of(total / MB / found["seconds"], found)


class KafkaServer(Protocol):
    """What listens on a port of 127.0.0.1, most of all for Kafka's protocol."""

    @property
    def port(self) -> int:
        """Kafka's, if it has several."""
        ...

    @property
    def pid(self) -> int:
        """Of the process."""
        ...


KafkaServerT = TypeVar("KafkaServerT", bound=KafkaServer)


class _Side(ABC, Generic[KafkaServerT]):
    """A server, and what it takes to measure it in its protocol."""

    greeting: ClassVar = b""

    def __init__(
        self, name: str, server: KafkaServerT, load: LoadProcess, access: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """``access`` is what jobs get besides, such as another ``port`` and how to log in there."""
        self.name = name
        self.server = server
        self.access = dict(access)
        self._load = load

    @abstractmethod
    def _offsets(self, frames: Sequence[bytes]) -> list[int]:
        """What look-ups by time found."""

    @abstractmethod
    def _time_frame(self, timestamp: int) -> bytes:
        """A look-up in the topic that is read."""

    def found(self, timestamps: Sequence[int]) -> list[int]:
        """The offset of the first record from each time (ms) on."""
        return self._offsets([self._time_frame(at) for at in timestamps])

    def seek(self, timestamps: Sequence[int], pace: Pace) -> Measure:
        """Look up offsets by time, one after the other."""
        found = self._exchange([self._time_frame(at) for at in timestamps], pace)
        return measure_of(found["answered"] / found["seconds"], found)

    def _exchange(self, frames: Sequence[bytes], pace: Pace) -> dict[str, Any]:
        return self._run(exchange_job(self.server.port, frames, pace, self.greeting))

    def _flood(self, frame: bytes, case: AppendCase, pace: Pace) -> dict[str, Any]:
        return self._run(flood_job(self.server.port, frame, case, pace, self.greeting))

    def _run(self, job: dict[str, Any]) -> dict[str, Any]:
        return run_beside(self._load, job | self.access, self.server.pid)


class Seglog(_Side[Daemon]):
    """A daemon with its default configuration."""

    greeting = GREETING

    def append(self, case: AppendCase, pace: Pace) -> Measure:
        """To a new topic, deleted afterwards."""
        batch, records = case.batch()
        with connect(self.server.port) as connection:
            connection.create_topic(APPEND_TOPIC, file_delete_delay_ms=DELETE_DELAY_MS)
            found = self._flood(append_frame(APPEND_TOPIC, [batch], case.ack), case, pace)
            answered_as_stored(self.name, found["answered"], records, connection.end_offset(APPEND_TOPIC))
            connection.delete_topic(APPEND_TOPIC)
        return appended(case, found, len(batch))

    def fill(self, batches: Iterator[bytes]) -> None:
        """The topic that is read."""
        with connect(self.server.port) as connection:
            connection.create_topic(READ_TOPIC)
            fill(connection, READ_TOPIC, batches)

    def fetches(self, case: FetchCase, pace: Pace, batch_size: int, records: int) -> Callable[[], Measure]:
        """A function that reads once; the requests are made before."""
        with connect(self.server.port) as connection:
            end = connection.end_offset(READ_TOPIC)
            frames, chunk = requests_through(
                connection, READ_TOPIC, case.partition_bytes, batch_size=batch_size, records=records
            )
        worths = [chunk] * len(frames)
        worths[-1] = end // records * batch_size - chunk * (len(frames) - 1)
        return lambda: _exchanged(self._exchange(frames, pace), worths)

    def _time_frame(self, timestamp: int) -> bytes:
        return time_frame(READ_TOPIC, timestamp)

    def _offsets(self, frames: Sequence[bytes]) -> list[int]:
        with connect(self.server.port) as connection:
            replies = [connection.ask_frame(frame)[0] for frame in frames]
        return [int(reply["partitions"][0]["offset"]) for reply in replies]

    def segment(self) -> Path:
        """The file that a bare loop sends."""
        return self.server.directory / f"{READ_TOPIC}-0" / f"{0:020}.log"


class Kafka(_Side[KafkaServerT]):
    """One node that speaks Kafka's protocol. An append at ``disk`` has acks=all, to a topic that syncs each batch."""

    def append(self, case: AppendCase, pace: Pace) -> Measure:
        """To a new topic, deleted afterwards."""
        batch, records = case.batch()
        is_synced = case.ack == "disk"
        acks = kafka_frames.ACKS_ALL if is_synced else kafka_frames.ACKS_LEADER
        with connect_kafka(self.server.port) as connection:
            refused = connection.create_topic_as_allowed(APPEND_TOPIC, **{"flush_messages": 1} if is_synced else {})
            found = self._flood(kafka_frames.produce_frame(APPEND_TOPIC, batch, acks), case, pace)
            answered_as_stored(self.name, found["answered"], records, connection.end_offset(APPEND_TOPIC))
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
        return lambda: _exchanged(self._exchange(frames, pace), worths)

    def _time_frame(self, timestamp: int) -> bytes:
        return kafka_frames.time_frame(READ_TOPIC, timestamp)

    def _offsets(self, frames: Sequence[bytes]) -> list[int]:
        with connect_kafka(self.server.port) as connection:
            replies = [connection.ask(frame) for frame in frames]
        return [kafka_frames.listed(reply, READ_TOPIC)[1] for reply in replies]


class Redis:
    """A stream of Redis, whose append-only file is at ack ``disk`` synced before it answers, otherwise each second."""

    def __init__(self, server: PeerServer, load: LoadProcess) -> None:
        self.server = server
        self.load = load

    def append(self, case: AppendCase, pace: Pace) -> Measure:
        """A record a request, to a new stream, deleted afterwards."""
        frame = redis_command("XADD", APPEND_TOPIC, "*", "value", "x" * RECORD_BYTES)
        self.ask("CONFIG", "SET", "appendfsync", redis_fsync(case.ack))
        job = flood_job(self.server.port, frame, case, pace) | {"redis": True}
        found = run_beside(self.load, job, self.server.pid)
        answered_as_stored(REDIS, found["answered"], 1, int(self.ask("XLEN", APPEND_TOPIC)))
        self.ask("DEL", APPEND_TOPIC)
        return appended(case, found, len(frame))

    def ask(self, *words: str) -> str:
        """The first line of the reply, without what kind it is of."""
        with open_socket(self.server.port) as sock, sock.makefile("rb") as replies:
            sock.sendall(redis_command(*words))
            line = replies.readline().decode().strip()
        if line[:1] in {"", "-"}:
            raise BenchmarkError(f"Redis answered {words[0]} with {line}")
        return line[1:]


def redis_command(*words: str) -> bytes:
    """A command as Redis reads it."""
    return "".join([f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]).encode()


def redis_fsync(ack: Ack) -> str:
    """The value of ``appendfsync``."""
    return "always" if ack == "disk" else "everysec"


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
            job = flood_job(port, frame, case, pace)
            yield lambda: appended(case, self._load.run(job), len(batch))

    @contextmanager
    def fetches(self, case: FetchCase, pace: Pace, segment: Path) -> Iterator[Callable[[], Measure]]:
        """A function that has it send pieces of ``segment``."""
        frame = fetch_frame(READ_TOPIC, 0, partition_bytes=case.partition_bytes)
        with bare_server("sendfile", "--chunk", str(case.partition_bytes), str(segment)) as port:
            job = exchange_job(port, [frame], pace)
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
