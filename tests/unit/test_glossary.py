"""docs/GLOSSARY.md: its terms are used, and lead to each other. And docs/decisions: numbered, linked."""

import re
from pathlib import Path

from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "GLOSSARY.md").read_text(encoding="utf-8")
_ENTRY = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.MULTILINE)


def _sections() -> list[list[tuple[str, str]]]:
    """The terms and meanings under each heading."""
    return [_ENTRY.findall(section) for section in PAGE.split("\n## ")[1:]]


def _terms() -> dict[str, str]:
    return {term: meaning for section in _sections() for term, meaning in section}


def _texts() -> str:
    """Everything in which a term may be used: code and documents, without the glossary and the tests."""
    paths = [path for folder in ("broker", "protocol", "clients") for path in (REPOSITORY / folder).rglob("*.py")]
    paths += [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    texts = [path.read_text(encoding="utf-8") for path in paths if path.name != "GLOSSARY.md"]
    return re.sub(r"\s+", " ", " ".join(texts)).lower()


def test_every_term_occurs_in_the_code_or_the_documents() -> None:
    texts = _texts()
    for term in _terms():
        assert re.search(r"\b" + r"[ _]".join(re.escape(word) for word in term.lower().split()), texts), term


# --- Decisions --------------------------------------------------------------------------------------------------------

_DECISIONS = sorted((REPOSITORY / "docs" / "decisions").glob("[0-9]*.md"))


def test_decisions_are_numbered_and_linked_by_their_titles() -> None:
    listed = (REPOSITORY / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    assert len(_DECISIONS) >= 15
    for number, path in enumerate(_DECISIONS, 1):
        title = re.match(r"# (\d+)\. (.+)\n", path.read_text(encoding="utf-8"))
        assert title is not None, path.name
        assert int(title[1]) == number == int(path.name[:4])
        assert f"- [{title[2]}]({path.name})" in listed


def test_tests_and_files_that_decisions_name_are_there() -> None:
    named = 0
    for path in _DECISIONS:
        for token in re.findall(r"`((?:tests|examples|benchmarks)/[^`\s]*)`", path.read_text(encoding="utf-8")):
            place, _, test = token.partition("::")
            found: Path = REPOSITORY / place
            assert found.exists(), f"{path.name} names {token}"
            assert not test or f"def {test}(" in found.read_text(encoding="utf-8"), f"{path.name} names {token}"
            named += 1
    assert named >= 5
