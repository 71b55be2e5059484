"""The wheel with compiled modules: it is built when asked for, and its modules are those that run.

``SEGLOG_WHEEL`` names a wheel that is there already, as ``make soak`` does; without it one is built. The tests that the
sources pass run on its packages in ``make soak-core`` and ``make unit-compiled``.
"""

import json
import os
import socket
import subprocess
import sys
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import pytest

from tests.installed import build_wheel, environment_with
from tests.processes import clean_environment
from tests.support import REPOSITORY

pytestmark = [pytest.mark.timeout(3600)]

WHERE: Final = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in sys.argv[1:]}))
"""


def compiled_modules() -> list[str]:
    """The names of the modules that pyproject.toml has compiled."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    paths = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return [path.partition("/")[2].removesuffix(".py").replace("/", ".") for path in paths]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("SEGLOG_WHEEL")
    return Path(given).absolute() if given else build_wheel(tmp_path_factory.mktemp("wheel"), compiled=True)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_with(wheel, tmp_path_factory.mktemp("compiled") / "venv")


def run(python: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A Python that finds the packages of the wheel."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    return subprocess.run([python, *arguments], cwd=REPOSITORY, env=kept, capture_output=True, text=True, check=False)


def test_a_wheel_that_is_not_asked_to_be_compiled_is_for_every_machine(tmp_path: Path) -> None:
    built = build_wheel(tmp_path)
    assert built.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(built) as packed:
        assert {Path(name).suffix for name in packed.namelist() if ".dist-info/" not in name} == {
            ".py",
            ".pyi",
            ".typed",
            ".txt",
            ".jsonl",
        }


def test_the_wheel_has_an_extension_for_each_compiled_module(wheel: Path) -> None:
    """Beside its source, and one library for all."""
    suffix = EXTENSION_SUFFIXES[0]
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        tag = next(line for line in packed.read(_metadata(names)).decode().splitlines() if line.startswith("Tag:"))
    extensions = {f"{name.replace('.', '/')}{suffix}" for name in compiled_modules()}
    assert {name for name in names if name.endswith(suffix)} == extensions | {f"seglog__mypyc{suffix}"}
    assert {name.removesuffix(suffix) + ".py" for name in extensions} <= names
    assert f"cp{sys.version_info.major}{sys.version_info.minor}" in tag


def _metadata(names: set[str]) -> str:
    (found,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
    return found


def test_the_modules_that_are_imported_are_the_compiled_ones(python: Path) -> None:
    done = run(python, "-c", WHERE, *compiled_modules(), "seglog", "seglog_broker")
    assert done.returncode == 0, done.stderr
    places: dict[str, str] = json.loads(done.stdout)
    assert all(Path(place).is_relative_to(python.parents[1]) for place in places.values()), places
    assert [name for name, place in places.items() if place.endswith(tuple(EXTENSION_SUFFIXES))] == compiled_modules()


def test_the_daemon_says_that_it_runs_compiled_modules(python: Path, tmp_path: Path) -> None:
    """The first line of its log, on a port that is in use: it says so and ends."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = (
            str(python.parent / "seglogd"),
            "--listen",
            f"127.0.0.1:{port}",
            "--set",
            "listeners=",
            "--set",
            "seglog.http.listen=",
        )
        done = subprocess.run(
            [*daemon, "--set", f"log.dir={tmp_path / 'data'}", "--log-format", "json"],
            env=clean_environment(PYTHONPATH=""),  # else it would find the packages of this checkout first
            capture_output=True,
            text=True,
            check=False,
        )
    first = json.loads(done.stderr.splitlines()[0])
    assert (first["event"], first["build"]) == ("broker_starting", "compiled"), done.stderr


def test_an_editable_install_runs_the_sources(tmp_path: Path) -> None:
    """Also where it is asked to be compiled: the checkout stays as it is."""
    before = _all_files()
    subprocess.run(
        [
            *(sys.executable, "-c", "import sys, hatchling.build; hatchling.build.build_editable(sys.argv[1])"),
            str(tmp_path),
        ],
        cwd=REPOSITORY,
        env=os.environ | {"HATCH_BUILD_HOOKS_ENABLE": "true"},
        check=True,
    )
    (built,) = tmp_path.glob("*.whl")
    assert built.name.endswith("-py3-none-any.whl")
    assert _all_files() == before


def _all_files() -> set[Path]:
    folders = (REPOSITORY / name for name in ("broker", "protocol", "clients"))
    return {path for folder in folders for path in folder.rglob("*") if path.suffix not in {".pyc", ""}}
