"""The loops on which the face on asyncio is tested."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
import uvloop

Run = Callable[[Coroutine[Any, Any, None]], None]


def _asyncio(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main, debug=True)


def _uvloop(main: Coroutine[Any, Any, None]) -> None:
    uvloop.run(main)


RUNS: Final[dict[str, Run]] = {"asyncio": _asyncio, "uvloop": _uvloop}


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end, in asyncio's own loop, and in uvloop's."""
    return RUNS[request.param]
