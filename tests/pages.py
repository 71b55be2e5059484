"""Programs of documents, run beside a daemon."""

import re
import subprocess
import sys
from pathlib import Path

from tests.processes import clean_environment
from tests.support import REPOSITORY


def reference(first: str, last: str = "") -> str:
    """The sections of docs/REFERENCE.md from one title to another, or the one."""
    page = (REPOSITORY / "docs" / "REFERENCE.md").read_text(encoding="utf-8") + "\n## "
    return page[page.index(f"\n## {first}\n") : page.index("\n## ", page.index(f"\n## {last or first}\n") + 1) + 1]


def programs_of(page: str) -> list[tuple[str, str]]:
    """Each program of a page with what the page says that it prints."""
    lines = r"((?:(?!```).*\n)*)```"
    return re.findall(rf"^```python\n{lines}\n\n```text\n{lines}", page, re.MULTILINE)


def run_program(path: Path, program: str) -> "subprocess.CompletedProcess[str]":
    """Write a program to a new file, and run it to its end in the file's folder."""
    path.write_text(program, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(path)],
        cwd=path.parent,
        env=clean_environment(),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
