"""Random stories of share groups beside a real Kafka: answers differ only for a reason."""

import json
import os
from pathlib import Path

import pytest

from tests.interop.kafka_random_differences import Difference
from tests.interop.kafka_share_random import Side, Stories
from tests.interop.peer import Kafka, kafka_script
from tests.processes import kafka_daemon
from tests.support import soak_seed

REQUESTS = int(os.environ.get("SEGLOG_RANDOM_REQUESTS") or 3_000)
"""A few minutes' worth."""

SHOWN = 10
SETTINGS = (
    "group.share.assignment.interval.ms=0",
    "log.cleaner.backoff.ms=200",
    "log.initial.task.delay.ms=0",
    "log.retention.ms=-1",
)
KAFKA_SETTINGS = (
    "offsets.topic.num.partitions=1",
    "share.coordinator.state.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
)


def told(difference: Difference) -> str:
    """For people to read."""
    case, path, kafka, ours, answers, before = difference
    lines = [f"{case.title}: {case.api} version {case.version} {json.dumps(case.fields)}"]
    lines += [f"  {path}: {ours!r}, and Kafka has {kafka!r}", f"  Kafka: {answers[0]}", f"  ours:  {answers[1]}"]
    lines += [f"    before: {each}" for each in before]
    return "\n".join(lines)


@pytest.mark.timeout(3600)
def test_a_kafka_beside_answers_members_of_share_groups_alike(tmp_path: Path) -> None:
    seed = soak_seed()
    with (
        Kafka(kafka_script(), tmp_path / "kafka").running(*SETTINGS, *KAFKA_SETTINGS) as kafka,
        kafka_daemon(tmp_path / "seglog", *SETTINGS) as running,
        Side(kafka.port) as theirs,
        Side(running.kafka_port) as ours,
    ):
        stories = Stories(theirs, ours, seed)
        stories.prepare()
        while stories.asked < REQUESTS:
            stories.tell()
    print(f"seed {seed}, {stories.asked} requests; differences with a reason: {stories.explained}")
    assert not stories.found, "\n".join(
        (f"SEGLOG_SOAK_SEED={seed}, {len(stories.found)} differ:", *map(told, stories.found[:SHOWN]))
    )
