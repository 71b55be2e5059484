"""Apache's own MirrorMaker 2 between a daemon and a real Kafka, both ways at once: docs/BACKUP.md shows how."""

import re
from pathlib import Path
from typing import Any, Final

import pytest

import seglog
from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import java_program
from tests.interop.group_members import Member, ended
from tests.interop.peer import Kafka, kafka_script
from tests.processes import kafka_daemon, wait_until
from tests.support import REPOSITORY
from tests.unit.clients.mirror.sides import commit, committed, contents, end_of, kafka_of, numbered, produce

pytestmark = [pytest.mark.timeout(600)]

PAGE: Final = (REPOSITORY / "docs" / "BACKUP.md").read_text(encoding="utf-8")

QUICK: Final = """
refresh.topics.interval.seconds = 1
refresh.groups.interval.seconds = 1
sync.topic.configs.interval.seconds = 1
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
offset.lag.max = 0
"""
"""What a test does not want to wait for."""

COUNT: Final = 3500
PARTITIONS: Final = 3


def config_of_page(here: str, there: str) -> str:
    """The file that the page shows, for these two addresses and the topics and groups of the test."""
    section = PAGE.partition("\n### MirrorMaker 2\n")[2].partition("\n### ")[0]
    [config] = re.findall(r"^```properties\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    changes = {"localhost:9092": here, "kafka.example:9092": there, "clicks, orders": "out.*", "bills": "back.*"}
    for shown, wanted in changes.items():
        assert config.count(shown) == 1
        config = config.replace(shown, wanted)
    return f"{config}groups = readers.*\n"


def ends(address: str, topic: str) -> list[int]:
    return [end_of(address, topic, number) for number in range(PARTITIONS)]


def records_of(address: str, topic: str) -> list[list[Any]]:
    """Key, value, headers and timestamp of every record, by partition."""
    return [[record[1:] for record in contents(address, topic, number)] for number in range(PARTITIONS)]


def test_mirror_maker_copies_both_ways_at_once_with_configurations_and_groups(tmp_path: Path) -> None:
    with skipped_where_absent("MirrorMaker"):
        command = java_program("org.apache.kafka.connect.mirror.MirrorMaker", "frameworks")
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    with kafka.running("offsets.topic.num.partitions=1"), kafka_daemon(tmp_path / "ours") as ours:
        here, there = kafka_of(ours), kafka.address
        with seglog.connect(ours.address) as client:
            for topic in ("out", "out-later"):
                client.create_topic(topic, partitions=PARTITIONS, config={"retention.ms": "-1"})
            produce(here, "out-later", numbered(0, COUNT, PARTITIONS))
            client.truncate_topic("out-later", {0: 1000})
        kafka.topics("--create", "--topic", "back", "--partitions", str(PARTITIONS), "--config", "retention.ms=-1")
        for address, topic in ((here, "out"), (there, "back")):
            produce(address, topic, numbered(0, COUNT, PARTITIONS))
            commit(address, f"readers-of-all-{topic}", topic, end_of(address, topic))
            commit(address, f"readers-of-some-{topic}", topic, 700)
        config = tmp_path / "mm2.properties"
        config.write_text(config_of_page(here, there) + QUICK)
        running = Member([*command, str(config)], tmp_path / "mirror-maker.out")
        with ended([running]):
            _wait_for_copy(here, "out", there, "seglog.out")
            _wait_for_copy(there, "back", here, "kafka.back")
            wait_until(lambda: end_of(there, "seglog.out-later") > 0, "the copy is there")
            assert contents(there, "seglog.out-later")[0][0] == 0  # 1000 in the source
            with seglog.connect(ours.address) as client:
                settings = client.describe_topic("kafka.back").config or {}
                assert settings["retention.ms"].value == "-1"
            assert "retention.ms=-1" in kafka.topics("--describe", "--topic", "seglog.out")
            running.leave()


def _wait_for_copy(source: str, topic: str, target: str, copy: str) -> None:
    """Its records are there, and the offsets of groups: of one that is late, it knows only some record before."""
    wait_until(lambda: ends(target, copy) == ends(source, topic), f"{copy} is there")
    assert records_of(target, copy) == records_of(source, topic)
    end = end_of(source, topic)
    wait_until(lambda: committed(target, f"readers-of-all-{topic}", copy)[0] == end, "the offset is there")
    wait_until(lambda: committed(target, f"readers-of-some-{topic}", copy)[0] >= 0, "a late one is, too")
    assert committed(target, f"readers-of-some-{topic}", copy)[0] <= 700
