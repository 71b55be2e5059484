"""docs/CLIENT.md and docs/KAFKA.md: their programs run, in order, and print what the page says; docs/PYTHON.md."""

import re
from pathlib import Path

from seglog.testing import Broker
from tests.interop.client_programs import CLIENTS, FRAMEWORKS
from tests.pages import programs_of, run_program
from tests.processes import daemon
from tests.support import REPOSITORY
from tests.unit.clients.secure_broker import Authority, secure_broker

PAGE, KAFKA, PYTHON = (
    (REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in ("CLIENT.md", "KAFKA.md", "PYTHON.md")
)


def test_the_programs_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    programs = programs_of(PAGE)
    assert len(programs) == PAGE.count("```python\n")
    warned = []
    with daemon(tmp_path / "data") as broker:
        for number, (program, printed) in enumerate(programs):
            if "seglogs://" in program:
                check_login(tmp_path, program, printed)
                continue
            done = run_program(tmp_path / f"program_{number}.py", program.replace("localhost:9192", broker.address))
            assert (done.returncode, done.stdout) == (0, printed), done.stderr
            warned.append([line for line in done.stderr.splitlines() if "TimestampWarning" in line])
    (expired, seconds), others = warned[0], warned[1:]
    assert not any(others)
    assert "the topic keeps 7 d" in expired
    assert "if seconds are meant (2019-01-01" in seconds


def check_login(folder: Path, program: str, printed: str) -> None:
    """A program that logs in with TLS, run against a broker that wants both."""
    authority = Authority(folder)
    (folder / "alice.password").write_text("a password\n")
    with secure_broker(context=authority.context(), passwords={"alice": "a password"}) as broker:
        there = program.replace("logs.example:9192", broker.address)
        for name in ("ca.pem", "alice.password"):
            assert name in there
            there = there.replace(name, str(folder / name))
        done = run_program(folder / "login.py", there)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_the_lines_of_the_log_on_the_page_are_those_that_are_logged() -> None:
    source = (REPOSITORY / "clients" / "seglog" / "core" / "retries.py").read_text(encoding="utf-8")
    for line, logged in (
        ("waiting for localhost:9192: Connection refused", "waiting for %s: %s"),
        ("still waiting for localhost:9192, for 10 s now: ", "still waiting for %s, for %.0f s now: %s"),
        ("localhost:9192 is back after 14.2 s", "%s is back after %.1f s"),
    ):
        assert line in PAGE
        assert f'"{logged}"' in source


def test_nothing_is_installed_by_a_name_that_no_index_has() -> None:
    """Only where seglog is installed, which the one page on it says, and the sentences of the programs themselves."""
    pages = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *REPOSITORY.glob("examples/*.*")]
    pages += [*REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("docs/api/*.md")]
    named = {path.name: re.findall(r"pip install '?seglog[^`\n]*", path.read_text(encoding="utf-8")) for path in pages}
    assert {name: found for name, found in named.items() if found} == {
        "BACKUP.md": ["pip install 'seglog[backup]'", "pip install 'seglog[kafka]'"],
        "CLIENT.md": ["pip install 'seglog[trio]'"],
        "REFERENCE.md": ["pip install 'seglog[top]'"],
    }


def test_the_program_for_kafkas_clients_prints_what_its_page_says(tmp_path: Path) -> None:
    program, printed = (
        "".join(parts) for parts in zip(*programs_of(KAFKA), strict=True)
    )  # the later ones go on with the first
    assert program
    with Broker() as broker:
        program = program.replace("localhost:9192", broker.address).replace("localhost:9092", broker.kafka_address)
        done = run_program(tmp_path / "program.py", program)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_the_table_has_the_frameworks_of_the_tests_in_their_versions() -> None:
    rows = re.findall(r"^\| [^|]+ \| (\S+ \d[\d.]*(?:, \S+ \d[\d.]*)*) \|", PYTHON, re.MULTILINE)
    shown = [{version.replace(" ", "==") for version in versions.split(", ")} for versions in rows]
    for name in FRAMEWORKS:
        pins = (CLIENTS / f"requirements-{name}.txt").read_text(encoding="utf-8").split()
        assert any(versions <= set(pins) for versions in shown), name
