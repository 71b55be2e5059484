"""Kafka's own tools for groups against the Kafka listener: what `kafka-consumer-groups` does, and those that read."""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from kafka import KafkaConsumer, TopicPartition

import seglog
from tests.interop.group_members import CONFLUENT, GROUP, members, wait_until
from tests.interop.peer import kafka_script
from tests.processes import daemon

pytestmark = [pytest.mark.timeout(600)]

START_MS: Final = 1_700_000_000_000
"""2023-11-14T22:13:20Z"""

TOPIC: Final = "read"
RECORDS: Final = 5
"""In each of two partitions, a second between them."""


class Tool:
    """`kafka-consumer-groups` for one server, and other tools."""

    def __init__(self, script: Path, server: str) -> None:
        self._script = script
        self.server = server

    def __call__(self, *arguments: str) -> str:
        """What it prints, errors too."""
        return self.run("consumer-groups", *arguments)

    def run(self, tool: str, *arguments: str) -> str:
        """What another tool prints, errors too."""
        done = subprocess.run(
            [self._script, tool, "--bootstrap-server", self.server, *arguments],
            env=os.environ | {"KAFKA_TOOL_HEAP": "-Xmx128m"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def rows(self, *arguments: str) -> list[list[str]]:
        """The words of the lines that begin with the group."""
        lines = [line.split() for line in self(*arguments).splitlines()]
        return [words for words in lines if words[:1] == [GROUP]]

    def reset(self, *how: str) -> dict[int, int]:
        """The new offsets by partition, as it prints them."""
        told = self.rows("--group", GROUP, "--reset-offsets", *how)
        assert [words[1] for words in told] == [TOPIC] * len(told)
        return {int(words[2]): int(words[3]) for words in told}


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Tool]:
    script = kafka_script()
    settings = ("listeners=PLAINTEXT://127.0.0.1:0", "group.initial.rebalance.delay.ms=0")
    given = [argument for setting in settings for argument in ("--set", setting)]
    with daemon(tmp_path / "data", *given) as broker:
        (ready,) = [event for event in broker.logged if event["event"] == "broker_ready"]
        with seglog.connect(broker.address) as own:
            own.create_topic(TOPIC, 2, config={"retention.ms": -1})
            with own.producer(TOPIC) as producer:
                for number in range(2 * RECORDS):
                    moment = START_MS + number // 2 * 1000
                    producer.send(b"value", partition=number % 2, timestamp=moment)
        yield Tool(script, ready["kafka"])
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0


def committed(tool: Tool) -> dict[int, int | None]:
    with closing(KafkaConsumer(bootstrap_servers=tool.server, group_id=GROUP, enable_auto_commit=False)) as consumer:
        return {number: consumer.committed(TopicPartition(TOPIC, number)) for number in range(2)}


def test_a_group_listed_described_reset_and_deleted(tool: Tool, tmp_path: Path) -> None:
    member = KafkaConsumer(
        TOPIC,
        bootstrap_servers=tool.server,
        group_id=GROUP,
        client_id="worker",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    with closing(member):
        while len(member.assignment()) < 2:
            member.poll(100, max_records=1)
        for place in member.assignment():
            member.seek(place, 3)
        member.commit()
        _check_live(tool, "Classic", 3)
    _check_empty(tool, tmp_path)


def test_a_group_of_the_consumer_protocol_listed_described_reset_and_deleted(tool: Tool, tmp_path: Path) -> None:
    with members(tmp_path, int(tool.server.rpartition(":")[2])) as group:
        member = group.start(CONFLUENT, TOPIC, client_id="worker")
        wait_until("all is committed", lambda: committed(tool) == {0: 5, 1: 5})
        _check_live(tool, "Consumer", 5)
        member.leave()
    _check_empty(tool, tmp_path)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_tools_that_read_are_members_of_groups(tool: Tool, protocol: str) -> None:
    uses = ("--command-property", f"group.protocol={protocol}")
    reading = ("--topic", TOPIC, "--group", GROUP, *uses)
    told = tool.run("console-consumer", *reading, "--from-beginning", "--max-messages", "10", "--timeout-ms", "60000")
    assert (told.count("value\n"), "Processed a total of 10 messages" in told) == (10, True)
    assert tool.rows("--list", "--type") == [[GROUP, protocol.capitalize()]]
    assert committed(tool) == {0: 5, 1: 5}
    assert len(tool.reset("--topic", TOPIC, "--to-earliest", "--execute")) == 2
    told = tool.run("consumer-perf", *reading, "--num-records", "10")
    assert told.splitlines()[-1].split(", ")[4] == "10"
    assert committed(tool) == {0: 5, 1: 5}
    assert len(tool.reset("--topic", TOPIC, "--to-earliest", "--execute")) == 2
    reading = ("--topic", TOPIC, "--group-id", GROUP, "--group-protocol", protocol)
    told = tool.run("verifiable-consumer", *reading, "--max-messages", "10", "--reset-policy", "earliest")
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 10
    assert all(event["success"] for event in events if event["name"] == "offsets_committed")
    assert committed(tool) == {0: 5, 1: 5}


def _check_empty(tool: Tool, folder: Path) -> None:
    """Without members it is reset, loses offsets, and is deleted."""
    assert tool.rows("--list", "--state") == [[GROUP, "Empty"]]
    _check_resets(tool, folder)
    assert "Successful" in tool("--group", GROUP, "--delete-offsets", "--topic", f"{TOPIC}:1")
    assert committed(tool) == {0: 1, 1: None}
    assert "was successful" in tool("--group", GROUP, "--delete")
    assert tool.rows("--list") == []
    assert committed(tool) == {0: None, 1: None}


def _check_live(tool: Tool, kind: str, offset: int) -> None:
    """While it has a member it is described with it, and neither reset nor deleted."""
    assert tool.rows("--list") == [[GROUP]]
    assert tool.rows("--list", "--state") == [[GROUP, "Stable"]]
    assert tool.rows("--list", "--type") == [[GROUP, kind]]
    for asked in ("Classic", "Consumer"):
        assert tool.rows("--list", "--type", asked.lower()) == ([[GROUP, kind]] if asked == kind else [])
    described = tool.rows("--describe", "--group", GROUP)
    assert sorted(words[1:6] for words in described) == [
        [TOPIC, str(n), str(offset), "5", str(5 - offset)] for n in (0, 1)
    ]
    assert {(words[7], words[8]) for words in described} == {("/127.0.0.1", "worker")}
    [member] = tool.rows("--describe", "--group", GROUP, "--members", "--verbose")
    assert member[2:5] == ["/127.0.0.1", "worker", "2"]
    [state] = tool.rows("--describe", "--group", GROUP, "--state", "--verbose")
    if kind == "Consumer":
        assert member[5:] == ["1", f"{TOPIC}:0,1", "1", f"{TOPIC}:0,1"]
        assert state[-5:] == ["uniform", "Stable", "1", "1", "1"]
    else:
        assert f"{TOPIC}" in " ".join(member[5:])
        assert [word for word in state if word in ("Stable", "range", "1")][:3] == ["range", "Stable", "1"]
    told = tool("--group", GROUP, "--reset-offsets", "--to-earliest", "--topic", TOPIC, "--execute")
    assert "inactive" in told
    assert "not empty" in tool("--group", GROUP, "--delete").lower()
    assert "subscribed" in tool("--group", GROUP, "--delete-offsets", "--topic", TOPIC).lower()
    assert committed(tool) == {0: offset, 1: offset}


def _check_resets(tool: Tool, folder: Path) -> None:
    both = ("--topic", TOPIC)
    file = folder / "offsets.csv"
    file.write_text(f"{TOPIC},0,1\n{TOPIC},1,2\n", encoding="utf-8")
    kinds: Sequence[tuple[Sequence[str], dict[int, int]]] = (
        ((*both, "--to-earliest"), {0: 0, 1: 0}),
        ((*both, "--to-latest"), {0: 5, 1: 5}),
        ((*both, "--to-offset", "3"), {0: 3, 1: 3}),
        ((*both, "--shift-by", "-1"), {0: 2, 1: 2}),
        ((*both, "--by-duration", "PT1H"), {0: 5, 1: 5}),
        ((*both, "--to-datetime", "2023-11-14T22:13:21.500"), {0: 2, 1: 2}),
        (("--topic", f"{TOPIC}:1", "--to-offset", "4"), {1: 4}),
        ((*both, "--to-current"), {0: 2, 1: 4}),
        (("--from-file", str(file)), {0: 1, 1: 2}),
    )
    for how, offsets in kinds:
        before = committed(tool)
        assert tool.reset(*how, "--dry-run") == offsets, how
        assert committed(tool) == before
        assert tool.reset(*how, "--execute") == offsets, how
        assert committed(tool) == before | offsets, how
