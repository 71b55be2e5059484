"""Builds of seglog that are measured beside the sources: a wheel, a folder of packages, or a Python that has them."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import REPOSITORY, BenchmarkError
from benchmarks.processes import Build, environment

_PROBE: Final = """
import json, sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
import seglog_broker, seglog_protocol
from seglog_broker.runtime.interpreter import is_profile_optimized
from seglog_protocol.version import VERSION
folders = [Path(package.__path__[0]) for package in (seglog_broker, seglog_protocol)]
compiled = [path for folder in folders for path in folder.rglob("*" + EXTENSION_SUFFIXES[0])]
print(json.dumps([VERSION, sys.version.split()[0], is_profile_optimized(), len(compiled)]))
"""
_PGO: Final = {True: ", with PGO", False: ", without PGO", None: ""}


class About(NamedTuple):
    """What a build says of itself."""

    text: str
    compiled: int
    """How many modules of broker and protocol are compiled."""


def build_of(path: Path, folder: Path) -> Build:
    """The build in a wheel, which is unpacked into ``folder``, in a folder of packages, or of a Python that has it."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder)
        return Build(sys.executable, environment(folder))
    if path.is_dir():
        return Build(sys.executable, environment(path.absolute()))
    return Build(str(path), {name: value for name, value in environment().items() if name != "PYTHONPATH"})


def about(build: Build) -> About:
    """BenchmarkError where it cannot be imported."""
    done = subprocess.run(
        [build.python, "-c", _PROBE], env=build.environment, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{build.python} cannot import seglog: {done.stderr.strip()[-300:]}")
    version, python, is_optimized, compiled = json.loads(done.stdout)
    kind = f"{compiled} modules compiled" if compiled else "pure"
    return About(f"{version}, {kind}, on Python {python}{_PGO[is_optimized]}", compiled)


def compiled_build(path: Path, folder: Path) -> tuple[Build, About]:
    """``build_of`` and what it says. BenchmarkError where no module of broker or protocol is compiled."""
    if not os.access(path, os.R_OK):
        raise BenchmarkError(f"{path} cannot be read")
    build = build_of(path, folder)
    found = about(build)
    if not found.compiled:
        raise BenchmarkError(f"{path} has no compiled modules")
    return build, found
