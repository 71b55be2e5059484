"""What a compiled module may not have, so that the wheel of compiled modules does what the sources do.

mypyc mixes up coroutines that are awaited from interpreted ones, does not close a generator that is left alone, so that
what it holds open stays open, and compiles no ``except*``. See docs/decisions/0018.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import hatchling.build
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import REPOSITORY, each_case

_NOTHING_OPEN: Final = "it holds nothing open, and is used by the client's record loop"

_AT_ONCE: Final = "it holds nothing open; what is not large is read in one step"

GENERATORS: Final = {
    "broker/seglog_broker/coordinators/groups/committed_offsets.py": {"end_transaction": _AT_ONCE},
    "broker/seglog_broker/coordinators/share/records.py": dict.fromkeys(("catch_up", "read"), _AT_ONCE),
    "broker/seglog_broker/coordinators/state_machine.py": dict.fromkeys(
        ("decode_record", "encode_record", "end_transaction", "read", "take"), _AT_ONCE
    ),
    "broker/seglog_broker/coordinators/topic.py": {"gather": _AT_ONCE, "_encode": _AT_ONCE},
    "broker/seglog_broker/listeners/kafka/handlers/fetch.py": {"read": _AT_ONCE, "found": _AT_ONCE},
    "broker/seglog_broker/listeners/kafka/handlers/list_offsets.py": {"read": _AT_ONCE},
    "protocol/seglog_protocol/record_batch.py": {"iter_batches": _NOTHING_OPEN},
    "protocol/seglog_protocol/records.py": {"iter_records": _NOTHING_OPEN},
}
"""Generator functions that are compiled all the same, and why."""


def compiled() -> list[str]:
    """The paths of the modules that pyproject.toml has compiled."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    paths: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return paths


def test_a_build_in_an_environment_of_its_own_has_what_the_modules_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler refuses a module whose imports it cannot see; pip installs nothing but what the hook asks for."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("HATCH_BUILD_HOOKS_ENABLE", "true")
    asked = {canonicalize_name(Requirement(line).name) for line in hatchling.build.get_requires_for_build_wheel()}
    ours = {"seglog", "seglog_broker", "seglog_protocol"}
    for name in sorted(imported() - sys.stdlib_module_names - ours):
        assert {canonicalize_name(found) for found in packages_distributions()[name]} & asked, name


def imported() -> set[str]:
    """The top-level names that the compiled modules import."""
    found = set()
    for path in compiled():
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.add(node.module.partition(".")[0])
    return found


@each_case("path", compiled())
def test_a_compiled_module_has_nothing_that_differs_when_compiled(path: str) -> None:
    tree = ast.parse((REPOSITORY / path).read_text())
    for node in ast.walk(tree):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith), (
            f"{path}, line {node.lineno}: what is async stays interpreted"
        )
        assert not isinstance(node, ast.TryStar), f"{path}, line {node.lineno}: except* cannot be compiled"
    assert {function.name for function in generators(tree)} == GENERATORS.get(path, {}).keys()


def test_an_interpreted_subclass_sets_what_a_compiled_class_has_a_default_for_on_its_objects() -> None:
    """The methods of the compiled class do not see what stands in the body of the other: mypy 2.4.1, findings/."""
    modules = [*(REPOSITORY / "broker").rglob("*.py"), *(REPOSITORY / "clients").rglob("*.py")]
    defaults: dict[str, set[str]] = {}
    for path in compiled():
        defaults |= {name: attributes for name, _, attributes in classes(REPOSITORY / path)}
    assert defaults["Wire"] >= {"is_ordered", "is_framed"}
    for module in {*modules} - {REPOSITORY / each for each in compiled()}:
        for name, bases, attributes in classes(module):
            for base in bases & defaults.keys():
                assert not attributes & defaults[base], f"{module}, {name}"


def classes(path: Path) -> Iterator[tuple[str, set[str], set[str]]]:
    """The classes of a module: name, bases, and attributes with a value in the body."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            given = [each for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign) and each.value]
            targets = [each.target if isinstance(each, ast.AnnAssign) else each.targets[0] for each in given]
            yield node.name, {*map(ast.unparse, node.bases)}, {*map(ast.unparse, targets)}


def generators(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(isinstance(n, ast.Yield | ast.YieldFrom) for n in own(node)):
            yield node


def own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions in it."""
    left: list[ast.AST] = [*function.body]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
