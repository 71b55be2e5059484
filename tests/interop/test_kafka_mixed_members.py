"""Two groups of four members, each with another client, that are killed and stopped while the broker is killed."""

import sys
from pathlib import Path

import pytest

from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import java_program, python_environment
from tests.members.running import run_through_faults
from tests.members.workers import Program, python_program
from tests.support import soak_seed

pytestmark = [pytest.mark.timeout(1800)]

KILLS = 10


def test_members_of_five_clients_share_topics_through_kills(tmp_path: Path) -> None:
    """Ten kills of the broker."""
    with skipped_where_absent("mixed members"):
        java = Program("java", java_program("JavaWorker"))
        python = python_environment()
    native = python_program("seglog_member", sys.executable, is_native=True)
    kafka_python, confluent, aiokafka = (
        python_program(f"{name}_member", python) for name in ("kafka_python", "confluent", "aiokafka")
    )
    groups = {"red": [native, confluent, aiokafka, java], "blue": [kafka_python, native, confluent, java]}
    run_through_faults(tmp_path, groups, rounds=KILLS, seed=soak_seed())
