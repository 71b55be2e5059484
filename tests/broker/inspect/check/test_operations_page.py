"""docs/OPERATIONS.md names every option of `seglogd check`, everything it can find, and every kind of line.

That its examples are what is printed is tested with those of `seglogd dump`, which work on the same directory.
"""

import json

from seglog_broker.inspect.check.command import make_parser
from seglog_broker.inspect.facts import json_lines
from seglog_broker.inspect.findings import Code
from tests.broker.inspect.check.support import check, written
from tests.logs import flip_bit
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## Checking a directory") : PAGE.index("## What the broker counts")]


def test_the_page_names_every_option() -> None:
    for action in make_parser()._actions:
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                assert f"`{option}" in SECTION


def test_the_page_names_every_code_and_no_other() -> None:
    found = SECTION[SECTION.index("### What is found") :].partition("### JSON lines")[0]
    rows = [line for line in found.splitlines() if line.startswith("| `") and line.count("|") == 4]
    named = [cell.strip(" `") for row in rows for cell in row.split("|")[1].split(",")]
    assert sorted(named) == sorted(Code)


def test_the_page_names_every_kind_of_line_and_every_field_of_a_finding() -> None:
    fs = written()
    flip_bit(fs, "/data/commits-0/00000000000000000000.log", 915)
    lines = [json.loads(line) for line in json_lines(check(fs, repair=True))]
    assert {line["kind"] for line in lines} == {"finding", "repaired", "left", "partition", "totals"}
    for line in lines:
        assert f"`{line['kind']}`" in SECTION
    for field in next(line for line in lines if line["kind"] == "finding"):
        assert f"`{field}`" in SECTION, field
