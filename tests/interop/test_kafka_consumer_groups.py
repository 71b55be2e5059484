"""Kafka's `kafka-consumer-groups` against the Kafka listener."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from kafka import KafkaConsumer, TopicPartition

import seglog
from tests.interop.group_members import CONFLUENT, GROUP, members, wait_until
from tests.interop.kafka_tools import Tools
from tests.processes import kafka_daemon

pytestmark = [pytest.mark.timeout(600)]

START_MS: Final = 1_700_000_000_000
"""2023-11-14T22:13:20Z"""

TOPIC: Final = "read"
RECORDS: Final = 5
"""In each of two partitions, a second between them."""


class Groups:
    """`kafka-consumer-groups` for the broker on a port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.tools = Tools(port)

    def told(self, *arguments: str) -> str:
        """What it prints, errors too."""
        return self.tools.run("consumer-groups", arguments=arguments, fails=None)

    def rows(self, *arguments: str) -> list[list[str]]:
        """The words of the lines that begin with the group."""
        lines = [line.split() for line in self.told(*arguments).splitlines()]
        return [words for words in lines if words[:1] == [GROUP]]

    def reset(self, *how: str) -> dict[int, int]:
        """The new offsets by partition, as it prints them."""
        told = self.rows("--group", GROUP, "--reset-offsets", "--topic", TOPIC, *how, "--execute")
        return {int(words[2]): int(words[3]) for words in told}

    def committed(self) -> dict[int, int | None]:
        server = f"127.0.0.1:{self.port}"
        with closing(KafkaConsumer(bootstrap_servers=server, group_id=GROUP, enable_auto_commit=False)) as consumer:
            return {number: consumer.committed(TopicPartition(TOPIC, number)) for number in range(2)}


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    with kafka_daemon(tmp_path / "data", "group.initial.rebalance.delay.ms=0") as broker:
        with seglog.connect(broker.address) as own:
            own.create_topic(TOPIC, 2, config={"retention.ms": -1})
            with own.producer(TOPIC) as producer:
                for number in range(2 * RECORDS):
                    moment = START_MS + number // 2 * 1000
                    producer.send(b"value", partition=number % 2, timestamp=moment)
        yield Groups(broker.kafka_port)
        assert "Traceback" not in broker.log_text()


@pytest.mark.parametrize(
    ("protocol", "state"),
    [("classic", ["range", "Stable", "1"]), ("consumer", ["uniform", "Stable", "1", "1", "1"])],
)
def test_a_group_is_listed_described_reset_and_deleted(
    groups: Groups, tmp_path: Path, protocol: str, state: list[str]
) -> None:
    with members(tmp_path, groups.port) as started:
        member = started.start(CONFLUENT, TOPIC, client_id="worker", group_protocol=protocol)
        wait_until("all is committed", lambda: groups.committed() == {0: 5, 1: 5})
        assert groups.rows("--list", "--state") == [[GROUP, "Stable"]]
        for asked in ("classic", "consumer"):
            listed = [[GROUP, asked.capitalize()]] if asked == protocol else []
            assert groups.rows("--list", "--type", asked) == listed
        described = groups.rows("--describe", "--group", GROUP)
        assert sorted(words[1:6] for words in described) == [[TOPIC, str(n), "5", "5", "0"] for n in (0, 1)]
        assert {(words[7], words[8]) for words in described} == {("/127.0.0.1", "worker")}
        [told] = groups.rows("--describe", "--group", GROUP, "--members", "--verbose")
        assert told[2:5] == ["/127.0.0.1", "worker", "2"]
        assert TOPIC in " ".join(told[5:])
        [told] = groups.rows("--describe", "--group", GROUP, "--state", "--verbose")
        assert [word for word in told if word in state][: len(state)] == state
        assert "inactive" in groups.told(
            "--group", GROUP, "--reset-offsets", "--to-earliest", "--topic", TOPIC, "--execute"
        )
        assert "not empty" in groups.told("--group", GROUP, "--delete").lower()
        assert "subscribed" in groups.told("--group", GROUP, "--delete-offsets", "--topic", TOPIC).lower()
        assert groups.committed() == {0: 5, 1: 5}
        member.leave()
    assert groups.rows("--list", "--state") == [[GROUP, "Empty"]]
    for how, offsets in {
        ("--to-earliest",): {0: 0, 1: 0},
        ("--to-latest",): {0: 5, 1: 5},
        ("--to-datetime", "2023-11-14T22:13:21.500"): {0: 2, 1: 2},
        ("--shift-by", "-1"): {0: 1, 1: 1},
    }.items():
        assert groups.reset(*how) == groups.committed() == offsets, how
    assert "Successful" in groups.told("--group", GROUP, "--delete-offsets", "--topic", f"{TOPIC}:1")
    assert groups.committed() == {0: 1, 1: None}
    assert "was successful" in groups.told("--group", GROUP, "--delete")
    assert groups.rows("--list") == []
    assert groups.committed() == {0: None, 1: None}
