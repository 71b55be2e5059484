"""Processor time a request of the broker: an older build, this one without rules of access, and with 1,000 in force.

``python -m benchmarks.access --old PACKAGES [--new PACKAGES] [--rounds 10]``, folders that ``scripts/wheels.py`` makes.
The three serve in turns; a ratio is that of one round.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import BinaryIO, Final

import seglog
from benchmarks.batches import one_record
from benchmarks.group_wire import TOPIC, frame
from benchmarks.harness import Bench
from benchmarks.kafka_door import Door
from benchmarks.peers.builds import build_of
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.kafka_frames import fetch_frame, produce_frame
from benchmarks.peers.servers import free_ports
from benchmarks.processes import Daemon, cpu_seconds
from benchmarks.raw_client import GREETING, append_frame, open_socket
from seglog.core.access import AUTHORIZER, SWITCH, create_rules
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule
from seglog_protocol.kafka import messages

RULES: Final = 1_000
REQUESTS: Final = 30_000
DEPTH: Final = 100
"""Requests that are sent before the first of their answers is read."""

SIDES: Final = ("old", "no rules", f"{RULES:,} rules")


def frames() -> Mapping[str, bytes]:
    """Requests by name, each repeated."""
    batch = one_record()
    topic = messages.MetadataRequest.MetadataRequestTopic(name=TOPIC)
    return {
        "Produce": produce_frame(TOPIC, batch),
        "Fetch": fetch_frame(TOPIC, 0, partition_bytes=1),
        "Metadata": frame(messages.MetadataRequest(topics=[topic]), 12),
        "append": append_frame(TOPIC, [batch], "os"),
    }


def rules() -> Iterator[Rule]:
    """Rules of other accounts, and those that allow an anonymous client the requests that are measured."""
    for number in range(RULES - 3):
        pattern = PatternType.PREFIXED if number % 2 else PatternType.LITERAL
        who = f"User:{number % 50}"
        yield Rule(Kind.TOPIC, pattern, f"topic-{number}", who, "*", Operation.READ, Permission.ALLOW)
    for kind, operation in ((Kind.TOPIC, Operation.READ), (Kind.TOPIC, Operation.WRITE), (Kind.GROUP, Operation.READ)):
        name = TOPIC if kind is Kind.TOPIC else "workers"
        yield Rule(kind, PatternType.LITERAL, name, "User:ANONYMOUS", "*", operation, Permission.ALLOW)


@contextmanager
def served(bench: Bench, packages: Path | None, *, has_rules: bool) -> Iterator[Door]:
    """A broker with the topic, started again when it has rules."""
    build = None if packages is None else build_of(packages, bench.directory)
    port = free_ports()
    flags = ("--set", f"listeners=PLAINTEXT://127.0.0.1:{port}", "--set", "auto.create.topics.enable=false")
    with bench.fresh_directory() as directory:
        running = Daemon(bench, directory, *flags, build=build)
        running.start()
        with connect_kafka(port) as kafka:
            kafka.create_topic(TOPIC)
        if has_rules:
            with seglog.connect(running.address) as client:
                client.converse(create_rules(list(rules())))
            running.stop()
            enforced = ("--set", f"{SWITCH}={AUTHORIZER}", "--set", "super.users=User:admin")
            running = Daemon(bench, directory, *flags, *enforced, build=build)
            running.start()
        try:
            yield Door(running, port)
        finally:
            running.stop()


def microseconds(door: Door, name: str, request: bytes) -> float:
    """Processor time of the broker for one of many."""
    is_native = name == "append"
    with open_socket(door.running.port if is_native else door.port) as sock, sock.makefile("rb") as replies:
        if is_native:
            sock.sendall(GREETING)
            _skip(replies, 1)
        before = cpu_seconds(door.pid)
        for _ in range(REQUESTS // DEPTH):
            sock.sendall(request * DEPTH)
            _skip(replies, DEPTH)
        return (cpu_seconds(door.pid) - before) / REQUESTS * 1e6


def _skip(replies: BinaryIO, count: int) -> None:
    """Read so many frames; each is its length, four bytes, and that many bytes."""
    for _ in range(count):
        replies.read(int.from_bytes(replies.read(4), "big"))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(given.rounds, quick=False, directory=Path(folder), group="access")
        doors = [
            stack.enter_context(served(bench, packages, has_rules=has_rules))
            for packages, has_rules in ((given.old, False), (given.new, False), (given.new, True))
        ]
        for name, request in frames().items():
            times = [[microseconds(door, name, request) for door in doors] for _ in range(given.rounds + 1)][1:]
            shown = [f"{name:<13}{median(row[0] for row in times):6.2f} us"]
            for side in (1, 2):
                ratios = sorted(row[side] / row[0] for row in times)
                shown.append(f"{SIDES[side]} {median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
            print("   ".join(shown), flush=True)


if __name__ == "__main__":
    main()
