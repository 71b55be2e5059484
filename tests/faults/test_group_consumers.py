"""Consumers that share a topic: processes that are killed, a broker that is killed, native and Kafka clients together.

Each process tells, a line each, what it was assigned in which generation and which records it handled. The lines are
held against the records and against each other: every record at least once, commits that never go back, and no
partition with two owners in one generation.
"""

import json
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import seglog
from seglog_protocol.messages import DescribeGroupReply, DescribeGroupRequest
from tests.processes import clean_environment, daemon

PARTITIONS: Final = 6
WAIT_SECONDS: Final = 120.0

NATIVE: Final = """
import json, sys, time
import seglog
server, group, name = sys.argv[1:]
def tell(**facts):
    print(json.dumps({"who": name, **facts}), flush=True)
with seglog.connect(server) as client:
    with client.consumer("t", group=group, session_timeout=6.0, auto_commit_interval=0.2, start="earliest",
                         on_assigned=lambda p: tell(assigned=p),
                         on_revoked=lambda p, lost: tell(revoked=p, lost=lost)) as consumer:
        for record in consumer:
            tell(partition=record.partition, offset=record.offset)
            time.sleep(0.002)
"""

KAFKA_PYTHON: Final = """
import json, sys, time
from kafka import KafkaConsumer, ConsumerRebalanceListener
server, group, name = sys.argv[1:]
def tell(**facts):
    print(json.dumps({"who": name, **facts}), flush=True)
class Told(ConsumerRebalanceListener):
    def on_partitions_assigned(self, assigned):
        tell(assigned=[p.partition for p in assigned])
    def on_partitions_revoked(self, revoked):
        tell(revoked=[p.partition for p in revoked], lost=False)
consumer = KafkaConsumer(bootstrap_servers=server, group_id=group, auto_offset_reset="earliest",
                         session_timeout_ms=6000, heartbeat_interval_ms=500, auto_commit_interval_ms=200)
consumer.subscribe(["t"], listener=Told())
while True:
    for records in consumer.poll(timeout_ms=200).values():
        for record in records:
            tell(partition=record.partition, offset=record.offset)
            time.sleep(0.002)
"""


class Worker:
    """A process that is a member of a group; its lines go to a file."""

    def __init__(self, folder: Path, program: str, server: str, group: str, name: str) -> None:
        self.path = folder / f"{name}.jsonl"
        with self.path.open("ab") as output, (folder / f"{name}.err").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, server, group, name],
                stdout=output,
                stderr=errors,
                env=clean_environment(),
            )

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


def lines(folder: Path) -> list[dict[str, Any]]:
    """What all processes told, but for a line that a kill cut off."""
    told = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                told.append(json.loads(line))
            except ValueError:
                continue
    return told


def handled(folder: Path) -> dict[tuple[int, int], int]:
    """How often each record was handled, by partition and offset."""
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for line in lines(folder):
        if "offset" in line:
            counts[line["partition"], line["offset"]] += 1
    return counts


def until(what: Callable[[], bool], why: str) -> None:
    """Wait for something that happens some time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.2)


def send(client: seglog.Client, begin: int, end: int) -> None:
    with client.producer("t") as producer:
        for number in range(begin, end):
            producer.send(b"%d" % number, partition=number % PARTITIONS)


def owners(client: seglog.Client, group: str) -> tuple[int, dict[int, list[str]]]:
    """The generation of a group, and who has each partition."""
    reply, _ = client.call(DescribeGroupRequest(group), DescribeGroupReply)
    found: dict[int, list[str]] = defaultdict(list)
    for member in reply.members:
        for assigned in member.assignment or ():
            for partition in assigned.partitions:
                found[partition].append(member.member_id)
    return reply.generation, found


def _has_handled(folder: Path, count: int) -> bool:
    return len(handled(folder)) >= count


def check(folder: Path, count: int) -> None:
    """Every record was handled at least once."""
    done = handled(folder)
    assert {(n % PARTITIONS, n // PARTITIONS) for n in range(count)} <= done.keys()


def settled(client: seglog.Client, group: str) -> bool:
    try:
        _, found = owners(client, group)
    except seglog.SeglogError:
        return False
    return sorted(found) == list(range(PARTITIONS)) and all(len(names) == 1 for names in found.values())


def test_members_share_partitions_and_take_over_those_of_one_that_was_killed(tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.mkdir()
    with daemon(tmp_path / "data") as running, seglog.connect(running.address) as client:
        client.create_topic("t", PARTITIONS)
        send(client, 0, 600)
        workers = [Worker(told, NATIVE, running.address, "app", f"w{number}") for number in range(2)]
        try:
            until(lambda: settled(client, "app") and _members(client) == 2, "both have partitions")
            until(lambda: len(handled(told)) == 600, "all records handled")
            workers[0].end()
            send(client, 600, 1_200)
            until(lambda: len(handled(told)) == 1_200, "the other one takes over")
            check(told, 1_200)
        finally:
            for worker in workers:
                if worker.process.poll() is None:
                    worker.end()


def _members(client: seglog.Client) -> int:
    """How many members have partitions."""
    return len({name for names in owners(client, "app")[1].values() for name in names})


@pytest.mark.slow
def test_native_and_kafka_members_share_a_topic_through_kills_of_members_and_of_the_broker(tmp_path: Path) -> None:
    told = {group: tmp_path / group for group in ("red", "blue")}
    for folder in told.values():
        folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        kafka = f"127.0.0.1:{free.getsockname()[1]}"  # the same after each restart
    with daemon(tmp_path / "data", "--set", f"listeners=PLAINTEXT://{kafka}") as running:
        with seglog.connect(running.address) as client:
            client.create_topic("t", PARTITIONS)
        workers: dict[str, Worker] = {}

        def begin(group: str, number: int) -> None:
            native = number % 2 == 0
            program, server = (NATIVE, running.address) if native else (KAFKA_PYTHON, kafka)
            name = f"{group}{number}"
            workers[name] = Worker(told[group], program, server, group, name)

        committed: dict[str, dict[int, int]] = {group: {} for group in told}
        seen: dict[tuple[str, int, int], str] = {}

        def look() -> None:
            """Commits never go back; a partition has one owner in a generation."""
            with seglog.connect(running.address) as client:
                for group, before in committed.items():
                    try:
                        generation, found = owners(client, group)
                        now = {offset.partition: offset.offset for offset in client.group_offsets(group)}
                    except seglog.SeglogError:
                        continue
                    for partition, names in found.items():
                        assert len(names) == 1, (group, generation, partition, names)
                        assert seen.setdefault((group, generation, partition), names[0]) == names[0]
                    for partition, offset in now.items():
                        if offset is not None:
                            assert offset >= before.get(partition, 0), (group, partition, before, now)
                            before[partition] = offset

        try:
            for group in told:
                for number in range(4):
                    begin(group, number)
            total = 0
            for round_ in range(4):
                with seglog.connect(running.address) as client:
                    send(client, total, total + 600)
                total += 600
                time.sleep(2)
                look()
                for group in told:
                    workers[f"{group}{round_ % 4}"].end()
                    begin(group, round_ % 4)
                running.kill()
                running.start()
                look()
            for group, folder in told.items():
                until(partial(_has_handled, folder, total), f"{group} handles everything")
                check(folder, total)
            look()
        finally:
            for worker in workers.values():
                if worker.process.poll() is None:
                    worker.end()
