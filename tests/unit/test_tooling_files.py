"""Hosted CI, pre-commit, .editorconfig and SECURITY.md say what Makefile, pyproject.toml and the code say."""

import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.wheels import RELEASED
from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.config.document import render_document
from tests.support import REPOSITORY, missing


def _read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def _yaml(name: str) -> Any:
    return yaml.safe_load(_read(name))


def _commands(target: str) -> list[str]:
    """What make runs for a target, with the folder of the programs written out."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", _read("Makefile"), re.MULTILINE)
    assert found is not None, f"no target {target}"
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def _targets() -> set[str]:
    return {name for line in re.findall(r"^\.PHONY: (.*)$", _read("Makefile"), re.MULTILINE) for name in line.split()}


def _workflow(name: str) -> dict[str, Any]:
    loaded: dict[Any, Any] = _yaml(f".github/workflows/{name}.yml")
    loaded["on"] = loaded.pop(True)  # YAML 1.1, which PyYAML reads, takes the word for a truth value
    return loaded


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    return _workflow("ci")


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    return _workflow("release")


def _steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_hosted_ci_tests_exactly_the_pythons_that_the_package_names(workflow: dict[str, Any]) -> None:
    project = tomllib.loads(_read("pyproject.toml"))["project"]
    named = [found[1] for line in project["classifiers"] if (found := re.search(r":: Python :: (3\.\d+)$", line))]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python-version"] == named
    assert project["requires-python"] == f">={named[0]}"


def test_hosted_ci_runs_targets_of_the_makefile_and_all_tests_among_them(workflow: dict[str, Any]) -> None:
    commands = [step["run"] for step in _steps(workflow) if "run" in step]
    for command in commands:
        program, target = command.split()
        assert (program, target in _targets()) == ("make", True), command
    assert "make test" in commands
    assert "make docs" in commands
    assert [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step] == ["make test"]


def test_hosted_ci_runs_for_every_change_may_only_read_and_ends(workflow: dict[str, Any]) -> None:
    assert set(workflow["on"]) == {"push", "pull_request"}
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["runs-on"].startswith("ubuntu"), name
        assert 0 < job["timeout-minutes"] <= 90, name
    for step in _steps(workflow):
        assert "run" in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]), step


def test_a_release_has_a_wheel_for_each_python_on_both_machines(release: dict[str, Any]) -> None:
    builder = tomllib.loads(_read("pyproject.toml"))["tool"]["cibuildwheel"]
    pythons = [f"cp{version.replace('.', '')}" for version in RELEASED]
    assert builder["build"] == [f"{python}-manylinux_*" for python in pythons]
    assert release["jobs"]["compiled"]["strategy"]["matrix"] == {
        "machine": ["ubuntu-24.04", "ubuntu-24.04-arm"],
        "python": pythons,
    }
    assert builder["environment"]["HATCH_BUILD_HOOKS_ENABLE"] == "true"
    assert set(release["jobs"]) == {"pure", "compiled"}


def test_a_release_waits_for_a_tag_may_only_read_and_publishes_nothing(release: dict[str, Any]) -> None:
    assert release["on"] == {"push": {"tags": ["v*"]}, "workflow_dispatch": None}
    assert release["permissions"] == {"contents": "read"}
    for name, job in release["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 90, name
    assert {step["uses"].partition("@")[0] for step in _steps(release) if "uses" in step} == {
        "actions/checkout",
        "actions/setup-python",
        "actions/upload-artifact",
    }


def test_pre_commit_runs_the_commands_of_make_check_and_downloads_nothing() -> None:
    repositories = _yaml(".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    assert [hook["entry"] for hook in hooks] == _commands("check")
    for hook in hooks:
        assert hook["language"] == "system"
        assert not hook["pass_filenames"]
        assert "additional_dependencies" not in hook
    assert len({hook["id"] for hook in hooks}) == len(hooks)


def test_files_are_as_editorconfig_says() -> None:
    parser = configparser.ConfigParser()
    parser.read_string("[top]\n" + _read(".editorconfig"))
    assert parser["top"]["root"] == "true"
    assert parser["Makefile"]["indent_style"] == "tab"
    assert int(parser["*"]["max_line_length"]) == tomllib.loads(_read("pyproject.toml"))["tool"]["ruff"]["line-length"]
    checked = 0
    for path in _tracked():
        data = path.read_bytes()
        name = path.relative_to(REPOSITORY).as_posix()
        data.decode(parser["*"]["charset"])
        assert b"\r\n" not in data, name
        assert not data or data.endswith(b"\n"), name
        assert not re.search(rb"[ \t]\n", data), name
        checked += 1
    assert checked > 200


def _tracked() -> list[Path]:
    """Texts of the repository."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        missing("git: no clone of the repository, or no git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    endings = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".sh", ".service", ""}
    paths = [REPOSITORY / name for name in names if Path(name).suffix in endings]
    return [path for path in paths if path.is_file() and "data" not in path.parts]


def test_what_security_md_says_is_so() -> None:
    text = _read("SECURITY.md")
    defaults = BrokerConfig()
    assert f"`{defaults.seglog_listen}`" in text
    keys = set(re.findall(r"`((?:[a-z]+\.)+[a-z]+)(?:=\w+)?`", text))
    assert len(keys) >= 5
    page = render_document()
    for key in keys:
        assert f"| `{key}` |" in page, key
