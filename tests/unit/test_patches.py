"""No test patches a name of the broker or of the protocol: what is compiled does not see it.

A compiled module calls its own functions directly, and has its constants built in. So tests change fields of objects,
give doubles that are subclasses, or reach the real limit. Of an object, a compiled class refuses what is no field.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.support import REPOSITORY

OURS: Final = ("seglog_broker", "seglog_protocol")
PATCHES: Final = frozenset({"setattr", "delattr", "setitem", "delitem", "object", "patch"})
"""Functions of pytest's MonkeyPatch and of ``unittest.mock``."""

MAY_PATCH: Final = re.compile(
    r"\b(?:setattr|delattr|setitem|delitem|object|patch)\(|^\s*(?!self\.)\w+\.\w+ = ", re.MULTILINE
)
"""Occurs in every module that patches: the others need not be parsed."""

_COUNTS: Final = "it counts calls, to see how much is done in one turn of the loop"

ALLOWED: Final = {
    "tests/unit/broker/api/test_turns.py": _COUNTS,
    "tests/unit/broker/coordinators/groups/conftest.py": "its steps have one item: others come between",
    "tests/unit/clients/arrow/test_decoding.py": "it decodes a few records at a time, so that many boundaries are met",
    "tests/unit/clients/directory/test_partition.py": "it notes the renames of a swap in place of making them",
    "tests/process/faults/metered_daemon.py": "it is a daemon of its own, whose measurements begin anew with each look",
    "tests/unit/simulation/test_durable_acks.py": "it makes mistakes on purpose, to see that they are caught",
    "tests/unit/simulation/test_transactions.py": "it makes mistakes on purpose, to see that they are caught",
}
"""Test modules that patch all the same, and why."""


def is_ours(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in OURS


def imported(tree: ast.Module) -> dict[str, str]:
    """Names that a module imports, each with the module that it comes from."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.asname or name.name.split(".")[0]: name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {name.asname or name.name: node.module for name in node.names}
    return found


def root_of(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def patches(source: str) -> Iterator[int]:
    """The lines that patch a name of ours."""
    tree = ast.parse(source)
    origins = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and is_ours(origins.get(node.value.id)):
                yield node.lineno
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called not in PATCHES:
                continue
            target = node.args[0]
            if isinstance(target, (ast.Constant, ast.JoinedStr)):
                text = target.value if isinstance(target, ast.Constant) else getattr(target.values[0], "value", "")
                if is_ours(str(text)):
                    yield node.lineno
                continue
            root = root_of(target)
            if isinstance(root, ast.Name) and is_ours(origins.get(root.id)):
                yield node.lineno


def test_tests_change_fields_and_no_names() -> None:
    found: dict[str, list[int]] = {}
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        source = path.read_text()
        if MAY_PATCH.search(source) and (lines := [*patches(source)]):
            found[str(path.relative_to(REPOSITORY))] = lines
    assert {place: lines for place, lines in found.items() if place not in ALLOWED} == {}
    assert ALLOWED.keys() <= found.keys(), "one that patches no more needs no permission"
