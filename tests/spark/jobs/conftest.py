"""Jobs whose summary is looked at."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.conftest import Command

Job = Callable[..., dict[str, Any]]


@pytest.fixture
def job(command: Command) -> Job:
    """Run a job that has to succeed; its summary."""

    def run(*arguments: str) -> dict[str, Any]:
        code, out, err = command(*arguments, "--json")
        assert code == 0, err
        summary: dict[str, Any] = json.loads(out)
        return summary

    return run
