"""A log directory goes to a real Kafka and back, twice; each finds the records of the other, and nothing to complain.

While Kafka has it, it appends, compacts, deletes a topic, makes one, adds partitions and stores committed offsets; the
second time it is killed. None of that is in seglog's registry.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import seglog
from tests.interop.peer import Kafka, kafka_script
from tests.processes import Daemon, seglog_json
from tests.soundness import assert_left_sound

pytestmark = [pytest.mark.timeout(1800)]

_KAFKA = ("log.cleaner.backoff.ms=200", "offsets.topic.num.partitions=2", "log.segment.delete.delay.ms=500")
_COMPACTED = ("--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0.01")


def _events(running: Daemon, name: str) -> list[dict[str, Any]]:
    return [event for line in running.log_text().splitlines() if (event := json.loads(line))["event"] == name]


def _lines(prefix: str, count: int = 30) -> str:
    return "".join(f"k{number % 5}:{prefix} {number}\n" for number in range(count))


def _append(running: Daemon, topic: str, prefix: str, count: int = 30) -> None:
    with seglog.connect(running.address) as client, client.producer(topic) as producer:
        for number in range(count):
            producer.send(f"{prefix} {number}".encode(), key=b"k%d" % (number % 5))


def _values(running: Daemon, topic: str) -> list[str]:
    with seglog.connect(running.address) as client, client.consumer(topic, start="earliest") as consumer:
        return [(record.value or b"").decode() for record in consumer]


def _assert_nothing_is_wrong(running: Daemon, directory: Path) -> None:
    assert _events(running, "log_directory_problem") == []
    assert _events(running, "partition_offline") == []
    assert not list(directory.glob("*-stray"))
    assert seglog_json(running.address, "ping")["problems"] == []


def test_a_directory_goes_to_kafka_and_back_twice(tmp_path: Path) -> None:
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    with kafka.running(*_KAFKA):
        for name, more in (("plain", ()), ("comp", _COMPACTED), ("gone", ())):
            partitions = "3" if name == "plain" else "1"
            kafka.topics("--create", "--topic", name, "--partitions", partitions, *more)
            kafka.produce(name, _lines(f"kafka 0 {name}"))
    assert_left_sound(kafka.directory)

    running = Daemon(kafka.directory, "--set", "seglog.scrub.bytes.per.second=0")
    written = {f"kafka 0 plain {number}" for number in range(30)}
    ends: dict[int, int] = {}
    for turn in (1, 2):
        running.start()
        _assert_nothing_is_wrong(running, kafka.directory)
        changes = [event["change"] for event in _events(running, "changed_by_kafka")]
        with seglog.connect(running.address) as client:
            topics = {topic.name: topic.partitions for topic in client.topics()}
            if turn == 1:
                assert _events(running, "kafka_directory_adopted")
                assert topics == {"plain": 3, "comp": 1, "gone": 1}
                client.alter_topic("comp", config={"segment.bytes": 1024})
                client.create_topic("ours", 1)
            else:
                assert topics == {"plain": 5, "comp": 1, "new-1": 2, "__consumer_offsets": 2, "ours": 1}
                assert "ours-0 is back: Kafka had set it aside" in changes
                assert "topic gone was deleted: none of its 1 partitions is there" in changes
                assert "topic new-1 was created, with 2 partitions" in changes
                assert "topic plain has 5 partitions, it had 3" in changes
                assert any(change.startswith("comp-0: ") for change in changes), changes
        assert set(_values(running, "plain")) == written
        _append(running, "plain", f"seglog {turn} plain")
        written |= {f"seglog {turn} plain {number}" for number in range(30)}
        for round_ in range(8):
            _append(running, "comp", f"seglog {turn} comp {round_}")
        _append(running, "ours", f"seglog {turn} ours")
        assert running.stop() == 0  # and passes a check
        if turn == 1:
            assert len(list((kafka.directory / "comp-0").glob("*.checksum"))) > 3

        with kafka.running(*_KAFKA, killed=turn == 2):
            assert set(kafka.consume("plain", len(written), "--group", f"readers-{turn}")) == written
            kafka.produce("plain", _lines(f"kafka {turn} plain"))
            written |= {f"kafka {turn} plain {number}" for number in range(30)}
            kafka.topics("--alter", "--topic", "plain", "--partitions", str(3 + 2 * turn))
            kafka.topics("--create", "--topic", f"new-{turn}", "--partitions", "2")
            kafka.produce(f"new-{turn}", _lines(f"kafka {turn} new"))
            if turn == 1:
                kafka.topics("--delete", "--topic", "gone")
            kafka.produce("comp", _lines(f"kafka {turn} comp"))
            kafka.wait_until_cleaned("comp", 0)
            ends = kafka.end_offsets("plain")
        assert_left_sound(kafka.directory)

    running.start()
    _assert_nothing_is_wrong(running, kafka.directory)
    assert set(_values(running, "plain")) == written
    assert set(_values(running, "new-2")) == {f"kafka 2 new {number}" for number in range(30)}
    assert len(_values(running, "ours")) == 60
    newest = {value.rsplit(" ", 1)[1]: value for value in _values(running, "comp")}
    assert {newest[str(number)] for number in range(25, 30)} == {f"kafka 2 comp {number}" for number in range(25, 30)}
    with seglog.connect(running.address) as client:
        assert {topic.name: topic.partitions for topic in client.topics()}["plain"] == 7
        found = {offsets.partition: offsets.latest for offsets in client.offsets("plain")}
    assert found == ends
    assert running.stop() == 0
