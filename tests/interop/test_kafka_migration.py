"""A group whose programs are changed, one after the other, from the classic to the consumer protocol, and back."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

import seglog
from tests.interop.client_programs import python_environment
from tests.interop.group_members import CONFLUENT, GROUP, Member, Members, members, wait_until
from tests.processes import Daemon, daemon

pytestmark = [pytest.mark.timeout(300)]

PARTITIONS: Final = 6
RECORDS_A_ROUND: Final = 300

NATIVE: Final = """
import json, signal, sys
import seglog
kafka, native = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with seglog.connect(native) as client:
    with client.consumer("t", group="app", session_timeout=6.0, auto_commit_interval=0.2, start="earliest") as consumer:
        for record in consumer:
            print(json.dumps({"record": ["t", record.partition, record.offset]}), flush=True)
"""

KAFKA_PYTHON: Final = """
import json, signal, sys
from kafka import KafkaConsumer
kafka, native = sys.argv[1:]
ends = []
signal.signal(signal.SIGTERM, lambda *_: ends.append(True))
consumer = KafkaConsumer("t", bootstrap_servers=kafka, group_id="app", auto_offset_reset="earliest",
                         session_timeout_ms=6000, heartbeat_interval_ms=500, auto_commit_interval_ms=200)
while not ends:
    for records in consumer.poll(timeout_ms=200).values():
        for record in records:
            print(json.dumps({"record": ["t", record.partition, record.offset]}), flush=True)
consumer.close()
"""

CLASSIC: Final = {
    "group_protocol": "classic",
    "session_timeout_ms": "6000",
    "heartbeat_interval_ms": "500",
    "partition_assignment_strategy": "range",
}


def started(program: str, folder: Path, broker: Daemon, group: Members) -> Member:
    """A member of the classic protocol."""
    if program == CONFLUENT:
        return group.start(CONFLUENT, "t", **CLASSIC)
    python = sys.executable if program is NATIVE else str(python_environment())
    command = [python, "-c", program, f"127.0.0.1:{broker.kafka_port}", broker.address]
    group.all.append(Member(command, folder / f"member-{len(group.all)}.jsonl"))
    return group.all[-1]


def wait_for_records(client: seglog.Client, group: Members) -> None:
    """Produce some records more, and return when all there are have been read."""
    with client.producer("t") as producer:
        for number in range(RECORDS_A_ROUND):
            producer.send(b"%d" % number, partition=number % PARTITIONS)
    records = {("t", ends.partition, offset) for ends in client.offsets("t") for offset in range(ends.latest)}
    wait_until("all records", lambda: {*group.read()} >= records)


def settled(client: seglog.Client, kind: str, members: int) -> bool:
    """Whether the group is of this kind, and as many members have all partitions between them."""
    try:
        described = client.describe_group(GROUP).group
    except seglog.UnknownGroupError:
        return False
    owned = sorted(number for member in described.members for of in member.assignment or () for number in of.partitions)
    found = described.kind, described.state, len(described.members), owned
    return found == (kind, "Stable", members, list(range(PARTITIONS)))


@pytest.mark.parametrize("classic", [(NATIVE, KAFKA_PYTHON), (NATIVE, CONFLUENT)], ids=["kafka-python", "confluent"])
def test_programs_change_the_protocol_of_their_group_one_by_one(classic: Sequence[str], tmp_path: Path) -> None:
    flags = ("listeners=PLAINTEXT://127.0.0.1:0", "group.initial.rebalance.delay.ms=0")
    arguments = [argument for flag in flags for argument in ("--set", flag)]
    with (
        daemon(tmp_path / "data", *arguments) as broker,
        seglog.connect(broker.address) as client,
        members(tmp_path, broker.kafka_port) as group,
    ):
        client.create_topic("t", PARTITIONS)
        old = [started(program, tmp_path, broker, group) for program in classic]
        wait_until("two classic members", lambda: settled(client, "classic", 2))
        wait_for_records(client, group)
        new = []
        for number, member in enumerate(old):
            new.append(group.start(CONFLUENT, "t"))
            wait_until("one member more", lambda: settled(client, "consumer", 3))
            wait_for_records(client, group)
            member.leave()
            wait_until(f"member {number} has left", lambda: settled(client, "consumer", 2))
        back = [started(program, tmp_path, broker, group) for program in classic]
        wait_until("classic members beside the others", lambda: settled(client, "consumer", 4))
        for member in new:
            member.leave()
        wait_until("classic members alone", lambda: settled(client, "classic", 2))
        wait_for_records(client, group)
        for member in back:
            member.leave()
        described = client.describe_group(GROUP)
        assert (described.group.state, described.records) == ("Empty", 0)
        assert "Traceback" not in broker.log_text()
