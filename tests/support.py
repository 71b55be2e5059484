"""What tests of every kind share."""

import math
import os
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, iscoroutinefunction, signature
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings

import seglog
from seglog_protocol import frames, messages

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES_MIN = 5


SOAK_MINUTES = 30
"""Of a ``make soak`` on two cores, where nothing else is asked for."""
SOAK_MINUTES_IN_FULL = 75
"""What is counted in soak tests, and the examples of properties, are written for so many minutes."""
SOAK_MINUTES_UNCOUNTED = 20
"""Those of them that tests take in which nothing is counted."""


def soak_minutes() -> float:
    """What ``make soak SOAK=`` asks for."""
    return float(os.environ.get("SEGLOG_SOAK_MINUTES") or SOAK_MINUTES)


def soak_share() -> float:
    """How much of what is counted in full fits the minutes of ``make soak SOAK=``; never nothing."""
    minutes = soak_minutes() - SOAK_MINUTES_UNCOUNTED
    return max(0.01, minutes / (SOAK_MINUTES_IN_FULL - SOAK_MINUTES_UNCOUNTED))


def soak_scaled(count: int) -> int:
    """How often to do what a soak test does ``count`` times in full, as ``make soak SOAK=`` has minutes; at least 1."""
    return max(1, round(count * soak_share()))


def soak_step() -> int:
    """Of things that a soak test goes through one by one in full, each how many-th to look at in these minutes."""
    return max(1, math.ceil(1 / soak_share()))


def soak_parts() -> int:
    """Of how many parts of the files of soak tests one fits the minutes; ``soak_seed`` says which, in turn."""
    return max(1, math.ceil(SOAK_MINUTES_UNCOUNTED / soak_minutes()))


def soak_seed() -> int:
    """What ``make soak SOAK_SEED=`` says, which makes the same run again; without it, anything."""
    return int(os.environ.get("SEGLOG_SOAK_SEED") or random.randrange(1 << 24))


def examples(count: int) -> int:
    """``max_examples`` of a property that gets ``count`` of them in a full soak, and few in ``make test``.

    The profile of Hypothesis that is loaded decides, see ``tests/conftest.py``: for each 100 it has its own number.
    """
    return max(EXAMPLES_MIN, count * settings().max_examples // 100)


def calls_of(work: Callable[[], object]) -> int:
    """How many functions ``work`` calls, Python's and C's: what it costs, on any machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def each_case(
    names: str | Sequence[str], cases: Iterable[Any], *, ids: Any = None
) -> Callable[[Callable[..., Any]], Any]:
    """All ``cases`` in one test, as subtests; else as ``pytest.mark.parametrize``, which makes a test of each.

    For functions whose fixtures need not be made anew for each case: an item costs pytest more than most cases take.
    Cases that are marked `soak` are a second test, which has that mark. No case has another mark.
    """
    words = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    parts: dict[str, list[tuple[Any, dict[str, Any]]]] = {"some": [], "rest": []}
    for place, case in enumerate(cases):
        values, marks = (case.values, case.marks) if hasattr(case, "marks") else (case if words[1:] else (case,), ())
        assert {mark.name for mark in marks} <= {"soak"}
        given = dict(zip(words, values, strict=True))
        said = ids(given[words[0]]) if callable(ids) else list(ids)[place] if ids else place
        parts["rest" if marks else "some"].append((said, given))
    assert parts["some"], "a test without a case would pass"

    def decorate(test: Callable[..., Any]) -> Any:
        there = signature(test).parameters
        own = {"subtests", "part"} if parts["rest"] else {"subtests"}
        wanted = [parameter for name, parameter in there.items() if name not in words]
        wanted += [Parameter(name, Parameter.KEYWORD_ONLY) for name in sorted(own - there.keys())]

        @wraps(test, updated=())
        def run(*, subtests: pytest.Subtests, part: str = "some", **fixtures: Any) -> None:
            if "subtests" in there:
                fixtures["subtests"] = subtests
            for said, case in parts[part]:
                with subtests.test(msg=f"{', '.join(words)}: {said}"):
                    test(**fixtures, **case)

        @wraps(test, updated=())
        async def run_async(*, subtests: pytest.Subtests, part: str = "some", **fixtures: Any) -> None:
            if "subtests" in there:
                fixtures["subtests"] = subtests
            for said, case in parts[part]:
                with subtests.test(msg=f"{', '.join(words)}: {said}"):
                    await test(**fixtures, **case)

        one: Any = run_async if iscoroutinefunction(test) else run
        one.__signature__ = Signature(wanted)
        # Only marks are passed on: to Hypothesis' plugin each case is a property, not the test of all of them.
        one.pytestmark = list(getattr(test, "pytestmark", []))
        if parts["rest"]:
            return pytest.mark.parametrize("part", ["some", pytest.param("rest", marks=pytest.mark.soak)])(one)
        return one

    return decorate


@contextmanager
def memory_taken() -> Iterator[Callable[[], int]]:
    """Gives a function that tells the most bytes that Python allocated in the block."""
    tracemalloc.start()
    most = 0
    try:
        yield lambda: most
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


ON_SOURCES = pytest.mark.skipif(
    not frames.__file__.endswith(".py"), reason="compiled: it changes code by name, or reads it"
)
"""For a test that only the sources can have; `make test` runs it."""

SOME_OR_ALL = pytest.mark.parametrize(
    "step", [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)]
)
"""For a test that goes through very many cases: ``make test`` has it take each seventh, and ``make soak`` all of them.

As 7 and 8 have no divisor in common, each seventh bit is every bit of some byte.
"""


def some_seeds(count: int, *, quick: int) -> list[Any]:
    """Seeds of a test: ``make test`` has the first ``quick`` of them, and ``make soak`` the rest."""
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(quick, count))]


def shared_data(*parts: str) -> Path:
    """A file or folder under ``data`` of the shared folder, which is no part of the project.

    The folder is named by SEGLOG_SHARED and otherwise the repository's sibling ``shared``. Where it is absent the test
    is skipped, saying what it lacked, or fails if SEGLOG_REQUIRE lists ``shared``.
    """
    folder = Path(os.environ.get("SEGLOG_SHARED") or REPOSITORY.parent / "shared")
    path = folder.joinpath("data", *parts)
    if not path.exists():
        missing(f"shared: no {'/'.join(('data', *parts))}; set SEGLOG_SHARED to the folder that has it")
    return path


def missing(what: str) -> None:
    """End the test because of something from outside that is absent: ``name: what is missing``."""
    name = what.partition(":")[0]
    required = os.environ.get("SEGLOG_REQUIRE", "").replace(",", " ").split()
    if name in required:
        pytest.fail(f"SEGLOG_REQUIRE names what is missing: {what}")
    pytest.skip(what)


def numbers_of(client: seglog.Client) -> dict[str, float]:
    """What the broker counts, by the plain names of ``client.metrics()``, without its warning."""
    return client.call(messages.MetricsRequest(), messages.MetricsReply, is_repeatable=True)[0].metrics


def request_of(header: dict[str, Any]) -> messages.Request:
    """The request in a header that is decoded to a map, by the class of its api alone."""
    own = {name: value for name, value in header.items() if name not in {"id", "api", "v"}}
    return messages.REQUESTS[header["api"]].from_wire(own)
