"""``seglogd dump`` as a command: output, exit codes, pipes."""

import subprocess
import sys
from pathlib import Path

import pytest

from seglog_broker import __main__ as daemon
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.logs import flip_bit
from tests.processes import clean_environment
from tests.unit.broker.inspect.dump.test_directories import log_directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log directory after a clean stop."""
    log_directory(PosixFileSystem(), str(tmp_path / "data")).close()
    return tmp_path / "data"


def dump(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "seglog_broker", "dump", *map(str, arguments)]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        dump(*arguments), env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )


def test_a_directory_in_order_ends_with_0(data: Path) -> None:
    done = run(data, "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{data}: log directory, seglog format 1\n  stopped cleanly\n")
    assert "commits-0: 1 segment, 1000 B\n" in done.stdout


def test_damage_ends_with_1(data: Path) -> None:
    log = data / "commits-0" / "00000000000000000000.log"
    flip_bit(PosixFileSystem(), str(log), 480)
    done = run(log)
    assert (done.returncode, done.stderr) == (1, "")
    assert "DAMAGED: bytes 400 to 499 (100 B): its checksum does not match\n" in done.stdout


def test_a_missing_path_ends_with_2_and_the_other_paths_are_shown(data: Path) -> None:
    done = run(data / "nowhere", data / "seglog-format")
    assert done.returncode == 2
    assert done.stderr == f"seglogd dump: {data / 'nowhere'} does not exist\n"
    assert done.stdout.startswith(f"{data / 'seglog-format'}: format of the log directory, 2 B\n")


@pytest.mark.parametrize("arguments", [[], ["--nonsense", "x"]])
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage: seglogd dump" in done.stderr


def test_a_reader_that_has_enough_ends_it_quietly(data: Path) -> None:
    log = data / "commits-0" / "00000000000000000000.log"
    with subprocess.Popen(
        dump(*[log] * 2000), env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_it_works_without_a_configuration_and_serves_nothing(
    data: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGLOG_NO_SUCH_KEY", "1")
    assert daemon.main(["dump", str(data / "partition"), str(data / "meta.properties")]) == 2
    assert b"cluster.id" in capsysbinary.readouterr().out
