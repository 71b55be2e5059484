"""examples/spark_to_kafka.py: a topic goes through Spark into a real Kafka, changed, and killed on the way."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import seglog
from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import spark_with_connector
from tests.interop.peer import Kafka, kafka_script
from tests.processes import PACKAGES, clean_environment, ended, kafka_daemon, wait_until
from tests.support import REPOSITORY
from tests.unit.clients.mirror.sides import contents, end_of, kafka_of, numbered, produce

pytestmark = [pytest.mark.timeout(900)]

PARTITIONS: Final = 2
COUNT: Final = 250_000
"""More than two micro-batches have."""

_ATTEMPTS: Final = 5


def _with_tombstones(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record | ({"value": None} if number % 10 == 9 else {}) for number, record in enumerate(records)]


def _in_order(address: str, partition: int, *, once: bool) -> list[Any]:
    """Key, value and headers of what has a value, each where it came first; ``once``: and it came once."""
    found = [tuple(map(repr, record[1:4])) for record in contents(address, "readings", partition) if record[2]]
    different = list(dict.fromkeys(found))
    assert not once or len(different) == len(found)
    return different


def test_a_replay_goes_on_after_a_kill_and_every_record_arrives_in_order(tmp_path: Path) -> None:
    with skipped_where_absent("spark"):
        python, jars = spark_with_connector()
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    with kafka_daemon(tmp_path / "data") as running, kafka.running():
        with seglog.connect(running.address) as client:
            client.create_topic("readings", partitions=PARTITIONS, config={"retention.ms": "-1"})
        produce(kafka_of(running), "readings", _with_tombstones(numbered(0, COUNT, PARTITIONS)))
        kafka.topics("--create", "--topic", "readings", "--partitions", str(PARTITIONS))
        command = [
            *(str(python), str(REPOSITORY / "examples" / "spark_to_kafka.py")),
            *(kafka.address, str(tmp_path / "progress")),
        ]
        environment = clean_environment(
            SEGLOG_SERVER=running.address,
            CONNECTOR_JARS=",".join(map(str, sorted(jars.glob("*.jar")))),
            PYTHONPATH=PACKAGES,
            SPARK_LOCAL_IP="127.0.0.1",
        )
        with (tmp_path / "spark.log").open("wb") as log:
            killed = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            with ended(killed):
                wait_until(
                    lambda: killed.poll() is not None or bool(end_of(kafka.address, "readings")), "the first records"
                )
                os.killpg(killed.pid, 9)
        _replay(command, environment)
        ours = [_in_order(kafka_of(running), partition, once=True) for partition in range(PARTITIONS)]
        assert sum(map(len, ours)) == COUNT * 9 // 10
        assert [_in_order(kafka.address, partition, once=False) for partition in range(PARTITIONS)] == ours
        written = [end_of(kafka.address, "readings", partition) for partition in range(PARTITIONS)]
        _replay(command, environment)
        assert [end_of(kafka.address, "readings", partition) for partition in range(PARTITIONS)] == written


def _replay(command: Sequence[str], environment: dict[str, str]) -> None:
    """Run it to its end; anew where Spark fails: it gives its Python workers ten seconds to start, on any machine."""
    said = ""
    for _ in range(_ATTEMPTS):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said = done.stderr[-3000:]
    raise AssertionError(said)
