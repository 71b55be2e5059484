"""``seglogd dump`` as a command: output, exit codes, pipes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog_broker import __main__ as daemon
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.logs import flip_bit
from tests.processes import clean_environment
from tests.support import each_case
from tests.unit.broker.inspect.dump.test_directories import log_directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log directory after a clean stop."""
    log_directory(PosixFileSystem(), str(tmp_path / "data")).close()
    return tmp_path / "data"


Run = Callable[..., tuple[int | str | None, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process: exit code, standard output and standard error."""

    def command(*arguments: str | Path) -> tuple[int | str | None, str, str]:
        try:
            return daemon.main(["dump", *map(str, arguments)]), *capfd.readouterr()
        except SystemExit as ended:  # of argparse
            return ended.code, *capfd.readouterr()

    return command


def test_a_directory_in_order_ends_with_0(data: Path, run: Run) -> None:
    code, out, errors = run(data, "--verify")
    assert (code, errors) == (0, "")
    assert out.startswith(f"{data}: log directory, seglog format 1\n  stopped cleanly\n")
    assert "commits-0: 1 segment, 1000 B\n" in out


def test_damage_ends_with_1(data: Path, run: Run) -> None:
    log = data / "commits-0" / "00000000000000000000.log"
    flip_bit(PosixFileSystem(), str(log), 480)
    code, out, errors = run(log)
    assert (code, errors) == (1, "")
    assert "DAMAGED: bytes 400 to 499 (100 B): its checksum does not match\n" in out


def test_a_missing_path_ends_with_2_and_the_other_paths_are_shown(
    data: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a configuration."""
    monkeypatch.setenv("SEGLOG_NO_SUCH_KEY", "1")
    code, out, errors = run(data / "nowhere", data / "seglog-format", data / "meta.properties")
    assert code == 2
    assert errors == f"seglogd dump: {data / 'nowhere'} does not exist\n"
    assert out.startswith(f"{data / 'seglog-format'}: format of the log directory, 2 B\n")
    assert "cluster.id" in out


@each_case("arguments", [[], ["--nonsense", "x"]])
def test_wrong_usage_ends_with_2(arguments: list[str], run: Run) -> None:
    code, _, errors = run(*arguments)
    assert (code, "usage: seglogd dump" in errors) == (2, True)


def test_a_reader_that_has_enough_ends_it_quietly(data: Path) -> None:
    log = data / "commits-0" / "00000000000000000000.log"
    command = [sys.executable, "-W", "error", "-m", "seglog_broker", "dump", *[str(log)] * 2000]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
