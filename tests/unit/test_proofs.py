"""tests/proofs.toml: each row and sentence stands on its page, every row of a page is in it, and each test exists."""

import re
import tomllib
from functools import cache

from tests.support import REPOSITORY, each_case

_TEXT = (REPOSITORY / "tests/proofs.toml").read_text(encoding="utf-8")
PROOFS: dict[str, dict[str, dict[str, list[str]]]] = tomllib.loads(_TEXT)
SECTIONS = [(page, section) for page, sections in PROOFS.items() for section in sections]
_HEADINGS = (
    "what clients can make grow",
    "cannot",
    "ack",
    "what the bit is in",
    "what is missing",
    "what happens",
    "the log",
    "---",
)


def _section(page: str, title: str) -> str:
    """The text of a section."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    [section] = re.findall(rf"^##? {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(section)


@cache
def _functions(path: str) -> frozenset[str]:
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))


def test_three_pages_have_proofs() -> None:
    assert PROOFS.keys() == {"docs/BOUNDS.md", "docs/DURABILITY.md", "SECURITY.md"}
    assert sum(len(tests) for page, section in SECTIONS for tests in PROOFS[page][section].values()) >= 240


@each_case(("page", "section"), SECTIONS, ids=[f"{page}, {section}" for page, section in SECTIONS])
def test_each_row_of_a_section_has_tests_that_exist(page: str, section: str) -> None:
    rows, text = PROOFS[page][section], " ".join(_section(page, section).split())
    for key, tests in rows.items():
        assert key in text, f"{page} no longer says {key!r}"
        assert tests, key
        for test in tests:
            path, _, name = test.partition("::")
            assert (REPOSITORY / path).exists(), test
            assert not name or name in _functions(path), test
    firsts = re.findall(r"^ *\| ?(.*?) ?\|", _section(page, section), re.MULTILINE)
    assert {first.strip() for first in firsts if not first.startswith(_HEADINGS)} - rows.keys() == set()


def test_every_section_with_a_table_has_proofs() -> None:
    for page, sections in PROOFS.items():
        parts = (REPOSITORY / page).read_text(encoding="utf-8").split("\n## ")[1:]
        with_table = {part.partition("\n")[0] for part in parts if "\n| " in part}
        assert with_table <= sections.keys(), page
