"""Hosted CI and SECURITY.md say what Makefile, pyproject.toml and the code say."""

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.wheels import RELEASED, build_here, digest
from seglog_broker.config.__main__ import render_document
from seglog_broker.config.broker_config import BrokerConfig
from tests.support import REPOSITORY


def _read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def _jobs(workflow: str) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load(_read(f".github/workflows/{workflow}.yml"))["jobs"]
    return jobs


def test_hosted_ci_tests_exactly_the_pythons_that_the_package_names() -> None:
    project = tomllib.loads(_read("pyproject.toml"))["project"]
    named = [found[1] for line in project["classifiers"] if (found := re.search(r":: Python :: (3\.\d+)$", line))]
    assert _jobs("ci")["test"]["strategy"]["matrix"]["python-version"] == named
    assert project["requires-python"] == f">={named[0]}"


def test_hosted_ci_runs_targets_of_the_makefile_and_all_tests_among_them() -> None:
    commands = [step["run"] for job in _jobs("ci").values() for step in job["steps"] if "run" in step]
    targets = " ".join(re.findall(r"^\.PHONY: (.*)$", _read("Makefile"), re.MULTILINE)).split()
    assert {command.split()[0] for command in commands} == {"make"}
    assert {command.split()[1] for command in commands} <= {*targets}
    assert {"make test", "make docs"} <= {*commands}


def test_a_release_has_a_wheel_for_each_python_on_both_machines() -> None:
    builder = tomllib.loads(_read("pyproject.toml"))["tool"]["cibuildwheel"]
    pythons = [f"cp{version.replace('.', '')}" for version in RELEASED]
    assert builder["build"] == [f"{python}-manylinux_*" for python in pythons]
    jobs = _jobs("release")
    machines = ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert jobs["compiled"]["strategy"]["matrix"] == {"machine": machines, "python": pythons}
    assert builder["environment"]["HATCH_BUILD_HOOKS_ENABLE"] == "true"
    assert set(jobs) == {"pure", "compiled"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "constraints.txt", "hatch_build.py"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "broker/seglog_broker").mkdir(parents=True)
    (tmp_path / "broker/seglog_broker/server.py").write_text("first = 1\n")
    return tmp_path


def test_modules_are_compiled_again_when_a_source_or_the_compiler_changed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> str:
        return digest(checkout, ["broker/seglog_broker"])

    first = found()
    (checkout / "broker/seglog_broker/server.pyc").write_text("of the same source")
    assert found() == first
    (checkout / "broker/seglog_broker/server.py").write_text("first = 2\n")
    second = found()
    assert second != first
    monkeypatch.setenv("CFLAGS", "-O0")
    assert found() not in {first, second}


def test_without_a_compiler_the_sources_start_and_not_what_was_compiled_before(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = checkout / "build/compiled" / digest(checkout, ["broker/seglog_broker"])[:16]
    (before / "packages").mkdir(parents=True)
    assert build_here(checkout) == 0
    assert (checkout / "build/compiled/now").resolve() == before
    monkeypatch.setenv("CC", "no-such-compiler -pipe")
    assert build_here(checkout) == 1
    assert not (checkout / "build/compiled/now").exists()
    assert re.fullmatch("nothing is compiled, .* sources.* no-such-compiler.*\n", capsys.readouterr().out)
    monkeypatch.undo()
    assert build_here(checkout) == 0, "what was built is there, also for a broker that runs from it"


def test_what_security_md_says_is_so() -> None:
    text = _read("SECURITY.md")
    assert f"`{BrokerConfig().seglog_listen}`" in text
    keys = set(re.findall(r"`((?:[a-z]+\.)+[a-z]+)(?:=\w+)?`", text))
    assert len(keys) >= 5
    page = render_document()
    assert [key for key in keys if f"| `{key}` |" not in page] == []
