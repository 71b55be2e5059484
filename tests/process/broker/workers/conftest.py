"""Fixtures of tests with worker processes: these run this checkout, and none outlives its test."""

from collections.abc import Iterator

import pytest

from seglog_broker.workers.jobs import WORKERS
from tests.processes import clean_environment, workers


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", clean_environment()["PYTHONPATH"])


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    before = {name: workers(name) for name in WORKERS}
    yield
    assert {name: workers(name) for name in WORKERS} == before
