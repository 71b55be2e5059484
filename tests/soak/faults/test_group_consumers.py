"""Consumers that share a topic: native and Kafka clients that are killed and stopped, and a broker that is killed.

Each process tells, a line each, what it was assigned in which generation, which records it handled and what it
committed; a watcher tells what the broker says. What must be true of all that: ``tests.members.checks``.
"""

from pathlib import Path

import pytest

from tests.members.running import run_through_faults
from tests.members.workers import python_program
from tests.support import soak_seed

pytestmark = pytest.mark.timeout(1800)

NATIVE = python_program("seglog_member", is_native=True)
CONFLUENT = python_program("confluent_member")


def test_native_and_kafka_members_share_a_topic_through_kills(tmp_path: Path) -> None:
    """Kills of members and of the broker."""
    groups = {"red": [NATIVE, CONFLUENT, NATIVE, CONFLUENT], "blue": [CONFLUENT, NATIVE, CONFLUENT, NATIVE]}
    run_through_faults(tmp_path, groups, rounds=4, seed=soak_seed())
