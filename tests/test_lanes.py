"""What `make test`, `make soak` and `make interop` run: every test once, and every property in the first two."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from itertools import chain, combinations
from pathlib import Path
from unittest import mock

import pytest
from _pytest.mark.expression import Expression
from hypothesis import settings

from tests.support import (
    EXAMPLES_MIN,
    REPOSITORY,
    SOAK_MINUTES,
    SOAK_MINUTES_IN_FULL,
    SOAK_MINUTES_UNCOUNTED,
    examples,
    soak_minutes,
    soak_scaled,
    soak_seed,
    soak_step,
)

MARKERS = ("spark", "slow", "soak", "alone", "sources", "interop")
PROPERTY = "hypothesis"
"""The marker that Hypothesis gives to every test that is its own."""

TESTS = {
    "test": ("test-core", "test-spark"),
    "soak": ("soak-core", "soak-spark", "soak-compiled", "soak-alone"),
    "interop": ("interop",),
}

AGAIN = "soak-compiled"
"""The lane that has tests of ``make test`` again, on compiled packages."""

COLLECT = """
import json, pathlib, sys, pytest

class Collected:
    @staticmethod
    def pytest_collection_finish(session):
        found = {item.nodeid: [mark.name for mark in item.iter_markers()] for item in session.items}
        pathlib.Path(sys.argv[1]).write_text(json.dumps(found))

sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider"], [Collected]))
"""


def dry(target: str) -> str:
    """What make would run, whatever make has started this."""
    command = ["make", "--dry-run", target, "SOAK=90", "SOAK_SEED=7"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    return re.sub(r" *\\\n *", " ", done.stdout)


def expressions(target: str) -> list[str]:
    """What the runs of pytest in it choose tests by."""
    return re.findall(r"bin/pytest +-m '([^']+)'", dry(target))


LANES = {lane: expressions(lane)[0] for lanes in TESTS.values() for lane in lanes}


def lanes_of(markers: Collection[str]) -> list[str]:
    return [
        lane
        for lane, expression in LANES.items()
        if lane != AGAIN and Expression.compile(expression).evaluate(lambda name, /, **_: name in markers)
    ]


def judge(markers: Collection[str]) -> str:
    """The lane of a test, which must be one; a property must be in one of either kind."""
    (lane,) = lanes_of(set(markers) - {PROPERTY})
    if PROPERTY in markers:
        found = lanes_of(markers)
        assert found.count(lane) == 1, markers
        assert len([one for one in found if one in TESTS["soak"]]) == 1, markers
    return lane


@pytest.mark.parametrize("target", TESTS)
def test_a_target_is_made_of_its_lanes(target: str) -> None:
    assert expressions(target) == [LANES[lane] for lane in TESTS[target]]


def test_what_everyone_runs_checks_the_code_as_well() -> None:
    checks = [line.partition("bin/")[2] for line in dry("check").splitlines()]
    assert {check.partition(" ")[0] for check in checks} == {"ruff", "mypy", "lint-imports", "python"}
    everything = dry("test")
    assert all(f"bin/{check}\n" in everything for check in checks)


def test_continuous_integration_runs_all_lanes_that_need_no_registry() -> None:
    commands = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    made = [command.removeprefix("exec ") for command in commands if command.removeprefix("exec ").startswith("make ")]
    assert made == [f"make {target}" for target in TESTS if target != "interop"]


def test_whatever_markers_a_test_has_it_is_in_one_lane() -> None:
    for markers in chain.from_iterable(combinations(MARKERS, count) for count in range(len(MARKERS) + 1)):
        judge(markers)
        if not {"alone", "interop"} & set(markers):
            judge({*markers, PROPERTY})


@pytest.mark.slow
def test_every_test_that_is_collected_is_in_one_lane(tmp_path: Path) -> None:
    collected = tmp_path / "collected.json"
    subprocess.run([sys.executable, "-c", COLLECT, str(collected)], cwd=REPOSITORY, capture_output=True, check=True)
    tests: dict[str, list[str]] = json.loads(collected.read_text())
    counts = Counter(judge(markers) for markers in tests.values())
    assert counts.keys() == LANES.keys() - {AGAIN}
    long = [len({"soak", "slow"} & set(markers)) and ("soak" in markers) + 1 for markers in tests.values()]
    assert long == sorted(long, reverse=True), "the longest come first"
    (search,) = re.findall(r"\$\((grep [^)]+)\)", dry("test-spark"))
    searched = subprocess.run(["sh", "-c", search], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    with_spark = {name.partition("::")[0] for name, markers in tests.items() if "spark" in markers}
    assert with_spark == set(searched.stdout.split())
    again = sum(PROPERTY in markers for markers in tests.values())
    print(f"\n{len(tests)} tests: {dict(counts)}, {again} of them properties")
    assert again > 100


def test_the_documents_name_the_lanes_and_the_markers() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in (*(f"`make {target}" for target in (*TESTS, *LANES)), *(f"`{marker}`" for marker in MARKERS)):
        assert name in text, name
    assert "make soak SOAK=" in text
    assert "`SOAK_SEED=" in text
    declared = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8").split("markers = [")[1].split("\n]")[0]
    assert set(re.findall(r'"(\w+): ', declared)) == set(MARKERS)


def test_minutes_and_seed_of_a_soak_are_those_of_make(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in dry("soak").splitlines():
        if "--hypothesis-profile" in line:
            assert "SEGLOG_SOAK_MINUTES=90 SEGLOG_SOAK_SEED=7" in line
    assert dry("soak").count("--hypothesis-profile=soak --hypothesis-seed=7") == len(TESTS["soak"]) - 1
    assert dry("test").count("hypothesis") == 0
    monkeypatch.setenv("SEGLOG_SOAK_SEED", "7")
    counted = SOAK_MINUTES_IN_FULL - SOAK_MINUTES_UNCOUNTED
    monkeypatch.setenv("SEGLOG_SOAK_MINUTES", str(SOAK_MINUTES_UNCOUNTED + 2 * counted))
    assert (soak_seed(), soak_scaled(100), soak_step()) == (7, 200, 1)
    monkeypatch.setenv("SEGLOG_SOAK_MINUTES", str(SOAK_MINUTES_UNCOUNTED + counted / 2.5))
    assert (soak_scaled(100), soak_step()) == (40, 3)
    monkeypatch.setenv("SEGLOG_SOAK_MINUTES", "0.1")
    assert soak_scaled(100) == 1
    monkeypatch.delenv("SEGLOG_SOAK_MINUTES")
    assert soak_minutes() == SOAK_MINUTES
    assert f"\nSOAK ?= {SOAK_MINUTES}\n" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")


def test_what_soak_tests_count_is_printed_at_the_end(pytestconfig: pytest.Config) -> None:
    def passed(name: str, *keywords: str) -> pytest.TestReport:
        where = (name, None, name)
        sections = [("Captured stdout call", f"{name} counted\n")]
        return pytest.TestReport(name, where, dict.fromkeys(keywords, 1), "passed", None, "call", sections)

    reporter = mock.Mock()
    reporter.getreports.return_value = [passed("long", "soak"), passed("short", "slow")]
    ours = str(REPOSITORY / "tests" / "conftest.py")
    (conftest,) = (one for one in pytestconfig.pluginmanager.get_plugins() if getattr(one, "__file__", "") == ours)
    conftest.pytest_terminal_summary(reporter)
    reporter.write.assert_called_once_with("long counted\n")


def test_a_property_gets_as_many_examples_as_the_profile_has_for_it() -> None:
    before = settings.get_current_profile_name()
    try:
        settings.load_profile("seglog")
        assert tuple(map(examples, (25, 200, 1000))) == (EXAMPLES_MIN, 10, 50)
        settings.load_profile("soak")
        assert settings().max_examples == soak_scaled(100)
        assert examples(1000) == 10 * settings().max_examples
    finally:
        settings.load_profile(before)
