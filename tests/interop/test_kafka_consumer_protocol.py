"""Kafka's clients with `group.protocol=consumer` (KIP-848), as members of one group: the broker assigns."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import seglog
from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import CLIENTS, environment_of, go_program, java_program
from tests.interop.group_members import Member, ended, wait_until
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.processes import Daemon, kafka_daemon

pytestmark = [pytest.mark.timeout(600)]

GROUP: Final = "app"
TOPIC: Final = "t"
PARTITIONS: Final = 6
RECORDS_A_ROUND: Final = 300
SESSION_MS: Final = 6000

CONFLUENT: Final = "confluent-kafka"
JAVA: Final = "java"
FRANZ: Final = "franz-go"

Place = tuple[str, int]
"""A topic and the number of a partition."""

EVERYTHING: Final = {(TOPIC, number) for number in range(PARTITIONS)}

SETTINGS: Final = (
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.heartbeat.interval.ms=500",
)

Pair = tuple[str, str]
PAIRS: Final = ((CONFLUENT, CONFLUENT), (JAVA, JAVA), (FRANZ, FRANZ), (JAVA, CONFLUENT), (CONFLUENT, FRANZ))
each_pair = pytest.mark.parametrize("pair", PAIRS, ids="-".join)


class Members:
    """Programs that are members of one group, or were."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self.all: list[Member] = []

    def start(self, client: str, *topics: str, **settings: str) -> Member:
        """A member that reads topics; settings with ``_`` for ``.``."""
        told = {
            "bootstrap.servers": f"127.0.0.1:{self._port}",
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "200",
            "metadata.max.age.ms": "1000",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        command = [*_command(client), json.dumps(told), *topics]
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


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Daemon]:
    with kafka_daemon(tmp_path / "data", *SETTINGS) as running:
        yield running
        assert "Traceback" not in running.log_text()
        assert running.stop() == 0


@pytest.fixture
def own(broker: Daemon) -> Iterator[seglog.Client]:
    with seglog.connect(broker.address) as client:
        client.create_topic(TOPIC, PARTITIONS)
        yield client


@pytest.fixture
def group(broker: Daemon, own: seglog.Client, tmp_path: Path) -> Iterator[Members]:
    del own  # the topic is there before its readers
    started = Members(tmp_path, broker.kafka_port)
    with ended(started.all):
        yield started


def produced(own: seglog.Client, *topics: str) -> set[tuple[str, int, int]]:
    """Some records more in each topic; place and offset of all there are."""
    for topic in topics:
        with own.producer(topic) as producer:
            partitions = own.describe_topic(topic).partitions
            for number in range(RECORDS_A_ROUND):
                producer.send(b"%d" % number, partition=number % partitions)
    return {
        (topic, ends.partition, offset)
        for topic in topics
        for ends in own.offsets(topic)
        for offset in range(ends.latest)
    }


def shared(places: set[Place], *sharing: Member) -> bool:
    """Whether all have some of the places, nobody the same, and together all."""
    owned = [member.assigned() for member in sharing]
    return all(owned) and sum(map(len, owned)) == len(places) and set.union(*owned) == places


def is_at_rest(broker: Daemon, count: int) -> bool:
    found = described(broker.kafka_port)
    return (found["group_state"], len(found["members"])) == ("Stable" if count else "Empty", count)


def wait_for_all(own: seglog.Client, group: Members, *topics: str) -> None:
    """Produce some records, and return when all have been read by somebody, and committed."""
    records = produced(own, *topics)
    wait_until("all records", lambda: {*group.read()} >= records)
    wait_until("they are committed", lambda: committed(own) == ends(own, *topics))


def ends(own: seglog.Client, *topics: str) -> dict[Place, int]:
    return {(topic, ends.partition): ends.latest for topic in topics for ends in own.offsets(topic)}


def committed(own: seglog.Client) -> dict[Place, int | None]:
    return {(offset.topic, offset.partition): offset.offset for offset in own.describe_group(GROUP).offsets}


def member_ids(broker: Daemon) -> list[str]:
    return sorted(member["member_id"] for member in described(broker.kafka_port)["members"])


# --- Members come and go ----------------------------------------------------------------------------------------------


@each_pair
def test_members_share_partitions_and_take_over_from_those_that_leave_or_die(
    pair: Pair, broker: Daemon, own: seglog.Client, group: Members
) -> None:
    first = group.start(pair[0], TOPIC)
    wait_until("all partitions", lambda: first.assigned() == EVERYTHING)
    wait_for_all(own, group, TOPIC)
    second = group.start(pair[1], TOPIC)
    wait_until("shared", lambda: shared(EVERYTHING, first, second))
    assert {len(member.assigned()) for member in (first, second)} == {PARTITIONS // 2}
    wait_for_all(own, group, TOPIC)
    second.leave()
    wait_until("all partitions again", lambda: first.assigned() == EVERYTHING)
    wait_for_all(own, group, TOPIC)
    assert len(group.read()) == 3 * RECORDS_A_ROUND, "whoever leaves commits, so nothing is read twice"

    third = group.start(pair[1], TOPIC)
    wait_until("shared again", lambda: shared(EVERYTHING, first, third))
    wait_for_all(own, group, TOPIC)
    third.kill()
    assert len(described(broker.kafka_port)["members"]) == 2, "its session goes on"
    records = produced(own, TOPIC)
    wait_until("its session is over", lambda: first.assigned() == EVERYTHING)
    wait_until("all records", lambda: {*group.read()} >= records)
    first.leave()
    assert is_at_rest(broker, 0)
    assert own.describe_group(GROUP).records == 0


@each_pair
def test_members_go_on_when_the_broker_was_killed(
    pair: Pair, broker: Daemon, own: seglog.Client, group: Members
) -> None:
    first, second = (group.start(client, TOPIC) for client in pair)
    wait_until("shared", lambda: shared(EVERYTHING, first, second))
    wait_for_all(own, group, TOPIC)
    wait_until("at rest", lambda: is_at_rest(broker, 2))
    before, ids = described(broker.kafka_port), member_ids(broker)
    broker.kill()
    broker.start()
    with seglog.connect(broker.address) as again:
        wait_until("loaded", lambda: described(broker.kafka_port)["error_code"] == 0)
        assert committed(again) == ends(again, TOPIC)
        wait_for_all(again, group, TOPIC)
        assert len(group.read()) == 2 * RECORDS_A_ROUND, "what was committed stands, so nothing is read twice"
    assert member_ids(broker) == ids
    assert described(broker.kafka_port)["group_epoch"] == before["group_epoch"]
    assert shared(EVERYTHING, first, second)


# --- Protocols --------------------------------------------------------------------------------------------------------


def settled(own: seglog.Client, kind: str, members: int) -> bool:
    """Whether the group is of this kind, and as many members have all partitions between them."""
    try:
        found = own.describe_group(GROUP).group
    except seglog.UnknownGroupError:
        return False
    owned = sorted(number for member in found.members for of in member.assignment or () for number in of.partitions)
    return (found.kind, found.state, len(found.members), owned) == (kind, "Stable", members, [*range(PARTITIONS)])


def test_programs_change_the_protocol_of_their_group_one_by_one_and_back(own: seglog.Client, group: Members) -> None:
    classic = {"group_protocol": "classic", "session_timeout_ms": "6000", "heartbeat_interval_ms": "500"}
    both = (CONFLUENT, JAVA)
    old = [group.start(client, TOPIC, **classic) for client in both]
    wait_until("two classic members", lambda: settled(own, "classic", 2))
    new = []
    for client, member in zip(both, old, strict=True):
        new.append(group.start(client, TOPIC))
        wait_until("one member more", lambda: settled(own, "consumer", 3))
        wait_for_all(own, group, TOPIC)
        member.leave()
        wait_until("it has left", lambda: settled(own, "consumer", 2))
    back = [group.start(client, TOPIC, **classic) for client in both]
    wait_until("classic members beside the others", lambda: settled(own, "consumer", 4))
    for member in new:
        member.leave()
    wait_until("classic members alone", lambda: settled(own, "classic", 2))
    wait_for_all(own, group, TOPIC)
    for member in back:
        member.leave()
    assert own.describe_group(GROUP).group.state == "Empty"
