"""docs/BOUNDS.md: every bound in its table is the one in the code."""

import re
from importlib import import_module

import pytest

from seglog_broker.config import load_config
from seglog_broker.runtime.response_memory import LARGE_BYTES
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "BOUNDS.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| .*? \| (\d+)[a-z ]* \| `(.*?)` \|$", PAGE, re.MULTILINE)


def test_there_is_a_table() -> None:
    assert len(ROWS) > 10
    assert f"responses of more than {LARGE_BYTES} bytes" in PAGE


@pytest.mark.parametrize(("number", "where"), ROWS, ids=[where for _, where in ROWS])
def test_a_bound_is_that_of_the_code(number: str, where: str) -> None:
    if where.startswith("seglog."):
        config, _ = load_config(None, "", {}, [])
        assert getattr(config, where.replace(".", "_")) == int(number)
        return
    module, _, name = where.rpartition(".")
    package = "seglog_broker" if module.startswith(("runtime", "listeners")) else "seglog_protocol"
    assert getattr(import_module(f"{package}.{module}"), name) == int(number)
