"""A group whose programs are changed, one after the other, from the classic to the consumer protocol, and back."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import seglog
from tests.interop.client_programs import python_environment
from tests.interop.group_members import wait_until
from tests.processes import Daemon, daemon, started_into_files

pytestmark = [pytest.mark.timeout(300)]

PARTITIONS: Final = 6
RECORDS_A_ROUND: Final = 300

NATIVE: Final = """
import json, sys
import seglog
kafka, native, protocol = sys.argv[1:]
with seglog.connect(native) as client:
    with client.consumer("t", group="app", session_timeout=6.0, auto_commit_interval=0.2, start="earliest") as consumer:
        for record in consumer:
            print(json.dumps([record.partition, record.offset]), flush=True)
"""

KAFKA_PYTHON: Final = """
import json, signal, sys
from kafka import KafkaConsumer
kafka, native, protocol = sys.argv[1:]
ends = []
signal.signal(signal.SIGINT, lambda *_: ends.append(True))
consumer = KafkaConsumer("t", bootstrap_servers=kafka, group_id="app", auto_offset_reset="earliest",
                         session_timeout_ms=6000, heartbeat_interval_ms=500, auto_commit_interval_ms=200)
while not ends:
    for records in consumer.poll(timeout_ms=200).values():
        for record in records:
            print(json.dumps([record.partition, record.offset]), flush=True)
consumer.close()
"""

CONFLUENT: Final = """
import json, signal, sys
from confluent_kafka import Consumer
kafka, native, protocol = sys.argv[1:]
ends = []
signal.signal(signal.SIGINT, lambda *_: ends.append(True))
settings = {"bootstrap.servers": kafka, "group.id": "app", "auto.offset.reset": "earliest",
            "group.protocol": protocol, "auto.commit.interval.ms": 200}
if protocol == "classic":
    settings |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "partition.assignment.strategy": "range"}
consumer = Consumer(settings)
consumer.subscribe(["t"])
while not ends:
    record = consumer.poll(0.2)
    if record is not None and record.error() is None:
        print(json.dumps([record.partition(), record.offset()]), flush=True)
consumer.close()
"""


class Programs:
    """Programs that read the topic as members of one group, and the records that they printed."""

    def __init__(self, folder: Path, broker: Daemon) -> None:
        self._folder = folder
        [kafka] = [event["kafka"] for event in broker.logged if event["event"] == "broker_ready"]
        self._servers = (kafka, broker.address)
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, program: str, protocol: str = "classic") -> "subprocess.Popen[bytes]":
        path = self._folder / f"{len(self._started)}.jsonl"
        python = sys.executable if program is NATIVE else str(python_environment())
        command = [python, "-c", program, *self._servers, protocol]
        process = started_into_files(command, path, path.with_suffix(".err"))
        self._started.append((process, path))
        return process

    def end(self, process: "subprocess.Popen[bytes]") -> None:
        """Have it leave the group."""
        process.send_signal(signal.SIGINT)
        process.wait(30)

    def end_all(self) -> None:
        for process, _ in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()

    def read(self) -> set[tuple[int, int]]:
        """Partition and offset of every record that any of them printed in full."""
        lines = [line for _, path in self._started for line in path.read_bytes().split(b"\n")[:-1]]
        return {(partition, offset) for partition, offset in map(json.loads, lines)}


@contextmanager
def started(folder: Path, broker: Daemon) -> Iterator[Programs]:
    programs = Programs(folder, broker)
    try:
        yield programs
    finally:
        programs.end_all()


def produced(client: seglog.Client) -> set[tuple[int, int]]:
    """Some records more; partition and offset of all there are."""
    with client.producer("t") as producer:
        for number in range(RECORDS_A_ROUND):
            producer.send(b"%d" % number, partition=number % PARTITIONS)
    return {(ends.partition, offset) for ends in client.offsets("t") for offset in range(ends.latest)}


def settled(client: seglog.Client, kind: str, members: int) -> bool:
    """Whether the group is of this kind, and as many members have all partitions between them."""
    try:
        described = client.describe_group("app").group
    except seglog.UnknownGroupError:
        return False
    owned = sorted(number for member in described.members for of in member.assignment or () for number in of.partitions)
    return (described.kind, described.state, len(described.members), owned) == (
        kind,
        "Stable",
        members,
        list(range(PARTITIONS)),
    )


@pytest.mark.parametrize("classic", [(NATIVE, KAFKA_PYTHON), (NATIVE, CONFLUENT)], ids=["kafka-python", "confluent"])
def test_programs_change_the_protocol_of_their_group_one_by_one(classic: Sequence[str], tmp_path: Path) -> None:
    flags = ("listeners=PLAINTEXT://127.0.0.1:0", "group.initial.rebalance.delay.ms=0")
    arguments = [argument for flag in flags for argument in ("--set", flag)]
    with (
        daemon(tmp_path / "data", *arguments) as broker,
        seglog.connect(broker.address) as client,
        started(tmp_path, broker) as programs,
    ):
        client.create_topic("t", PARTITIONS)
        records = produced(client)
        old = [programs.start(program) for program in classic]
        wait_until("two classic members", lambda: settled(client, "classic", 2))
        wait_until("all records", lambda: programs.read() >= records)
        new = []
        for number, process in enumerate(old):
            new.append(programs.start(CONFLUENT, "consumer"))
            wait_until("one member more", lambda: settled(client, "consumer", 3))
            records = produced(client)
            wait_until("all records", lambda: programs.read() >= records)  # noqa: B023 - it is called here
            programs.end(process)
            wait_until(f"member {number} has left", lambda: settled(client, "consumer", 2))
        back = programs.start(classic[0]), programs.start(classic[1])
        wait_until("classic members beside the others", lambda: settled(client, "consumer", 4))
        for process in new:
            programs.end(process)
        wait_until("classic members alone", lambda: settled(client, "classic", 2))
        records = produced(client)
        wait_until("all records", lambda: programs.read() >= records)
        for process in back:
            programs.end(process)
        group = client.describe_group("app")
        assert (group.group.state, group.records) == ("Empty", 0)
        assert "Traceback" not in broker.log_text()
