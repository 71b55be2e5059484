"""Processor time a request of the broker: an older build, this one without rules of access, and with 1,000 in force.

``python -m benchmarks.access --old PACKAGES [--new PACKAGES] [--rounds 10]``, folders that ``scripts/wheels.py`` makes.
The three serve in turns; a ratio is that of one round. Where other work on the machine moves these ratios,
``--instructions 100000`` counts the instructions of so many requests in place of time, which nothing moves: each broker
runs in ``valgrind``, which has to be on PATH, fifty times slower.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
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
from benchmarks.processes import Build, Daemon, cpu_seconds, sources
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


def in_valgrind(build: Build, folder: Path) -> Build:
    """The same build, whose instructions ``Instructions`` counts."""
    script = folder / "counted-python"
    options = f"--tool=callgrind --instr-atstart=no --log-file=/dev/null --callgrind-out-file={folder}/callgrind.%p"
    script.write_text(f'#!/bin/sh\nexec valgrind {options} {build.python} "$@"\n')
    script.chmod(0o755)
    return build._replace(python=str(script))


def instructions(folder: Path, pid: int) -> float:
    """Instructions of a process in valgrind since the first call; each call stops it for a moment."""
    for command in ("dump", "instrumentation on"):
        subprocess.run(["vgdb", f"--pid={pid}", *command.split()], check=True, capture_output=True)
    dumps = [path.read_text() for path in folder.glob(f"callgrind.{pid}.*")]
    return float(sum(int(found) for dump in dumps for found in re.findall(r"^totals: (\d+)", dump, re.MULTILINE)))


@contextmanager
def served(bench: Bench, packages: Path | None, *, has_rules: bool, is_counted: bool) -> Iterator[Door]:
    """A broker with the topic, started again when it has rules; with ``is_counted`` in valgrind."""
    build = sources() if packages is None else build_of(packages, bench.directory)
    build = in_valgrind(build, bench.directory) if is_counted else build
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


def microseconds(pid: int) -> float:
    """Processor time of a process."""
    return cpu_seconds(pid) * 1e6


def used(door: Door, name: str, request: bytes, count: int, meter: Callable[[int], float]) -> float:
    """What the broker used for one of ``count`` requests; ``meter`` says of a process what it has used so far."""
    is_native = name == "append"
    with open_socket(door.running.port if is_native else door.port) as sock, sock.makefile("rb") as replies:
        if is_native:
            sock.sendall(GREETING)
            _skip(replies, 1)
        before = 0.0
        for batch in range(count // DEPTH + 1):
            if batch == 1:  # the broker has learned the request from those before
                before = meter(door.pid)
            sock.sendall(request * DEPTH)
            _skip(replies, DEPTH)
        return (meter(door.pid) - before) / count


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
    parser.add_argument("--instructions", type=int, metavar="REQUESTS")
    given = parser.parse_args()
    if given.instructions and shutil.which("valgrind") is None:
        parser.error("valgrind, which counts instructions, is not on PATH: install it, or measure time")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(given.rounds, quick=False, directory=Path(folder), group="access")
        count, rounds, unit = REQUESTS, given.rounds, "us"
        meter: Callable[[int], float] = microseconds
        if given.instructions:
            count, rounds, unit, meter = given.instructions, 0, "instructions", partial(instructions, Path(folder))
        doors = [
            stack.enter_context(served(bench, packages, has_rules=has_rules, is_counted=bool(given.instructions)))
            for packages, has_rules in ((given.old, False), (given.new, False), (given.new, True))
        ]
        for name, request in frames().items():
            times = [[used(door, name, request, count, meter) for door in doors] for _ in range(rounds + 1)][-rounds:]
            shown = [f"{name:<13}{median(row[0] for row in times):9.2f} {unit}"]
            for side in (1, 2):
                ratios = sorted(row[side] / row[0] for row in times)
                shown.append(f"{SIDES[side]} {median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
            print("   ".join(shown), flush=True)


if __name__ == "__main__":
    main()
