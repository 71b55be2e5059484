"""``seglogd check`` as a command, on directories that a real daemon wrote."""

import io
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog_broker.inspect.commands import main_check
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.record_batch import HEADER_SIZE, iter_batches
from tests.logs import flip_bit
from tests.processes import daemon, seglog, seglogd

Check = Callable[..., tuple[object, str, str]]

_LINES = b"".join(b'{"commit": %d, "path": "core/src/Log.scala"}\n' % number for number in range(3000))


@pytest.fixture
def check(capsysbinary: pytest.CaptureFixture[bytes]) -> Check:
    """Runs the command in this process: exit code, standard output and standard error."""

    def run(*arguments: str | Path) -> tuple[object, str, str]:
        code: object
        try:
            code = main_check([*map(str, arguments)])
        except SystemExit as ended:  # of argparse
            code = ended.code
        out, errors = capsysbinary.readouterr()
        return code, out.decode(), errors.decode()

    return run


def _produce(address: str) -> None:
    created = seglog(address, "topic", "create", "commits", "--partitions", "2", "--config", "segment.bytes=16384")
    assert created.returncode == 0, created.stderr
    done = seglog(address, "produce", "commits", "--batch-bytes", "1024", stdin=_LINES)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a daemon that was stopped cleanly."""
    data = tmp_path_factory.mktemp("stopped") / "data"
    with daemon(data) as running:
        _produce(running.address)
        done = seglogd("check", data)
        assert (done.returncode, done.stdout) == (4, "")
        holder = r"process \d+, seglogd, since [\d:TZ-]+"
        assert re.fullmatch(
            rf"seglogd check: {data} is in use by {holder} \(its .lock is held\): stop it first\n", done.stderr
        )
        assert running.stop() == 0
    return data


def test_damage_is_reported_repaired_and_then_skipped_by_readers(stopped: Path, tmp_path: Path, check: Check) -> None:
    data = tmp_path / "data"
    subprocess.run(["cp", "-r", stopped, data], check=True)
    log = min(path for path in data.glob("commits-*/*.log") if path.stat().st_size > 10_000)
    half_way = 0
    for _, batch in iter_batches(log.read_bytes()):
        if half_way > 5000:
            break
        half_way += len(batch)
    flipped = half_way + HEADER_SIZE  # not in a header, where some bits have more to say than one finding
    flip_bit(PosixFileSystem(), str(log), flipped)
    code, out, _ = check(data, "--json")
    assert code == 1
    lines = [json.loads(line) for line in out.splitlines()]
    # The indexes may lead into the damage, too.
    (finding,) = [line for line in lines if line["kind"] == "finding" and line["severity"] == "damage"]
    assert (finding["code"], finding["path"]) == ("batch-damaged", str(log))
    assert finding["position"] <= flipped < finding["end_position"]
    assert lines[-1]["sound"] is False
    code, out, _ = check(data, "--repair")
    assert code == 0, out
    assert check(data)[0] == 0
    start, end = finding["start_offset"], finding["end_offset"]
    (log_end,) = [line["end_offset"] for line in lines if line.get("path") == str(log.parent)]
    place = ("consume", "commits", "--partition", log.parent.name.removeprefix("commits-"), "--from")
    with daemon(data) as running:
        before = seglog(running.address, *place, "0")
        assert len(before.stdout.splitlines()) == start
        assert f"reading can continue at offset {end}" in before.stderr.decode()
        behind = seglog(running.address, *place, str(end))
        assert (behind.returncode, len(behind.stdout.splitlines())) == (0, log_end - end)
        assert running.stop() == 0
    assert check(data)[0] == 0


def test_a_terminal_shows_progress(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert main_check([str(stopped)]) == 0
    first, *_, last = terminal.getvalue().split("\r\x1b[K")[1:]
    assert first == f"0 B read, reading {stopped}/commits-0/00000000000000000000.log"
    assert last == "", "the line is gone in the end"
    assert capsysbinary.readouterr().out.endswith(b"is sound.\n")


def test_usage_and_refusals_have_codes_of_their_own(tmp_path: Path, check: Check) -> None:
    assert check()[0] == 2
    assert check(tmp_path, "--set", "no.such.key=1")[0] == 2
    assert check(tmp_path / "nowhere") == (4, "", f"seglogd check: {tmp_path / 'nowhere'} does not exist\n")
    assert check(tmp_path)[0] == 4
