"""docs/DURABILITY.md: every failure and every ack has an answer, and every answer tests that exist."""

import ast
import re
from functools import cache

import pytest

from tests.support import REPOSITORY

_PAGE = (REPOSITORY / "docs" / "DURABILITY.md").read_text(encoding="utf-8")
_FAILURES = [
    "The broker is killed",
    "The operating system crashes",
    "The power goes",
    "The disk is full",
    "A bit flips",
    "An fsync fails",
]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def _tests_in(path: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_failure_has_a_table_and_no_other_section_has() -> None:
    with_table = [part.partition("\n")[0] for part in _PAGE.split("\n## ")[1:] if "\n| ack |" in part]
    assert with_table == _FAILURES


@pytest.mark.parametrize("failure", _FAILURES)
def test_every_ack_has_an_answer_that_tests_prove(failure: str) -> None:
    section = _PAGE.split(f"\n## {failure}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", section, re.MULTILINE)
    assert [ack for ack, _, _ in rows] == ["none", "os", "disk"]
    for ack, answer, proof in rows:
        assert answer.strip()
        assert _NAMED.findall(proof), f"{failure}, {ack}: nothing proves it"
        assert re.sub(r", ", "", _NAMED.sub("", proof)) == ""


def test_every_test_that_is_named_exists() -> None:
    named = _NAMED.findall(_PAGE)
    assert len(named) > 25
    for path, name in named:
        assert name.startswith("test_")
        assert name in _tests_in(path), f"{path} has no {name}"
    assert len(named) == _PAGE.count("tests/"), "each in the form that is looked for"
