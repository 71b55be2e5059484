"""Consumers that share a topic: native and Kafka clients that are killed and stopped, and a broker that is killed.

Each process tells, a line each, what it was assigned in which generation, which records it handled and what it
committed; a watcher tells what the broker says. What must be true of all that: ``tests.members.checks``.
"""

from pathlib import Path

import pytest

from tests.members.running import run_through_faults, running
from tests.members.workers import python_program
from tests.support import soak_seed

pytestmark = pytest.mark.timeout(1800)

NATIVE = python_program("seglog_member", is_native=True)
KAFKA_PYTHON, CONFLUENT = map(python_program, ("kafka_python_member", "confluent_member"))


def test_members_share_partitions_and_take_over_those_of_one_that_was_killed(tmp_path: Path) -> None:
    with running(tmp_path, {"app": [NATIVE, NATIVE]}) as run:
        run.until_worked_on()
        run.crew.lose("app", 0)
        run.until_settled()
        run.until_worked_on()
        run.finish()


def test_native_and_kafka_members_share_a_topic_through_kills(tmp_path: Path) -> None:
    """Kills of members and of the broker."""
    groups = {"red": [NATIVE, KAFKA_PYTHON, NATIVE, CONFLUENT], "blue": [KAFKA_PYTHON, NATIVE, CONFLUENT, NATIVE]}
    run_through_faults(tmp_path, groups, rounds=4, seed=soak_seed())
