"""What tests of every kind share."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def shared_data(*parts: str) -> Path:
    """A file or folder under ``data`` of the shared folder, which is no part of the project.

    The folder is named by SEGLOG_SHARED and otherwise the repository's sibling ``shared``. Where it is absent the test
    is skipped, saying what it lacked, or fails if SEGLOG_REQUIRE lists ``shared``.
    """
    folder = Path(os.environ.get("SEGLOG_SHARED") or REPOSITORY.parent / "shared")
    path = folder.joinpath("data", *parts)
    if not path.exists():
        missing(f"shared: no {'/'.join(('data', *parts))}; set SEGLOG_SHARED to the folder that has it")
    return path


def missing(what: str) -> None:
    """End the test because of something from outside that is absent: ``name: what is missing``."""
    name = what.partition(":")[0]
    required = os.environ.get("SEGLOG_REQUIRE", "").replace(",", " ").split()
    if name in required:
        pytest.fail(f"SEGLOG_REQUIRE names what is missing: {what}")
    pytest.skip(what)
