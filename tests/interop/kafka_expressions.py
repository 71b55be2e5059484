"""Regular expressions of topics, and what a real Kafka matches by each: ``kafka_expressions.json``.

``python -m tests.interop.kafka_expressions`` asks a real Kafka and writes that file.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.interop.kafka_cases import create_topics
from tests.interop.kafka_group_cases import KAFKA_SETTINGS, PREPARED, await_coordinator
from tests.interop.kafka_wire import Wire, plain, request
from tests.interop.peer import Kafka, kafka_script

ANSWERS: Final = Path(__file__).with_name("kafka_expressions.json")

NAMES: Final = ("__consumer_offsets", "other", "plain")
"""The topics that are there."""

LOOKS: Final = 12
"""Heartbeats until an expression counts as one that matches nothing: a real Kafka matches beside its requests."""

EXPRESSIONS: Final = tuple(json.loads(ANSWERS.read_text(encoding="utf-8")))


def matched(wire: Wire, group: str, expression: str) -> list[str] | int:
    """The topics of a member that subscribes by an expression, or the error."""
    joins = {"member_epoch": 0, "rebalance_timeout_ms": 60_000, "topic_partitions": []}
    asked = {"group_id": group, "member_id": "m", "subscribed_topic_regex": expression}
    answer = plain(wire.ask(request("ConsumerGroupHeartbeat", {**asked, **joins}), 1))
    for _ in range(LOOKS):
        if answer["error_code"]:
            return int(answer["error_code"])
        epoch = answer["member_epoch"]
        time.sleep(0.03)
        beat = {"group_id": group, "member_id": "m", "member_epoch": epoch}
        answer = plain(wire.ask(request("ConsumerGroupHeartbeat", beat), 1))
    described = plain(wire.ask(request("ConsumerGroupDescribe", {"group_ids": [group]}), 1))
    [member] = described["groups"][0]["members"]
    return sorted(topic["topic_name"] for topic in member["target_assignment"]["topic_partitions"])


def main() -> None:
    """Ask a real Kafka, and write its answers."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Kafka(kafka_script(), Path(folder) / "kafka").running(*KAFKA_SETTINGS) as kafka,
        Wire(kafka.port) as wire,
    ):
        create_topics(wire, PREPARED)
        await_coordinator(wire)
        answers = {text: matched(wire, f"g{number}", text) for number, text in enumerate(EXPRESSIONS)}
    ANSWERS.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
