"""How Python was built, as ``sysconfig`` says it for builds that are common; and how a module was."""

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import pytest

from seglog_broker.runtime.interpreter import build_of, describe_interpreter, is_profile_optimized
from tests.support import each_case

DOCKER: Any = {"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'", "PGO_PROF_USE_FLAG": "-fprofile-use"}
PYENV: Any = {"CONFIG_ARGS": "'--prefix=/root/.pyenv/versions/3.11.7'", "PGO_PROF_USE_FLAG": "-fprofile-use"}
DEBIAN: Any = {"CONFIG_ARGS": "'--enable-shared' '--prefix=/usr'", "PGO_PROF_USE_FLAG": ""}
WINDOWS: Any = {}


@each_case(("variables", "answer"), [(DOCKER, True), (PYENV, False), (DEBIAN, None), (WINDOWS, None)])
def test_common_builds_are_told_apart(variables: Any, answer: bool | None) -> None:
    assert is_profile_optimized(variables) is answer
    assert is_profile_optimized() in {True, False, None}


@pytest.mark.parametrize(("variables", "is_noted"), [(PYENV, True), (DOCKER, False), (DEBIAN, False)])
def test_only_a_build_known_to_be_without_it_is_noted(variables: Any, is_noted: bool) -> None:
    text = describe_interpreter(variables)
    assert text.startswith(sys.version.split()[0])
    assert ("PGO" in text) == is_noted


@pytest.mark.parametrize("suffix", EXTENSION_SUFFIXES)
def test_an_extension_is_compiled(suffix: str) -> None:
    assert build_of(f"/opt/seglog/connection{suffix}") == "compiled"


@pytest.mark.parametrize("file", ["/opt/seglog/connection.py", "/opt/seglog.so/connection.pyc", None])
def test_anything_else_is_its_source(file: str | None) -> None:
    assert build_of(file) == "sources"
