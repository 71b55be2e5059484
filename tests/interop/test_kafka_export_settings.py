"""Accounts and settings of an export, as a real Kafka has them that starts with its ``server.properties``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_broker.config.topic_config import SEGMENT_BYTES_MIN_KAFKA, TOPIC_KEYS
from seglog_broker.config.values import Double, Whole
from tests.interop.handover import ask, batch_of, commit, produce, seen
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import daemon_settings
from tests.interop.kafka_wire import Wire
from tests.interop.make_kafka_metadata import alter, create, settings
from tests.interop.peer import KAFKA_VERSION, Kafka, kafka_script
from tests.interop.test_kafka_export import export
from tests.processes import daemon

pytestmark = [pytest.mark.timeout(600)]

_BROKER, _GROUP = 4, 32
"""Kinds of resources, as clients number them."""

_DYNAMIC_BROKER, _ALL_BROKERS, _STATIC_BROKER, _OF_GROUP = 2, 3, 4, 8
"""Where a value comes from, as DescribeConfigs says."""

FILE: Final = {"log.retention.hours": "5", "num.partitions": "3", "log.segment.bytes": "64MiB"}
OF_BROKER: Final = {"log.flush.interval.ms": "12345"}
AT_RUN_TIME: Final = {
    "": {"log.retention.bytes": "77777777", "log.cleaner.min.cleanable.ratio": "0.25"},
    "1": {**OF_BROKER, "log.retention.check.interval.ms": "300001"},
}
OF_GROUPS: Final = {
    "readers": {"consumer.session.timeout.ms": "50000"},
    "grüße": {"consumer.heartbeat.interval.ms": "5001"},
}


def at_edges(*, most: bool) -> dict[str, str]:
    """Of every number that a topic can set, the least value or the largest."""
    found = {}
    for name, key in TOPIC_KEYS.items():
        if isinstance(key.kind, Double):
            found[name] = str(float(most))
        elif isinstance(key.kind, Whole):
            largest = (1 << (key.kind.bits - 1)) - 1 if key.kind.maximum is None else key.kind.maximum
            least = -largest - 1 if key.kind.minimum is None else key.kind.minimum
            found[name] = str(largest if most else least)
    return found


TOPICS: Final = {
    "least": at_edges(most=False) | {"min.compaction.lag.ms": "0"},
    "most": at_edges(most=True),
    "words": {
        "cleanup.policy": "compact,delete",
        "compression.type": "zstd",
        "message.timestamp.type": "LogAppendTime",
        "leader.replication.throttled.replicas": "*",
        "follower.replication.throttled.replicas": "0:1,1:1",
        "unclean.leader.election.enable": "true",
        "retention.ms": "-1",
    },
}


def described(wire: Wire, kind: int, name: str, *sources: int) -> dict[str, str]:
    """The settings of a resource that come from one of ``sources``."""
    asked = {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}
    answer = ask(wire, "DescribeConfigs", asked, 4, "results", 0, "error_code")
    return {item["name"]: item["value"] for item in answer["results"][0]["configs"] if item["config_source"] in sources}


def accounts(wire: Wire) -> list[Any]:
    """Who can log in, how, and by how many iterations."""
    return sorted(
        (each["user"], sorted((info["mechanism"], info["iterations"]) for info in each["credential_infos"]))
        for each in ask(wire, "DescribeUserScramCredentials", {"users": None}, 0, "error_code")["results"]
    )


@contextmanager
def kafka_of_export(kafka: Kafka) -> Iterator[Wire]:
    """A Kafka with the ``server.properties`` of an export, but for its ports."""
    text = (kafka.directory / "server.properties").read_text(encoding="iso-8859-1")
    assert "node.id=1\n" in text
    assert f"log.dirs={kafka.directory}\n" in text
    mine = text.replace("localhost:9092", kafka.address).replace("localhost:9093", f"127.0.0.1:{kafka.port + 1}")
    lines = [line for line in mine.splitlines() if not line.startswith("#")]
    with kafka.running(*lines), Wire(kafka.port) as wire:
        yield wire


def test_a_kafka_has_the_accounts_and_all_settings_of_an_export(tmp_path: Path) -> None:
    script = kafka_script()
    data = tmp_path / "data"
    file = tmp_path / "broker.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in FILE.items()) + "seglog.handles.max=99\n")
    listening = daemon_settings(("PLAINTEXT", "SASL_PLAINTEXT"))
    with daemon(data, "--config", str(file), *listening) as running:
        make_users(running.kafka_port)
        with Wire(running.kafka_port) as wire:
            create(wire, TOPICS)
            for broker, changes in AT_RUN_TIME.items():
                alter(wire, _BROKER, broker, *((key, 0, value) for key, value in changes.items()))
            for group, changes in OF_GROUPS.items():
                alter(wire, _GROUP, group, *((key, 0, value) for key, value in changes.items()))
            produce(wire, "words", batch_of("kept", 5))
            commit(wire, {"words": 3, "most": 0})
            ours, users = seen(wire), accounts(wire)
        assert running.stop() == 0
    kafka = Kafka(script, tmp_path / "kafka")
    kafka.data.mkdir()
    told = export(data, kafka.directory, "--config", str(file))
    assert f"changed: topic least: segment.bytes is {SEGMENT_BYTES_MIN_KAFKA} instead of 1024, the least" in told
    assert "changed: topic most: min.insync.replicas is 1 instead of 2147483647" in told
    assert "changed: broker 1: log.retention.check.interval.ms=300001 is left out, Kafka sets it in its file" in told
    assert "changed: accounts go along, but the listeners in server.properties ask for none" in told
    with kafka_of_export(kafka) as wire:
        assert seen(wire) == ours
        expected = {
            "least": TOPICS["least"] | {"segment.bytes": str(SEGMENT_BYTES_MIN_KAFKA)},
            "most": TOPICS["most"] | {"min.insync.replicas": "1"},
            "words": TOPICS["words"],
        }
        for of_topic in expected.values() if KAFKA_VERSION == "4.3.1" else ():  # which does not know the key
            of_topic.pop("max.decompressed.message.bytes", None)
        assert {name: settings(wire, name) for name in TOPICS} == expected
        # Kafka itself sets min.insync.replicas for all brokers when it starts with eligible leader replicas.
        assert described(wire, _BROKER, "", _ALL_BROKERS) == AT_RUN_TIME[""] | {"min.insync.replicas": "1"}
        assert described(wire, _BROKER, "1", _DYNAMIC_BROKER) == OF_BROKER
        assert {name: described(wire, _GROUP, name, _OF_GROUP) for name in OF_GROUPS} == OF_GROUPS
        of_file = described(wire, _BROKER, "1", _STATIC_BROKER)
        assert of_file["log.retention.ms"] == "18000000"
        assert of_file["num.partitions"] == "3"
        assert of_file["log.segment.bytes"] == str(64 << 20)
        assert accounts(wire) == users
