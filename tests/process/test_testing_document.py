"""docs/TESTING.md: its programs run and print what the page says, its tests pass, and what it names exists."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seglog import SeglogError
from seglog.testing import AsyncBroker, Broker
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from tests.pages import programs_of
from tests.processes import clean_environment, finished
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "TESTING.md").read_text(encoding="utf-8")
PROGRAMS = programs_of(PAGE)
TESTS = [code for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if " test_" in code]
PLUGINS = ["-p", "no:cacheprovider", "-p", "seglog.testing.plugin", "-p", "pytest_trio.plugin"]
STRICT = [
    "-W",
    "error",
    "-Wignore:unclosed <socket:ResourceWarning",
    *(f"-Wignore:{name}_text is deprecated:DeprecationWarning" for name in ("open", "read")),
]
"""Any warning is an error, but for what kafka-python has when it reads its definitions or loses a connection."""


def run(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = clean_environment(TMPDIR=str(folder), **variables)
    return finished([sys.executable, "-B", *arguments], cwd=folder, environment=environment)


@pytest.mark.parametrize(("program", "printed"), PROGRAMS, ids=map(str, range(len(PROGRAMS))))
def test_the_programs_of_the_page_print_what_it_says(program: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = run(tmp_path, *STRICT, "program.py")
    pattern = ".*".join(re.escape(part) for part in printed.split("…"))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(pattern, done.stdout), done.stdout + done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["program.py"], "nothing is left on the disk"


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    for number, code in enumerate(TESTS):
        (tmp_path / f"test_{number}.py").write_text(code, encoding="utf-8")
    done = run(tmp_path, "-m", "pytest", "-q", *PLUGINS, *STRICT, ".", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == 0, done.stdout + done.stderr
    count = sum(code.count("def test_") for code in TESTS)
    assert f"\n{count} passed" in done.stdout
    assert len(list(tmp_path.iterdir())) == len(TESTS), "nothing is left on the disk"


def test_every_program_is_run() -> None:
    assert len(PROGRAMS) + len(TESTS) == PAGE.count("```python\n")
    assert len(PROGRAMS) >= 6
    assert len(TESTS) >= 4


def test_the_page_names_every_method_of_a_broker_and_no_other() -> None:
    table = re.findall(r"^\| `.*", PAGE, re.MULTILINE)
    named = set(re.findall(r"[`.](\w+)(?=\()", "\n".join(table))) | set(re.findall(r"`broker\.(\w+)", PAGE))
    methods = {name for name in dir(Broker) if not name.startswith("_")}
    faults = PAGE.partition("\n## Faults\n")[2].partition("\n## ")[0]
    wanted = set(re.findall(r"^\| `(\w+)\(", faults, re.MULTILINE))
    assert wanted == {
        *("crash", "power_cut", "full_disk", "slow_disk", "cut_connections", "refuse", "delay", "fail_next"),
        *("lose_next_ack", "expire_session", "rebalance", "jump_clock"),
    }
    assert wanted | {"heal", "records", "wait_for", "produce", "create_topic", "client", "log"} <= named
    named -= {"Broker", "sync"}
    assert [name for name in named if name not in methods and f"fs.{name}" not in PAGE] == []
    assert hasattr(AsyncBroker(Broker(memory=True)), "sync")


def test_errors_are_where_the_page_says() -> None:
    section = PAGE.partition("\n## What an error means\n")[2].partition("\n## ")[0]
    meanings, _, places = section.partition("| import from |")
    named = set()
    for module, names in re.findall(r"^\| `([\w.]+)` \| (`.*) \|$", places, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            error = getattr(importlib.import_module(module), name)
            assert issubclass(error, SeglogError) == (module != "seglog.testing")
            named.add(name)
    assert {
        name
        for line in re.findall(r"^\| (`\w+Error`.*?) \|", meanings, re.MULTILINE)
        for name in re.findall(r"\w+Error", line)
    } == named - {"DiskFullError"}


def test_what_the_page_names_exists() -> None:
    fs = ForgetfulFileSystem()
    named = set(re.findall(r"`fs\.(\w+)", PAGE))
    assert len(named) > 8
    assert [name for name in named if not hasattr(fs, name)] == []
    for operation in re.findall(r"Fault\(\"(\w+)\"", PAGE):
        assert operation in {"fdatasync", "pwritev"} or hasattr(FileSystem, operation)
    Fault("pwritev", ".log", short=10, nth=3, sticky=True)
    section = PAGE.partition("\n### Nothing beside the loop\n")[2].partition("override its method")[2]
    named = set(re.findall(r"`([a-z_]+)`", section))
    assert [name for name in named if not hasattr(InlineOffload, name)] == []
    assert {name for name in vars(InlineOffload) if not name.startswith("_")} <= named
