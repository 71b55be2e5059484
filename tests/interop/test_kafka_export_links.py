"""An export by ``--link`` shares closed segments with the log directory, and no Kafka writes into them."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.interop.handover import ask, batch_of, fetched, produce, seen
from tests.interop.kafka_wire import Wire
from tests.interop.make_kafka_metadata import alter, delete
from tests.interop.peer import Kafka, kafka_script
from tests.interop.test_kafka_export import TIMES, export, kafka_on, seglog_has, write
from tests.processes import kafka_daemon, wait_until

pytestmark = [pytest.mark.timeout(900)]

_TOPIC = 2
_BUSY = ("log.cleaner.enable=true", "log.retention.check.interval.ms=500", "log.cleaner.backoff.ms=100")


def _files(directory: Path) -> dict[str, Any]:
    """Checksum and time of everything in a log directory, by path."""
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def _delete_records(wire: Wire, topic: str, before: int) -> None:
    partition = {"partition_index": 0, "offset": before}
    asked = {"topics": [{"name": topic, "partitions": [partition]}], "timeout_ms": 30_000}
    ask(wire, "DeleteRecords", asked, 2, "topics", 0, "partitions", 0, "error_code")


def test_the_original_stays_as_it_is_whatever_kafka_does(tmp_path: Path) -> None:
    """Compaction, retention, deleted records and topics, and a recovery after kill -9: Kafka replaces and unlinks."""
    data = tmp_path / "data"
    ours = seglog_has(data, killed=False)
    original = _files(data)
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    export(data, kafka.directory, "--link")
    shared = [path for path in kafka.directory.rglob("*.log") if path.stat().st_nlink == 2]
    assert {path.parent.name.rpartition("-")[0] for path in shared} >= {"small", "compacted", "idempotent"}
    kafka.wait_until_cleaned("compacted", 0)  # where seglog's cleaner was
    with kafka_on(kafka, *_BUSY, killed=True) as wire:
        write(wire, "Kafka")
        kafka.wait_until_cleaned("compacted", 0)
        alter(wire, _TOPIC, "small", ("retention.bytes", 0, "1"))
        _delete_records(wire, "plain", fetched(wire, "plain", 0)[1])
        delete(wire, "idempotent")
        produce(wire, "flushed", batch_of("before the kill", 5))
        small = kafka.directory / "small-0" / "00000000000000000000.log"
        wait_until(lambda: not small.exists(), "retention")
    with kafka_on(kafka, *_BUSY) as wire:
        produce(wire, "small", batch_of("after the recovery", 5))
    assert _files(data) == original
    shutil.rmtree(kafka.directory)
    with kafka_daemon(data) as running:
        with Wire(running.kafka_port) as wire:
            assert seen(wire, TIMES) == ours
        assert running.stop() == 0
