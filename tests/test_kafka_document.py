"""docs/KAFKA.md: its program runs and prints what the page says, and its table of versions is that of the listener."""

import re
import subprocess
import sys
from pathlib import Path

from seglog_broker.listeners.kafka.apis import APIS
from tests.processes import clean_environment, daemon
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "KAFKA.md").read_text(encoding="utf-8")


def test_the_program_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    program, printed = ("".join(parts) for parts in zip(*found, strict=True))  # the later ones go on with the first
    assert program
    with daemon(tmp_path / "data", "--set", "listeners=PLAINTEXT://127.0.0.1:0") as broker:
        [kafka] = [event["kafka"] for event in broker.logged if event["event"] == "broker_ready"]
        path = tmp_path / "program.py"
        program = program.replace("localhost:9192", broker.address).replace("localhost:9092", kafka)
        path.write_text(program, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(path)],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_the_table_of_versions_is_that_of_the_listener() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?: to (\d+))? \|$", PAGE, re.MULTILINE)
    assert {int(key): (name, range(int(first), int(last or first) + 1)) for key, name, first, last in rows} == {
        key: (api.name, api.versions) for key, api in APIS.items()
    }
