"""Writes ``kafka_metadata_VERSION.tar.gz`` and ``.json``: a directory of a real Kafka with its metadata log.

``python -m tests.interop.make_kafka_metadata`` makes those of 4.4.0 again; ``KAFKA_VERSION=4.3.1`` before it, that
one's. The metadata log begins with a snapshot and goes on behind it; the JSON file has what Kafka said of each topic in
the end: its id in hex, and the settings of its own.
"""

import json
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final

from seglog_protocol.batch_builder import encode_batch
from tests.interop.handover import produce
from tests.interop.kafka_cases import create_topics, topic_ids
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.interop.peer import KAFKA_VERSION, Kafka, kafka_script

FOLDER: Final = Path(__file__).parent.parent / "unit" / "broker" / "storage" / "directory"
ARCHIVE: Final = FOLDER / f"kafka_metadata_{KAFKA_VERSION}.tar.gz"
FACTS: Final = FOLDER / f"kafka_metadata_{KAFKA_VERSION}.json"

TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "compacted": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "86400000",
    },
    "both": {"cleanup.policy": "compact,delete", "retention.ms": "3600000", "retention.bytes": "1000000"},
    "stamped": {"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"},
    "limited": {"max.message.bytes": "2000000", "message.timestamp.after.max.ms": "9223372036854775807"},
    "small": {"internal.segment.bytes": "4096", "index.interval.bytes": "512", "segment.index.bytes": "65520"},
    "remote": {"leader.replication.throttled.replicas": "*", "min.insync.replicas": "1"},
    "changed": {"retention.ms": "1000000", "segment.ms": "5000000"},
    "again": {"cleanup.policy": "compact"},
    "gone": {"cleanup.policy": "compact"},
}
_SET, _DELETE = 0, 1
_TOPIC, _BROKER = 2, 4


def alter(wire: Wire, kind: int, name: str, *changes: tuple[str, int, str | None]) -> None:
    """Change settings; each change is a key, 0 to set or 1 to delete it, and a value."""
    configs: list[Plain] = [{"name": key, "config_operation": what, "value": value} for key, what, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = plain(wire.ask(request("IncrementalAlterConfigs", {"resources": [resource]}), 1))
    assert answer["responses"][0]["error_code"] == 0, answer


def settings(wire: Wire, topic: str) -> dict[str, str]:
    """The settings of the topic's own, as Kafka describes them."""
    asked = {"resources": [{"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}]}
    answer = plain(wire.ask(request("DescribeConfigs", asked), 4))
    return {item["name"]: item["value"] for item in answer["results"][0]["configs"] if item["config_source"] == 1}


def delete(wire: Wire, *topics: str) -> None:
    """Delete topics."""
    asked = {"topics": [{"name": name} for name in topics], "timeout_ms": 30_000}
    answer = plain(wire.ask(request("DeleteTopics", asked), 6))
    assert not any(each["error_code"] for each in answer["responses"]), answer


def create(wire: Wire, topics: dict[str, dict[str, str]]) -> None:
    """Make topics of two partitions."""
    create_topics(
        wire,
        [
            {
                "name": name,
                "num_partitions": 2,
                "replication_factor": 1,
                "configs": [{"name": key, "value": value} for key, value in config.items()],
            }
            for name, config in topics.items()
        ],
    )


def fill(wire: Wire, topic: str) -> None:
    """Three records into partition 0, of the present, so that none expires."""
    now = time.time_ns() // 1_000_000
    produce(wire, topic, encode_batch([(now + number, b"k%d" % number, b"v", ()) for number in range(3)]))


def write(kafka: Kafka) -> dict[str, dict[str, Plain]]:
    """Fill the directory of a Kafka that does not run; return what it says of its topics."""
    with kafka.running("metadata.log.max.record.bytes.between.snapshots=1"), Wire(kafka.port) as wire:
        create(wire, TOPICS)
        alter(wire, _TOPIC, "changed", ("retention.ms", _SET, "2000000"), ("segment.ms", _DELETE, None))
        for topic in TOPICS:
            fill(wire, topic)
    with kafka.running(), Wire(kafka.port) as wire:
        alter(wire, _TOPIC, "changed", ("retention.ms", _DELETE, None), ("flush.messages", _SET, "7"))
        alter(wire, _TOPIC, "plain", ("segment.jitter.ms", _SET, "9"))
        alter(wire, _BROKER, "", ("log.retention.ms", _SET, "86400000"))
        alter(wire, _BROKER, "1", ("log.cleaner.threads", _SET, "2"))
        delete(wire, "again", "gone")
        create(wire, {"again": {"retention.ms": "5000000"}, "late": {"cleanup.policy": "compact"}})
        for topic in ("again", "late"):
            fill(wire, topic)
        return {name: {"id": found, "config": settings(wire, name)} for name, found in topic_ids(wire).items()}


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Nothing of deleted topics, and no index that is megabytes of zeros."""
    is_left_out = "-delete" in member.name or member.name.endswith(".deleted") or member.size > 1 << 20
    return None if is_left_out else member


def main() -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as folder:
        kafka = Kafka(kafka_script(), Path(folder) / "kafka")
        kafka.data.mkdir()
        facts = write(kafka)
        FACTS.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        with tarfile.open(ARCHIVE, "w:gz") as archive:
            archive.add(kafka.directory, arcname="logs", filter=_wanted)


if __name__ == "__main__":
    main()
