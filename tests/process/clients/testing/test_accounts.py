"""``seglog.testing.Broker`` with accounts as a daemon, and in processes of their own."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.processes import finished
from tests.unit.clients.testing.test_accounts import (
    TLS,
    assert_changes_stay,
    assert_no_password_shown,
    pytestmark,
)

__all__ = ["pytestmark"]

PROCESS: Final = {"process": True}


@pytest.fixture(autouse=True)
def _without_leftovers() -> Iterator[None]:
    """Close what kafka-python leaves open before another test begins."""
    yield
    gc.collect()


def test_accounts_are_made_changed_and_deleted_and_stay_so() -> None:
    assert_changes_stay(PROCESS)


@TLS
def test_no_password_is_in_a_repr_a_log_or_an_argument_of_a_process(tls: bool) -> None:
    assert_no_password_shown(PROCESS, tls)


def test_certificates_are_made_once_and_gone_at_the_end_of_the_process(tmp_path: Path) -> None:
    program = """
import os
from seglog.testing import Broker

def ca():
    with Broker(memory=True, tls=True) as broker:
        broker.produce("t", "one")
        return broker.ca

first = ca()
assert ca() == first
child = os.fork()
if not child:
    assert ca() != first
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
assert ca() == first
print(first)
"""
    done = finished([sys.executable, "-W", "error", "-c", program], environment={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr  # a slow machine has it say that it waits
    assert "Warning" not in done.stderr
    assert done.stdout.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
