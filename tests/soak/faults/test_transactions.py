"""Consume, transform, produce in transactions while workers and the broker are killed: each record once.

``SEGLOG_TRANSACTION_RECORDS`` and ``SEGLOG_TRANSACTION_KILLS`` make it longer; 500,000 and 10 are what was run by hand.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.copying import Copier, assert_each_record_is_copied_once
from tests.processes import Daemon
from tests.support import REPOSITORY

RECORDS = int(os.environ.get("SEGLOG_TRANSACTION_RECORDS", "4000"))
KILLS = int(os.environ.get("SEGLOG_TRANSACTION_KILLS", "2"))
HERE = REPOSITORY / "tests" / "process" / "faults"

pytestmark = [pytest.mark.timeout(600 + 60 * KILLS)]


def _with_confluent(running: Daemon, name: str, batch: int) -> list[str]:
    return [sys.executable, str(HERE / "confluent_copier.py"), f"127.0.0.1:{running.kafka_port}", name, str(batch)]


def _with_seglog(running: Daemon, name: str, _batch: int) -> list[str]:
    return [sys.executable, str(HERE / "seglog_copier.py"), running.address, name]


def _in_one_loop(running: Daemon, name: str, batch: int) -> list[str]:
    return [*_with_seglog(running, name, batch), str(2 * batch)]


COPIERS = (
    Copier("confluent-kafka", _with_confluent),
    Copier("seglog", _with_seglog),
    Copier("seglog, in one loop", _in_one_loop),
)


@pytest.mark.parametrize("copier", COPIERS, ids=lambda copier: copier.name)
def test_each_record_is_copied_once_through_the_death_of_workers_and_of_the_broker(
    copier: Copier, tmp_path: Path
) -> None:
    assert_each_record_is_copied_once(copier, tmp_path, RECORDS, KILLS)
