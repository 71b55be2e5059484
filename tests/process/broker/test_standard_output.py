"""Commands of ``seglogd`` that print and end, where standard output has no reader, no room, or is closed."""

import os
import sys
from pathlib import Path

import pytest

from seglog_broker.__main__ import main
from tests.processes import finished
from tests.support import each_case

FULL = "standard output takes no more: No space left on device"
CLOSED = "standard output is closed; redirect it, /dev/null will do"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory of one partition."""
    path = tmp_path_factory.mktemp("log") / "data"
    path.mkdir()
    (path / "meta.properties").write_text("version=1\ncluster.id=k\nnode.id=1\n")
    (path / "t-0").mkdir()
    (path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    return path


def printed(arguments: str, redirection: str) -> tuple[int, list[str]]:
    """The exit code, and the lines on standard error."""
    done = finished(["bash", "-c", f"set -o pipefail; {sys.executable} -m seglog_broker {arguments} {redirection}"])
    return done.returncode, done.stderr.splitlines()


COMMANDS = {"--check-config": "seglogd", "--version": "seglogd", "dump": "seglogd dump", "check": "seglogd check"}


@each_case("command", COMMANDS)
@each_case(("redirection", "reason"), [(">&-", CLOSED), (">/dev/full", FULL)])
def test_output_that_cannot_be_printed_is_one_sentence_and_code_1(
    command: str, redirection: str, reason: str, directory: Path
) -> None:
    arguments = command if command.startswith("-") else f"{command} {directory}"
    code, lines = printed(arguments, redirection)
    assert code == 1
    assert lines[0] == f"{COMMANDS[command]}: {reason}"
    assert lines[1:] == (["seglogd: The configuration can be used."] if command == "--check-config" else [])


@each_case("command", COMMANDS)
def test_a_reader_that_closes_the_pipe_early_is_no_error(command: str, directory: Path) -> None:
    arguments = command if command.startswith("-") else f"{command} {directory}"
    _, lines = printed(arguments, "| true")
    assert lines == (["seglogd: The configuration can be used."] if command == "--check-config" else [])


def test_errors_are_printed_even_if_the_table_cannot_be() -> None:
    for redirection in ("| true", ">&-", ">/dev/full"):
        code, lines = printed("--check-config --set num.partitions=0", redirection)
        assert code == 2
        assert any("num.partitions" in line for line in lines)
        assert not any("Traceback" in line for line in lines)


def test_a_refusal_to_start_has_its_priority_in_the_journal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    (tmp_path / "file").touch()
    assert main(["--data", str(tmp_path / "file"), "--set", "num.partitions=none"]) == 2
    assert main(["--data", str(tmp_path / "data"), "--check-config"]) == 0
    refusal, *_, verdict = capfd.readouterr().err.splitlines()  # between them what is said of this machine
    assert refusal.startswith("<3>seglogd: ")
    assert verdict.startswith("<6>seglogd: The configuration can be used")
