"""Consume, transform, produce by programs of others in transactions, killed like the broker: each record once."""

import os
from functools import partial
from pathlib import Path

import pytest

from tests.copying import GROUP, KEYS, TRANSACTION_SECONDS, Copier, assert_each_record_is_copied_once
from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import go_program, java_program
from tests.interop.peer import kafka_script
from tests.interop.test_python_frameworks import with_quix_streams
from tests.processes import Daemon

RECORDS = int(os.environ.get("SEGLOG_TRANSACTION_RECORDS", "4000"))
KILLS = int(os.environ.get("SEGLOG_TRANSACTION_KILLS", "2"))

pytestmark = [pytest.mark.timeout(600 + 60 * KILLS)]


def _with_franz_go(running: Daemon, name: str, batch: int) -> list[str]:
    with skipped_where_absent("franz-go"):
        command = go_program("copier")
    return [*command, f"127.0.0.1:{running.kafka_port}", name, str(batch), str(TRANSACTION_SECONDS)]


def _with_kafkas_copier(running: Daemon, name: str, batch: int) -> list[str]:
    """The program of Kafka's own system tests, which also aborts some of its transactions."""
    options = {
        "broker-list": f"127.0.0.1:{running.kafka_port}",
        "transactional-id": name,
        "transaction-size": str(batch),
        "transaction-timeout": str(TRANSACTION_SECONDS * 1000),
        "consumer-group": GROUP,
        "input-topic": "in",
        "input-partition": "-1",  # those that the group gives it
        "output-topic": "out",
    }
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    modes = ["--group-mode", "--use-group-metadata", "--enable-random-aborts"]
    return [str(kafka_script()), "run", "org.apache.kafka.tools.TransactionalMessageCopier", *given, *modes]


def _with_flink(running: Daemon, name: str, batch: int) -> list[str]:
    """It commits with each checkpoint, and what is in a checkpoint must be committed, however late that is."""
    with skipped_where_absent("Flink"):
        command = java_program("FlinkCopier", "flink")
    server, checkpoints = f"127.0.0.1:{running.kafka_port}", running.directory.parent / f"checkpoints-{name}"
    return [*command, server, name, str(15 * 60 * 1000), str(checkpoints), str(batch)]


def _counted(number: int) -> str:
    return f"{number} {number // KEYS + 1}"


COPIERS = (
    Copier("franz-go", _with_franz_go),
    Copier("TransactionalMessageCopier", _with_kafkas_copier),
    Copier("quix-streams", partial(with_quix_streams, "exactly-once"), _counted),
    Copier("flink", _with_flink, workers=1),
)


@pytest.mark.parametrize("copier", COPIERS, ids=lambda copier: copier.name)
def test_each_record_is_copied_once_through_the_death_of_workers_and_of_the_broker(
    copier: Copier, tmp_path: Path
) -> None:
    assert_each_record_is_copied_once(copier, tmp_path, RECORDS, KILLS)
