"""``seglog mirror`` beside Apache's MirrorMaker 2, from a daemon to a real Kafka and from it to the daemon.

MirrorMaker's jars are those that ``make interop`` leaves below ``build/interop/frameworks``. It has four tasks, one for
each partition, a heap of 1 GB, and the policy that keeps names of topics; all else is as it comes.
"""

import importlib.util
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import REPOSITORY, Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.kafka_door import daemon_with_door
from benchmarks.peers.servers import PeerAbsentError, peer_server
from benchmarks.processes import cpu_seconds, environment, resident_bytes

_JARS: Final = REPOSITORY / "build" / "interop" / "frameworks"
_PARTITIONS: Final = 4
_VALUE: Final = b"v" * 100
_SILENT_SECONDS: Final = 8.0
_SECONDS_MAX: Final = 120.0

_MIRROR_MAKER: Final = """
clusters = a, b
a.bootstrap.servers = {source}
b.bootstrap.servers = {target}
a->b.enabled = true
a->b.topics = {topic}
b->a.enabled = false
tasks.max = 4
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
sync.group.offsets.enabled = true
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
"""


@dataclass(frozen=True)
class Copied:
    """How a copy of a topic went."""

    seconds: float
    """From starting the command to the last record."""
    rate: float
    """Records/s from the first record to the last."""
    cpu: float
    """Seconds of the command's process."""
    memory: float
    """The most that was resident, in MB."""
    again: int
    """Records that are in the target beyond those of the source, after a SIGKILL half way and another start."""


class _Way:
    """From one address to another; ``mirror`` are the arguments that say so to ``seglog mirror``."""

    def __init__(self, source: str, target: str, mirror: Sequence[str], folder: Path, count: int) -> None:
        self.source = source
        self.target = target
        self._mirror = mirror
        self._folder = folder
        self._count = count
        self._topics = itertools.count()

    def seglog(self) -> Copied:
        """By ``seglog mirror``."""
        return self._copied(lambda topic: [sys.executable, "-m", "seglog", "mirror", *self._mirror, topic])

    def mirror_maker(self) -> Copied:
        """By MirrorMaker 2."""
        return self._copied(self._mirror_maker)

    def _mirror_maker(self, topic: str) -> list[str]:
        config = self._folder / "mm2.properties"
        config.write_text(_MIRROR_MAKER.format(source=self.source, target=self.target, topic=topic))
        options = ["-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{_JARS}:{_JARS}/*"]
        return ["java", *options, "org.apache.kafka.connect.mirror.MirrorMaker", str(config)]

    def _copied(self, command: Callable[[str], list[str]]) -> Copied:
        topic = f"t{self.source.replace(':', '-')}-{next(self._topics)}"
        _fill(self.source, topic, self._count)
        began = time.perf_counter()
        with self._running(command(topic)) as process:
            first = self._wait(process, topic, 1)
            last = self._wait(process, topic, self._count)
            cpu, memory = cpu_seconds(process.pid), resident_bytes(process.pid, "VmHWM") / 1e6
        rate = self._count / max(last - first, 0.001)
        return Copied(last - began, rate, cpu, memory, self._again(command, f"{topic}-killed"))

    def _again(self, command: Callable[[str], list[str]], topic: str) -> int:
        _fill(self.source, topic, self._count)
        with self._running(command(topic)) as process:
            self._wait(process, topic, self._count // 2)
        with self._running(command(topic)) as process:
            self._wait(process, topic, self._count)
            changed, found = time.perf_counter(), 0
            while time.perf_counter() - changed < _SILENT_SECONDS:
                if (now := _count(self.target, topic)) != found:
                    changed, found = time.perf_counter(), now
                time.sleep(0.2)
        return found - self._count

    def _wait(self, process: "subprocess.Popen[bytes]", topic: str, count: int) -> float:
        """When the target had so many records."""
        give_up = time.perf_counter() + _SECONDS_MAX
        while (found := _count(self.target, topic)) < count:
            if process.poll() is not None or time.perf_counter() > give_up:
                said = (self._folder / "mirror.log").read_text(errors="replace")[-1000:]
                raise BenchmarkError(f"{topic} has {found} of {count} records: {said}")
            time.sleep(0.05)
        return time.perf_counter()

    @contextmanager
    def _running(self, command: Sequence[str]) -> "Iterator[subprocess.Popen[bytes]]":
        with (self._folder / "mirror.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


_ADMINS: Final[dict[str, Any]] = {}
"""By address. One that was asked for a topic that was not there does not learn of it later."""


def _count(address: str, topic: str) -> int:
    """All records of a topic by its ends; 0 while it is not there."""
    from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - it may be absent
    from confluent_kafka.admin import AdminClient, OffsetSpec  # noqa: PLC0415

    if address not in _ADMINS:
        _ADMINS[address] = AdminClient({"bootstrap.servers": address, "log_level": 0})
    asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(_PARTITIONS)}
    try:
        return sum(found.result().offset for found in _ADMINS[address].list_offsets(asked).values())
    except KafkaException:
        del _ADMINS[address]
        return 0


def _fill(address: str, topic: str, count: int) -> None:
    """Records of 100 bytes with a key."""
    from confluent_kafka import Producer  # noqa: PLC0415 - it may be absent
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, _PARTITIONS, 1)])[topic].result()
    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 2_000_000, "log_level": 0}
    )
    for number in range(count):
        producer.produce(topic, _VALUE, b"k%d" % (number % 1000), number % _PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise BenchmarkError("the source could not be filled")


def _run(bench: Bench) -> Iterator[Row]:
    if importlib.util.find_spec("confluent_kafka") is None:
        yield Row("seglog mirror", "records/s", note="confluent-kafka is absent: the extra kafka")
        return
    if bench.kafka_scripts is None or not any(_JARS.glob("connect-mirror-*.jar")):
        yield Row("seglog mirror", "records/s", note="needs --beside-kafka, and what make interop leaves in build/")
        return
    count = bench.pick(1_000_000, 300_000)
    with bench.fresh_directory() as folder, daemon_with_door(bench) as door:
        try:
            with peer_server(bench.kafka_scripts, "kafka", folder / "kafka", needs=("java",)) as kafka:
                here, there = f"127.0.0.1:{door.port}", f"127.0.0.1:{kafka.port}"
                ours = ["--server", door.running.address, "--no-groups"]
                out = _Way(here, there, [*ours, "--to", f"kafka://{there}"], folder, count)
                back = _Way(there, here, [*ours, "--from", f"kafka://{there}"], folder, count)
                for name, way in (("to Kafka", out), ("from Kafka", back)):
                    mirror, beside = take_turns(bench.rounds, way.seglog, way.mirror_maker)
                    yield from _rows(name, count, mirror, beside)
        except PeerAbsentError as error:
            yield Row("seglog mirror", "records/s", note=str(error))


def _rows(name: str, count: int, mirror: Sequence[Copied], beside: Sequence[Copied]) -> Iterator[Row]:
    row = partial(Row, beside_name="MirrorMaker 2")
    yield row(f"{name}: first record to last", "records/s", [x.rate for x in mirror], [x.rate for x in beside])
    yield row(
        f"{name}: {count:,} records, from the start", "s", [x.seconds for x in mirror], [x.seconds for x in beside]
    )
    yield row(f"{name}, CPU", "s", [x.cpu for x in mirror], [x.cpu for x in beside])
    yield row(f"{name}, memory", "MB", [x.memory for x in mirror], [x.memory for x in beside])
    yield row(f"{name}: twice after a kill", "records", [x.again for x in mirror], [x.again for x in beside])


BENCHMARK: Final = Benchmark("mirror", "seglog mirror, with a real Kafka", "MirrorMaker 2", _run, 3600)
