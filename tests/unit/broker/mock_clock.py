"""Async tests whose time goes on when nothing else does; a folder's conftest.py imports the hook."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import pytest
import trio
from trio.testing import MockClock


def _run(main: Callable[[], Any], *, clock: MockClock | None, instruments: Any) -> Any:
    return trio.run(main, clock=clock or MockClock(autojump_threshold=0), instruments=instruments)


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
        item.add_marker(pytest.mark.trio(run=_run))
