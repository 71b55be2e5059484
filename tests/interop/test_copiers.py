"""Frameworks and programs of others, unmodified: each copies a topic through kills of itself and of the broker.

Nothing is lost; by transactions nothing is there twice. ``SEGLOG_TRANSACTION_RECORDS`` and
``SEGLOG_TRANSACTION_KILLS`` make it longer.
"""

import os
from pathlib import Path

import pytest

from tests.copying import (
    GROUP,
    KEYS,
    TRANSACTION_SECONDS,
    Copier,
    assert_each_record_is_copied,
    assert_each_record_is_copied_once,
)
from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import CLIENTS, environment_of, go_program, java_program
from tests.interop.peer import kafka_script
from tests.processes import Daemon

RECORDS = int(os.environ.get("SEGLOG_TRANSACTION_RECORDS", "4000"))
KILLS = int(os.environ.get("SEGLOG_TRANSACTION_KILLS", "2"))

pytestmark = [pytest.mark.timeout(1_800 + 60 * KILLS)]


def _program(framework: str, running: Daemon) -> list[str]:
    """The command of a program of ``clients``, up to the server."""
    with skipped_where_absent(framework):
        python = environment_of(framework)
    return [str(python), str(CLIENTS / f"{framework}_copier.py"), f"127.0.0.1:{running.kafka_port}"]


def _with_faust(running: Daemon, name: str, _batch: int) -> list[str]:
    return [*_program("faust", running), str(running.directory.parent / f"state of {name}")]


def _with_quix_streams(running: Daemon, name: str, batch: int) -> list[str]:
    python, program, server = _program("quix", running)
    state = running.directory.parent / f"state of {name}"
    return [python, program, server, name, str(batch), str(TRANSACTION_SECONDS), str(state)]


# One worker, which lives on: at a start or a rebalance Faust skips what it has read already, and acknowledges it.
FAUST = Copier("Faust", _with_faust, workers=1, is_killed=False, number_of=lambda value: int(value.split()[0]))


def test_each_record_is_copied_and_counted_at_least_once(tmp_path: Path) -> None:
    """The state comes back: no count is lower than how many records of its key there were up to then."""
    for value in assert_each_record_is_copied(FAUST, tmp_path, RECORDS // 2, KILLS):
        number, count = map(int, value.split())
        assert count > number // KEYS


# --- In transactions --------------------------------------------------------------------------------------------------


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


def _with_streams(running: Daemon, name: str, _batch: int) -> list[str]:
    with skipped_where_absent("Kafka Streams"):
        command = java_program("StreamsCopier", "frameworks")
    return [*command, f"127.0.0.1:{running.kafka_port}", str(running.directory.parent / f"state of {name}")]


def _counted(number: int) -> str:
    return f"{number} {number // KEYS + 1}"


TRANSACTIONAL = (
    Copier("franz-go", _with_franz_go),
    Copier("TransactionalMessageCopier", _with_kafkas_copier),
    Copier("Quix Streams", _with_quix_streams, _counted),
    Copier("flink", _with_flink, workers=1),
    Copier("Kafka Streams", _with_streams, _counted),
)


@pytest.mark.parametrize("copier", TRANSACTIONAL, ids=lambda copier: copier.name)
def test_each_record_is_copied_once_through_the_death_of_workers_and_of_the_broker(
    copier: Copier, tmp_path: Path
) -> None:
    assert_each_record_is_copied_once(copier, tmp_path, RECORDS, KILLS)
