"""What `make test`, `make soak` and `make interop` run: each test once, and the unit tests again, compiled."""

import os
import re
import shlex
import subprocess
from pathlib import Path

from tests.support import (
    REPOSITORY,
    each_case,
)

TESTS = {
    "test": ("unit-broker", "unit-clients", "unit-others"),
    "soak": ("process", "spark", "browser", "unit-compiled", "soak-core", "soak-spark", "soak-alone"),
    "interop": ("interop",),
}
AGAIN = "unit-compiled"
CHECKS = ("check", "check-tests")


def dry(target: str) -> str:
    """What make would run, whatever make has started this."""
    command = ["make", "--dry-run", target, "SOAK=90", "SOAK_SEED=7"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    return re.sub(r" *\\\n *", " ", done.stdout)


def run_of(lane: str) -> tuple[bool | None, list[str], list[str]]:
    """If a lane wants tests marked `soak` or the others, None for all; its folders and files; those it leaves out."""
    (command,) = re.findall(r"bin/pytest ([^|;]+?) \|\|", dry(lane))
    words = shlex.split(command)
    wanted = {"soak": True, "not soak": False}[words[words.index("-m") + 1]] if "-m" in words else None
    left_out = [words[at + 1] for at, word in enumerate(words) if word == "--ignore"]
    return wanted, [word for word in words if word.startswith("tests") and word not in left_out], left_out


RUNS = {lane: run_of(lane) for lane in sum(TESTS.values(), ())}


def lanes_of(path: str, *, is_soak: bool) -> list[str]:
    """The lanes that have a test of this file."""
    found = []
    for lane, (wanted, places, left_out) in RUNS.items():
        if wanted in {None, is_soak} and _is_in(path, places) and not _is_in(path, left_out):
            found.append(lane)
    return found


def _is_in(path: str, places: list[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


@each_case("target", [*TESTS])
def test_a_target_is_made_of_its_lanes(target: str) -> None:
    assert [lane for lane in sum(TESTS.values(), ()) if f'echo "lane {lane}";' in dry(target)] == [*TESTS[target]]


def test_what_everyone_runs_checks_the_code_as_well() -> None:
    run = [line for line in dry("check").splitlines() if line.startswith(".venv/bin/")]
    assert {line.split()[0].rpartition("/")[2] for line in run} == {"ruff", "mypy", "lint-imports", "python"}
    assert all(line in dry("test") for line in run)
    assert ".venv/bin/mypy && .venv/bin/python scripts/house.py --all" in dry("soak")


def test_continuous_integration_runs_all_lanes_that_need_no_registry() -> None:
    commands = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    made = [command.removeprefix("exec ") for command in commands if command.removeprefix("exec ").startswith("make ")]
    assert made == [f"make {target}" for target in TESTS if target != "interop"]


def test_every_file_is_in_one_lane_and_those_of_mistakes_are_on_the_sources_too() -> None:
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        name = str(path.relative_to(REPOSITORY))
        usual, long = lanes_of(name, is_soak=False), lanes_of(name, is_soak=True)
        folder = name.split("/")[1]
        if folder == "interop":
            assert usual == long == ["interop"], name
        elif folder == "soak":
            assert len(long) == 1, name
        else:
            assert len(set(usual) - {AGAIN}) == 1, name
            assert (AGAIN in usual) == (folder == "unit"), name
            mistakes = {"soak-alone"} if name.startswith("tests/unit/simulation") else set()
            assert len(set(long) - mistakes) == 1, name


def test_chosen_tests_of_processes_exist_and_are_a_dozen() -> None:
    _, places, _ = RUNS["unit-others"]
    chosen = [place for place in places if place.startswith("tests/process")]
    assert 10 <= len(chosen) <= 14
    for place in chosen:
        path, _, test = place.partition("::")
        assert re.search(
            rf"^(async )?def {test.partition('[')[0]}\(",
            Path(REPOSITORY, path).read_text(encoding="utf-8"),
            re.MULTILINE,
        )


def test_the_documents_name_the_lanes() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for target in (*TESTS, *sum(TESTS.values(), ()), *CHECKS):
        assert f"`make {target}" in text, target
    assert "make soak SOAK=" in text
    assert "`SOAK_SEED=" in text
