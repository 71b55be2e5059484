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

EXPRESSIONS: Final = (
    *(".*", "__consumer_.*", "(?i)PLAIN", r"\pL+", r"\p{Greek}*plain", r"\p{Nope}", r"[\pL]+", r"\pN*plain"),
    *(r"\p{^Lu}+", r"\P{^Lu}+", r"\p{L}\p{Ll}{4}", r"\Qplain\E", r"\Qplain", r"\Q", r"a\E", "(?<n>plain)"),
    *("(?P<n>plain)", "(?P<n>p)(?P<n>lain)", "(?P<1a>plain)", "(?P<é>plain)", "(?P=n)", "p**", "a++", "x*?"),
    *("p{2}{3}", "p{1001}", "p{1000}", "(p{1000}){2}", "(p{30}){40}", "p{,2}lain", "p{1,}lain", r"\d{0,3}plain"),
    *(r"\C*", r"\x{70}lain", r"\x{436}?plain", "ж?plain", "(?i)plaiñ?n", "(?i)\u017f", "(?i)\u212a*plain", r"\_"),
    *(r"\z", r"\Z", r"plain\z", r"\Aplain", "plain$", "^plain$", "(?m)^plain$", r"\bplain\b", "(?U)plain"),
    *("(?s).*", "(?x)plain", "(?i:P)lain", "(?-s)pla.n", "(?i-)plain", "(?)plain", "(?:plain", "(?=x)", "(", "*"),
    *("a|*", "[a", "[]a]+", "[z-a]", "[[:word:]]+", "[[:nope:]]", r"[^\n]+", "|plain", "()plain", "plain|"),
    *(r"plai\156", r"\07", r"\8", r"\xg1", r"\x{110000}", r"\h", r"\e", "\0", ".{900}", "(.{0,30}){30}"),
    *("[a-z]{1000}|plain", "x{2}y{999}|plain", "((p{0,10}){0,10}){0,10}lain", "((p{0,1000}){0,1000}lain)"),
    *("(" * 101 + "plain" + ")" * 101, "(" * 1100 + "plain" + ")" * 1100, r"\pL" * 600, "plain" * 3_000),
)


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
