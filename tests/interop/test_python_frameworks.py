"""Frameworks of Python, unmodified: each copies a topic through kills of itself and of the broker, losing nothing."""

import os
from functools import partial
from pathlib import Path

import pytest

from tests.copying import Copier, copied
from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import CLIENTS, faststream_environment
from tests.processes import Daemon

RECORDS = int(os.environ.get("SEGLOG_FRAMEWORK_RECORDS", "2000"))
KILLS = int(os.environ.get("SEGLOG_FRAMEWORK_KILLS", "2"))

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300 + 60 * KILLS)]


def _with_faststream(below: str, running: Daemon, _name: str, _batch: int) -> list[str]:
    with skipped_where_absent("FastStream"):
        python = faststream_environment()
    return [str(python), str(CLIENTS / "faststream_copier.py"), f"127.0.0.1:{running.kafka_port}", below]


COPIERS = tuple(Copier(f"faststream, {below}", partial(_with_faststream, below)) for below in ("aiokafka", "confluent"))


@pytest.mark.parametrize("copier", COPIERS, ids=lambda copier: copier.name)
def test_each_record_is_copied_at_least_once(copier: Copier, tmp_path: Path) -> None:
    found = copied(copier, tmp_path, RECORDS, KILLS)
    assert found.keys() == {copier.copy(number).encode() for number in range(RECORDS)}
