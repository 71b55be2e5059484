"""No test below this folder starts a process: what needs one stands below ``tests/process``."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
"""Events of Python's audit hooks, of which each starts a process."""
REMOVES = "/bin/sh", ["-c", 'read -r _; rm -rf -- "$0"']
"""The shell that removes the directory of a ``seglog.testing.Broker()`` however its process ends: it may start."""

_running: list[str] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in STARTS or not _running:
        return
    program, words = (*arguments, None, None)[:2]
    if isinstance(words, list) and (program, words[1:3]) == REMOVES:
        return
    raise AssertionError(
        f"{_running[-1]} starts a process ({event}: {arguments[:2]!r}): tests that do so stand below tests/process"
    )


sys.addaudithook(_refuse)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Has Python refuse to start a process while a test of this folder runs, with its fixtures."""
    if not item.path.is_relative_to(HERE):
        return (yield)
    _running.append(item.nodeid)
    try:
        return (yield)
    finally:
        _running.pop()
