"""docs/BOUNDS.md: every bound in its tables is the one in the code."""

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from seglog_broker.config import load_config
from seglog_broker.runtime.response_memory import LARGE_BYTES
from tests.support import REPOSITORY, each_case

PAGE = (REPOSITORY / "docs" / "BOUNDS.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| .*? \| (\d+)[a-z ]* \| `(.*?)` \|$", PAGE, re.MULTILINE)


def test_there_are_tables() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what clients")]
    assert len(ROWS) == len(lines) > 40
    assert f"responses of more than {LARGE_BYTES} bytes" in PAGE


@each_case(("number", "where"), ROWS, ids=[row[1] for row in ROWS])
def test_a_bound_is_that_of_the_code(number: str, where: str) -> None:
    module, _, name = where.rpartition(".")
    if not name.isupper():
        config, _ = load_config(None, "", {}, [])
        assert getattr(config, where.replace(".", "_")) == int(number)
        return
    package = next(each for each in ("seglog_broker", "seglog_protocol") if find_spec(f"{each}.{module.split('.')[0]}"))
    assert getattr(import_module(f"{package}.{module}"), name) == int(number)


@cache
def names_of_tests() -> frozenset[str]:
    """The names of all test functions."""
    files = (REPOSITORY / "tests").rglob("test_*.py")
    return frozenset(
        name
        for file in files
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
    )
