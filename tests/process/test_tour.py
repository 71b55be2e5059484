"""docs/TOUR.md: its commands run against a broker, and print what the page shows, but for times and sizes."""

import re
import sys
import time
from pathlib import Path

import pytest

from tests.pages import run_program
from tests.processes import PATIENCE_SECONDS, Daemon, clean_environment, daemon, finished
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "TOUR.md").read_text(encoding="utf-8")
WIDTH = 100

_SHELL = f"""set -euo pipefail
python() {{ {sys.executable} "$@"; }}
seglog() {{ {sys.executable} -m seglog.cli "$@"; }}
seglogd() {{ {sys.executable} -m seglog_broker "$@"; }}
"""


class Reader:
    """Somebody who types what the page says, beside a daemon of their own."""

    def __init__(self, running: Daemon, folder: Path) -> None:
        self._running = running
        self._folder = folder
        (folder / "examples").symlink_to(REPOSITORY / "examples")
        (folder / "tour").symlink_to(running.directory)
        self._environment = clean_environment(SEGLOG_SERVER=running.address, COLUMNS=str(WIDTH))

    def shell(self, text: str) -> str:
        """Run a block's commands; what they print on standard output."""
        commands: list[str] = []
        for line in text.splitlines():
            if line.startswith("kill -9 "):
                self._running.kill()
            elif line.startswith("seglogd --data"):
                if self._running.process is None:
                    self._run(commands)
                    commands = []
                    self._running.start()
            elif not line.startswith("sleep "):
                commands.append(line)
        return self._run(commands)

    def _run(self, commands: list[str]) -> str:
        done = finished(["bash", "-c", _SHELL + "\n".join(commands)], cwd=self._folder, environment=self._environment)
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def program(self, text: str) -> str:
        """Run a Python block."""
        done = run_program(self._folder / "program.py", text.replace("localhost:9192", self._running.address))
        assert done.returncode == 0, done.stderr
        return done.stdout


def loosely(text: str) -> str:
    """What must be the same: the words, and the order in which things are drawn; not how many, how far, and when."""
    text = re.sub(r"topic id \S+|\bchecksum\b|^ *((next check|now) *)+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d{4}-\d\d-\d\d|(\d\d-\d\d )?\d\d:\d\d(:\d\d)?", "9", text)
    text = re.sub(r"\d[\d,.]*( (KiB|MiB|min|d|h|s|ms)\b)?", "9", text)
    text = re.sub(r"[━●]+", "●", re.sub(r"[┴│┊≈]", " ", text)).replace("◆", "─")
    text = re.sub(r"\b(left|right)\b", "there", re.sub(r"[▼▒]+█", "▒█", text))
    lines: list[str] = []
    for line in text.splitlines():
        short = re.sub(r"([░▒█─9])( ?\1)+", r"\1", " ".join(line.split()))
        lines += [short] if short and lines[-1:] != [short] else []
    return " ".join(lines)


@pytest.mark.soak
def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(sh|python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    with daemon(tmp_path / "data", "--set", "log.cleaner.backoff.ms=1000") as running:
        reader = Reader(running, tmp_path)
        command = printed = ""
        for language, text in blocks:
            if language == "python":
                reader.program(text)
            elif language == "sh":
                command, printed = text, reader.shell(text)
            else:
                give_up = time.monotonic() + PATIENCE_SECONDS
                while loosely(printed) != loosely(text) and "sleep" in command and time.monotonic() < give_up:
                    printed = reader.shell(command)
                assert loosely(printed) == loosely(text), printed
