"""Everything that runs in a run beside peers: our daemons, the servers that scripts start, the load process."""

import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import Bench, BenchmarkError
from benchmarks.kafka_door import Door, daemon_with_door
from benchmarks.peers.builds import about, compiled_build
from benchmarks.peers.cases import LISTENER, LISTENER_COMPILED, NATIVE, NATIVE_COMPILED
from benchmarks.peers.jobs import LoadProcess, load_process
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.kafka_frames import NEEDED
from benchmarks.peers.results import KAFKA, RABBITMQ, REDIS, Results
from benchmarks.peers.servers import PeerAbsentError, PeerServer, free_ports, script_server
from benchmarks.peers.sides import DELETE_DELAY_MS, Bare, Kafka, KafkaServer, Redis, Seglog
from benchmarks.processes import Build, sources

_NAMES: Final = {"kafka": KAFKA, "redis": REDIS, "rabbitmq": RABBITMQ}
"""Peers by the names of their scripts."""

WITHOUT: Final = ("native", "kafkas-wire", "pure", "bare")
"""What can be left out of a run."""

_KAFKA_SETTINGS: Final = (f"log.segment.delete.delay.ms={DELETE_DELAY_MS}", "log.cleaner.backoff.ms=200")
"""Deleted topics leave the disk soon, and a compaction begins soon; neither changes what is measured."""

_SYNCED_SETTINGS: Final = (*_KAFKA_SETTINGS, "log.flush.interval.messages=1")


class Asked(NamedTuple):
    """What a run is to be made of."""

    scripts: Mapping[str, Path]
    """By the peer."""
    compiled: Path | None
    without: Collection[str]


class OurBuild(NamedTuple):
    """A build of seglog, and the daemon that runs it."""

    build: Build
    opened: Door
    native: str | None
    """The name of the side; None where it is left out."""
    listener: str | None


@dataclass(slots=True)
class Field:
    """Everything that runs; what was left out is not there."""

    load: LoadProcess
    builds: list[OurBuild] = field(default_factory=list)
    natives: dict[str, Seglog] = field(default_factory=dict)
    """By the side."""
    listeners: dict[str, Kafka[Door]] = field(default_factory=dict)
    kafkas: dict[str, Kafka[PeerServer]] = field(default_factory=dict)
    """Kafka, and others that speak its protocol."""
    kafka_script: Path | None = None
    """It runs Kafka's tools, too."""
    redis: Redis | None = None
    rabbitmq_script: Path | None = None
    bare: Bare | None = None
    filled: set[int] = field(default_factory=set)
    """The ports of the servers that have the topic that is read."""

    def speakers(self) -> Iterator[tuple[str, Kafka[Door] | Kafka[PeerServer]]]:
        """All that speak Kafka's protocol, and the names of their sides."""
        yield from self.listeners.items()
        yield from self.kafkas.items()

    def servers(self) -> dict[str, KafkaServer]:
        """The same as servers alone."""
        return {name: speaker.server for name, speaker in self.speakers()}

    @contextmanager
    def synced_servers(self, bench: Bench) -> Iterator[dict[str, KafkaServer]]:
        """The same, with a Kafka that syncs all its topics before it answers, those of its own, too."""
        servers = self.servers()
        with ExitStack() as stack:
            if self.kafka_script is not None:
                directory = stack.enter_context(bench.fresh_directory()) / "kafka"
                servers[KAFKA] = stack.enter_context(script_server(self.kafka_script, directory, _SYNCED_SETTINGS))
            yield servers

    @contextmanager
    def rabbitmq(self, bench: Bench) -> Iterator[PeerServer | None]:
        """RabbitMQ, which runs while it is measured alone: an idle Erlang is not idle."""
        with ExitStack() as stack:
            if self.rabbitmq_script is not None:
                directory = stack.enter_context(bench.fresh_directory()) / "rabbitmq"
                yield stack.enter_context(script_server(self.rabbitmq_script, directory, port=free_ports(4)))
            else:
                yield None


def scripts_of(paths: Sequence[Path]) -> dict[str, Path]:
    """The scripts of ``--peers`` by the name of the peer.

    A path is a script, a folder with a script of its own name, or a directory of such folders, of which Kafka,
    Redis and RabbitMQ are taken.
    """
    found: dict[str, Path] = {}
    for path in paths:
        own = path if path.is_file() else path / path.absolute().name
        if own.is_file():
            found[_NAMES.get(own.stem, own.stem)] = own
        else:
            for stem, name in _NAMES.items():
                found.setdefault(name, path / stem / stem)
    return found


def start(bench: Bench, asked: Asked, results: Results, stack: ExitStack) -> Field:
    """Start all that is asked for. What cannot be is left out of the field, and named in ``results``."""
    directory = stack.enter_context(bench.fresh_directory())
    running = Field(stack.enter_context(load_process("benchmarks.peers.load")))
    _start_ours(bench, asked, running, directory, results, stack)
    for name, script in asked.scripts.items():
        try:
            # A stack of its own: what of a peer was started before the rest could not be is stopped at once.
            with ExitStack() as started:
                results.versions[name] = _STARTS.get(name, _start_speaker)(running, name, script, directory, started)
                stack.push(started.pop_all())
        except PeerAbsentError as error:
            results.left_out[name] = str(error)
    if "bare" not in asked.without:
        running.bare = Bare(directory, running.load)
    return running


def _start_ours(
    bench: Bench, asked: Asked, running: Field, directory: Path, results: Results, stack: ExitStack
) -> None:
    builds: list[tuple[Build, str, str, str]] = []
    if "pure" not in asked.without:
        build = sources()
        found = about(build)
        if found.compiled:
            raise BenchmarkError("the sources of this checkout have compiled modules beside them")
        builds.append((build, found.text, NATIVE, LISTENER))
    if asked.compiled is not None:
        build, found = compiled_build(asked.compiled, directory / "compiled")
        builds.append((build, found.text, NATIVE_COMPILED, LISTENER_COMPILED))
    for build, text, native, listener in builds:
        results.versions[f"seglog{', compiled' if native == NATIVE_COMPILED else ''}"] = text
        opened = stack.enter_context(daemon_with_door(bench, build=build))
        ours = OurBuild(
            build,
            opened,
            None if "native" in asked.without else native,
            None if "kafkas-wire" in asked.without else listener,
        )
        running.builds.append(ours)
        if ours.native is not None:
            running.natives[ours.native] = Seglog("seglog", opened.running, running.load)
        if ours.listener is not None:
            running.listeners[ours.listener] = Kafka(ours.listener, opened, running.load)


def _start_kafka(running: Field, name: str, script: Path, directory: Path, stack: ExitStack) -> str:
    server = stack.enter_context(script_server(script, directory / "kafka", _KAFKA_SETTINGS, needs=("java",)))
    running.kafkas[name] = Kafka(name, server, running.load)
    running.kafka_script = script.absolute()
    version = server.search_log(r"Kafka version: (\S+)")
    return f"{version} on {_java_version()}"


def _start_redis(running: Field, _name: str, script: Path, directory: Path, stack: ExitStack) -> str:
    server = stack.enter_context(script_server(script, directory / "redis"))
    running.redis = Redis(server, running.load)
    return server.search_log(r"Redis version=([^\s,]+)")


def _start_speaker(running: Field, name: str, script: Path, directory: Path, stack: ExitStack) -> str:
    """Whatever else speaks Kafka's protocol."""
    server = stack.enter_context(script_server(script, directory / f"peer-{name}"))
    try:
        with connect_kafka(server.port) as connection:
            missing = connection.not_offered(NEEDED)
    except (BenchmarkError, OSError) as error:
        raise PeerAbsentError(f"it does not answer Kafka's ApiVersions: {error}") from error
    if missing:
        raise PeerAbsentError(f"it does not offer {', '.join(missing)}")
    running.kafkas[name] = Kafka(name, server, running.load)
    return f"of {script}"


def _find_rabbitmq(running: Field, _name: str, script: Path, _directory: Path, _stack: ExitStack) -> str:
    if not script.is_file():
        raise PeerAbsentError(f"{script} is missing")
    running.rabbitmq_script = script
    return f"of {script}"


_STARTS: Final = {KAFKA: _start_kafka, REDIS: _start_redis, RABBITMQ: _find_rabbitmq}


def _java_version() -> str:
    java = shutil.which("java") or "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', said)
    return f"Java {found[1] if found else 'of an unknown version'}"
