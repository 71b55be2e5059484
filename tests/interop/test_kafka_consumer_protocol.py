"""Kafka's clients with `group.protocol=consumer` (KIP-848), as members of one group: the broker assigns."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import seglog
from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import CLIENTS, environment_of, go_program, java_program
from tests.interop.group_members import Member, ended
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.processes import Daemon, kafka_daemon, wait_until

pytestmark = [pytest.mark.timeout(600)]

GROUP: Final = "app"
TOPIC: Final = "t"
PARTITIONS: Final = 6
RECORDS_A_ROUND: Final = 300
SESSION_MS: Final = 6000

CONFLUENT: Final = "confluent-kafka"
JAVA: Final = "java"
FRANZ: Final = "franz-go"

EVERYTHING: Final = {(TOPIC, number) for number in range(PARTITIONS)}

SETTINGS: Final = (
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.heartbeat.interval.ms=500",
)


class Members:
    """Programs that are members of one group, or were."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self.all: list[Member] = []

    def start(self, client: str, **settings: str) -> Member:
        """One that reads TOPIC; settings with ``_`` for ``.``."""
        told = {
            "bootstrap.servers": f"127.0.0.1:{self._port}",
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "200",
            "metadata.max.age.ms": "1000",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        command = [*_command(client), json.dumps(told), TOPIC]
        self.all.append(Member(command, self._folder / f"member-{len(self.all)}.jsonl"))
        return self.all[-1]

    def read(self) -> list[tuple[str, int, int]]:
        """What all of them have read, those that have ended too."""
        return [record for member in self.all for record in member.read()]


def _command(client: str) -> list[str]:
    with skipped_where_absent(client):
        if client == JAVA:
            command = java_program("JavaMember")
        elif client == FRANZ:
            command = go_program("member")
        else:
            command = [str(environment_of()), str(CLIENTS / "confluent_member.py")]
    return command


def described(port: int) -> Plain:
    """What ConsumerGroupDescribe says of the group."""
    with Wire(port) as wire:
        [found] = plain(wire.ask(request("ConsumerGroupDescribe", {"group_ids": [GROUP]}), 1))["groups"]
    return found


def described_members(broker: Daemon) -> tuple[int, list[str]]:
    """The epoch of the group, and the ids of its members."""
    found = described(broker.kafka_port)
    return found["group_epoch"], sorted(each["member_id"] for each in found["members"])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Daemon]:
    with kafka_daemon(tmp_path / "data", *SETTINGS) as running, seglog.connect(running.address) as client:
        client.create_topic(TOPIC, PARTITIONS)
        yield running
        assert "Traceback" not in running.log_text()
        assert running.stop() == 0


@pytest.fixture
def group(broker: Daemon, tmp_path: Path) -> Iterator[Members]:
    started = Members(tmp_path, broker.kafka_port)
    with ended(started.all):
        yield started


def shared(*sharing: Member) -> bool:
    """Whether all have some of the partitions, nobody the same, and together all."""
    owned = [member.assigned() for member in sharing]
    return all(owned) and sum(map(len, owned)) == PARTITIONS and set.union(*owned) == EVERYTHING


def wait_for_all(broker: Daemon, group: Members) -> None:
    """Produce some records, and return when all have been read by somebody, and committed."""
    with seglog.connect(broker.address) as own:
        with own.producer(TOPIC) as producer:
            for number in range(RECORDS_A_ROUND):
                producer.send(b"%d" % number, partition=number % PARTITIONS)
        ends = {found.partition: found.latest for found in own.offsets(TOPIC)}
        records = {(TOPIC, number, offset) for number, end in ends.items() for offset in range(end)}
        wait_until(lambda: {*group.read()} >= records, "all records")
        wait_until(
            lambda: {found.partition: found.offset for found in own.describe_group(GROUP).offsets} == ends,
            "they are committed",
        )


# --- Members come and go ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pair", [(CONFLUENT, CONFLUENT), (JAVA, JAVA), (FRANZ, FRANZ), (JAVA, CONFLUENT), (CONFLUENT, FRANZ)], ids="-".join
)
def test_members_share_partitions_go_on_with_a_broker_that_was_killed_and_take_over_from_those_that_leave_or_die(
    pair: tuple[str, str], broker: Daemon, group: Members
) -> None:
    first = group.start(pair[0])
    wait_until(lambda: first.assigned() == EVERYTHING, "all partitions")
    wait_for_all(broker, group)
    second = group.start(pair[1])
    wait_until(lambda: shared(first, second), "shared")
    assert {len(member.assigned()) for member in (first, second)} == {PARTITIONS // 2}
    wait_for_all(broker, group)
    wait_until(lambda: described(broker.kafka_port)["group_state"] == "Stable", "at rest")
    before = described_members(broker)
    broker.kill()
    broker.start()
    wait_until(lambda: described(broker.kafka_port)["error_code"] == 0, "loaded")
    wait_for_all(broker, group)
    assert described_members(broker) == before
    assert shared(first, second)
    second.leave()
    wait_until(lambda: first.assigned() == EVERYTHING, "all partitions again")
    wait_for_all(broker, group)
    assert len(group.read()) == 4 * RECORDS_A_ROUND, "what was committed stands, so nothing is read twice"

    third = group.start(pair[1])
    wait_until(lambda: shared(first, third), "shared again")
    third.kill()
    assert len(described(broker.kafka_port)["members"]) == 2, "its session goes on"
    wait_until(lambda: first.assigned() == EVERYTHING, "its session is over")
    wait_for_all(broker, group)
    first.leave()
    assert described(broker.kafka_port)["group_state"] == "Empty"


# --- Protocols --------------------------------------------------------------------------------------------------------


def settled(broker: Daemon, kind: str, members: int) -> bool:
    """Whether the group is of this kind, and as many members have all partitions between them."""
    try:
        with seglog.connect(broker.address) as own:
            found = own.describe_group(GROUP).group
    except seglog.UnknownGroupError:
        return False
    owned = sorted(number for member in found.members for of in member.assignment or () for number in of.partitions)
    return (found.kind, found.state, len(found.members), owned) == (kind, "Stable", members, [*range(PARTITIONS)])


def test_programs_change_the_protocol_of_their_group_one_by_one_and_back(broker: Daemon, group: Members) -> None:
    classic = {"group_protocol": "classic", "session_timeout_ms": "6000", "heartbeat_interval_ms": "500"}
    both = (CONFLUENT, JAVA)
    old = [group.start(client, **classic) for client in both]
    wait_until(lambda: settled(broker, "classic", 2), "two classic members")
    new = []
    for client, member in zip(both, old, strict=True):
        new.append(group.start(client))
        wait_until(lambda: settled(broker, "consumer", 3), "one member more")
        wait_for_all(broker, group)
        member.leave()
        wait_until(lambda: settled(broker, "consumer", 2), "it has left")
    back = [group.start(client, **classic) for client in both]
    wait_until(lambda: settled(broker, "consumer", 4), "classic members beside the others")
    for member in new:
        member.leave()
    wait_until(lambda: settled(broker, "classic", 2), "classic members alone")
    wait_for_all(broker, group)
    for member in back:
        member.leave()
    with seglog.connect(broker.address) as own:
        assert own.describe_group(GROUP).group.state == "Empty"
