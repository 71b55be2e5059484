"""A daemon that Kafka's clients can reach, too."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.harness import Bench
from benchmarks.peers.servers import free_ports
from benchmarks.processes import Build, Daemon, daemon


@dataclass(frozen=True, slots=True)
class Door:
    """The Kafka port of a daemon."""

    running: Daemon
    port: int

    @property
    def pid(self) -> int:
        """Of the daemon."""
        return self.running.pid


@contextmanager
def daemon_with_door(bench: Bench, *arguments: str, build: Build | None = None) -> Iterator[Door]:
    """A daemon that listens for Kafka's clients, too."""
    port = free_ports()
    with daemon(bench, "--set", f"listeners=PLAINTEXT://127.0.0.1:{port}", *arguments, build=build) as running:
        yield Door(running, port)
