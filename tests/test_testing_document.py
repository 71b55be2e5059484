"""docs/TESTING.md: its programs run and print what the page says, and the methods that it names exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from tests.processes import clean_environment
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "TESTING.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("program", "printed"), PROGRAMS, ids=["crashes", "broker"])
def test_the_programs_of_the_page_print_what_it_says(program: str, printed: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=250,
        check=False,
    )
    pattern = ".*".join(re.escape(part) for part in printed.split("…"))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(pattern, done.stdout), done.stdout + done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["program.py"], "nothing is on a real disk"


def test_every_program_is_run() -> None:
    assert len(PROGRAMS) == PAGE.count("```python\n")


def test_what_the_page_names_exists() -> None:
    fs = ForgetfulFileSystem()
    named = set(re.findall(r"`fs\.(\w+)", PAGE))
    assert len(named) > 8
    assert [name for name in named if not hasattr(fs, name)] == []
    for operation in re.findall(r"Fault\(\"(\w+)\"", PAGE):
        assert operation in {"fdatasync", "pwritev"} or hasattr(FileSystem, operation)
    Fault("pwritev", ".log", short=10, nth=3, sticky=True)
    section = PAGE.partition("\n## Nothing beside the loop\n")[2]
    overridden = {name for name in vars(InlineOffload) if not name.startswith("_")}
    assert overridden == set(re.findall(r"`([a-z_]+)`", section))
