"""``seglog quickstart``: what it prints works, whatever ends it leaves nothing, and what cannot be is one sentence."""

import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer

from seglog import __version__
from seglog.cli import main
from seglog.cli.first_look import MINUTES, SHOWN, SIGNALS, TOPIC, Endings
from tests.processes import (
    PATIENCE_SECONDS,
    clean_environment,
    ended,
    finished,
    free_port,
    on_terminal,
    seglog,
    seglog_json,
    signalled_at_import,
)

COMMAND = [sys.executable, "-m", "seglog.cli", "quickstart"]
WHEN = "one a minute for two days, all acknowledged"
DATE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where temporary directories of the command are; there is nothing else."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def run(temporary: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command, with its output in pipes."""
    return finished([*COMMAND, *arguments], TMPDIR=str(temporary))


class Kept:
    """A command that serves, and what it has printed so far."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.printed = ""

    def until(self, end: str) -> str:
        """Everything that was printed, once there is ``end``."""
        assert self.process.stdout is not None
        while end not in self.printed:
            readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
            data = os.read(self.process.stdout.fileno(), 1 << 16) if readable else b""
            assert data, self.printed
            self.printed += data.decode()
        return self.printed

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Exit code, what was printed from now on, and standard error, once a signal has ended it."""
        self.process.send_signal(number)
        printed, error = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, printed.decode(), error.decode()


@contextmanager
def kept(temporary: Path, *arguments: str) -> Iterator[Kept]:
    """A command that goes on serving."""
    process = subprocess.Popen(
        [*COMMAND, "--keep", *arguments],
        env=clean_environment(TMPDIR=str(temporary)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process, ended(process):
        yield Kept(process)


def section(printed: str, title: str) -> str:
    """What is printed below a title, up to the next one, without its indentation."""
    found = re.search(rf"^{re.escape(title)}\n((?: .*\n|\n(?= ))*)", printed, re.MULTILINE)
    assert found is not None, f"no {title!r} in {printed}"
    return textwrap.dedent(found[1])


def program(printed: str) -> str:
    """The Python that is printed, up to the title of what follows."""
    found = re.search(r"^The same in Python\n(.*?\n)\n(?=The broker has|It serves)", printed, re.MULTILINE | re.DOTALL)
    assert found is not None, printed
    return found[1]


def ran(text: str, folder: Path) -> str:
    """What a program prints, which has no warnings."""
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    done = finished([sys.executable, "-W", "error", str(path)])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def values_of(table: str) -> list[tuple[int, str, str]]:
    """Offset, key and value of each row of a table of records."""
    rows = [line.split() for line in table.splitlines() if re.search(DATE, line)]
    return [(int(offset.replace(",", "")), key, value) for offset, _, key, value in rows]


# --- What it shows ----------------------------------------------------------------------------------------------------


def test_it_shows_records_and_a_seek_and_its_program_does_the_same(temporary: Path, tmp_path: Path) -> None:
    done = run(temporary)
    assert (done.returncode, done.stderr, "\x1b" in done.stdout) == (0, "", False)
    assert list(temporary.iterdir()) == []
    consumed = values_of(section(done.stdout, "The first since this time yesterday"))
    first, second, third = (offset for offset, _, _ in consumed)
    assert (second, third) == (first + 1, first + 2)
    assert MINUTES / 2 <= first < MINUTES / 2 + 5, "the middle of the records"
    seek = section(done.stdout, "How that place was found")
    assert re.search(rf"^{TOPIC}-0, time {DATE}, in 4 segments$", seek, re.MULTILINE)
    for step in (
        r"  segment      \d{20}: number 2 of 4, the first whose largest timestamp, \S+Z, is at or after \S+Z",
        r"  time index   \d probes? of \d+ entries: nothing up to offset [\d,]+ is after .*",
        r"  offset index \d probes? of \d+ entries: offset [\d,]+ ends the batch at position [\d,]+",
        rf"  record       offset {first:,}, {DATE}",
    ):
        assert re.search(f"^{step}$", seek, re.MULTILINE), "whole lines in a pipe"
    printed = ran(program(done.stdout), tmp_path)
    *records, why = printed.splitlines()
    assert why.startswith("number 2 of 4, the first whose largest timestamp")
    assert len(records) == SHOWN
    for line, (_, key, _) in zip(records, consumed, strict=True):
        assert re.fullmatch(r"\d+ b'sensor-\d' b'\d\d\.5'", line)
        assert key.startswith("sensor-")


def test_it_fits_a_terminal_and_has_colours_there(temporary: Path) -> None:
    code, shown = on_terminal(COMMAND, TMPDIR=str(temporary))
    assert code == 0
    assert shown.startswith(f"\x1b[1mseglog {__version__}: a broker in this process, ready in ")
    assert "\x1b[36m  seglog explain seek readings 0 --timestamp -1d\x1b[0m\n" in shown
    plain = re.sub(r"\x1b\[\d+m", "", shown).replace(str(temporary), "/tmp")
    assert max(map(len, plain.splitlines())) <= 80, plain
    assert list(temporary.iterdir()) == []


def test_json_says_the_same_to_programs(temporary: Path, tmp_path: Path) -> None:
    done = run(temporary, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["topic"], told["records"], len(told["consumed"])) == (TOPIC, MINUTES, SHOWN)
    assert told["consumed"][0]["timestamp"] >= told["since"] == told["seek"]["lookups"][0]["wanted"]
    assert told["consumed"][0]["offset"] == told["seek"]["record_offset"]
    assert Path(told["log_dir"]).parents[1] == temporary
    assert ran(told["python"], tmp_path)
    with kept(temporary, "--json") as running:
        told = json.loads(running.until("\n"))
        assert seglog(told["server"], "topic", "list").returncode == 0
        assert running.end(signal.SIGTERM) == (0, "", "")
    assert list(temporary.iterdir()) == []


# --- And goes on to serve ---------------------------------------------------------------------------------------------


def test_what_it_prints_works_as_long_as_it_serves(temporary: Path, tmp_path: Path) -> None:
    port, kafka_port = free_port(), free_port()
    addresses = ("--listen", f"127.0.0.1:{port}", "--kafka", f"127.0.0.1:{kafka_port}")
    with kept(temporary, *addresses) as running:
        printed = running.until("kcat -C")
        server = f"127.0.0.1:{port}"
        assert f"export SEGLOG_SERVER={server}\n" in section(printed, "It serves until Ctrl-C. In another terminal")
        consumed = section(printed, "The first since this time yesterday")
        command, table = consumed.split("\n", 1)
        rows = values_of(table)
        done = seglog(server, *shlex.split(command)[1:])
        assert re.fullmatch(r"(sensor-\d\t\d\d\.5\n){3}", done.stdout.decode()), "perhaps a minute later"
        same = seglog(server, "consume", TOPIC, "--from", str(rows[0][0]), "--count", str(SHOWN), "--keys")
        assert same.stdout.decode() == "".join(f"{key}\t{value}\n" for _, key, value in rows)
        seek = seglog_json(server, *shlex.split(section(printed, "How that place was found").splitlines()[0])[1:])
        assert seek["segments"] == 4
        more = seglog(server, "produce", TOPIC, "--key-separator", ":", stdin=b"sensor-1:21.0\n")
        assert more.returncode == 0
        (offsets,) = seglog_json(server, "offsets", TOPIC)
        assert offsets["latest"] == MINUTES + 1
        for _ in range(2):  # its topic is there already
            records = ran(program(printed), tmp_path).splitlines()
            assert len(records) == SHOWN + 1
        bootstrap = re.search(r"^Clients of Kafka have bootstrap.servers=(.*)$", printed, re.MULTILINE)
        assert bootstrap is not None
        assert bootstrap[1] == f"127.0.0.1:{kafka_port}"
        consumer = KafkaConsumer(TOPIC, bootstrap_servers=bootstrap[1], auto_offset_reset="earliest")
        record = next(consumer)
        consumer.close()
        first, key, value = values_of(section(printed, f"{MINUTES:,} records of 3 sensors, {WHEN}"))[0]
        assert (record.offset, record.key.decode(), record.value.decode()) == (first, key, value)
        code, farewell, error = running.end(signal.SIGINT)
    assert (code, error) == (0, "")
    assert farewell.lstrip().startswith("The broker has stopped, and its data is removed.")
    assert "quickstart" not in farewell
    assert list(temporary.iterdir()) == []


def test_a_broker_that_stops_by_itself_is_an_error(temporary: Path) -> None:
    with kept(temporary) as running:
        running.until("kcat -C")
        (folder,) = temporary.iterdir()
        folder.rename(temporary / "elsewhere")
        assert running.process.wait(PATIENCE_SECONDS) == 4
        assert running.process.stderr is not None
        error = running.process.stderr.read().decode()
    assert re.fullmatch(r"seglog: \S+ was removed or replaced while the broker was running.*\n", error), error


# --- Whatever ends it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "number"),
    [
        pytest.param("seglog.cli.quickstart", signal.SIGINT, id="first of all"),
        pytest.param("seglog_broker.server", signal.SIGINT, id="imports"),
        pytest.param("seglog_broker.server", signal.SIGTERM, id="imports, by SIGTERM", marks=pytest.mark.soak),
        pytest.param("seglog.producer", signal.SIGINT, id="producing"),
        pytest.param("seglog.core.explaining", signal.SIGTERM, id="asking, by SIGTERM"),
    ],
)
def test_an_interrupt_leaves_nothing(temporary: Path, tmp_path: Path, module: str, number: signal.Signals) -> None:
    done = finished(COMMAND, environment=signalled_at_import(tmp_path, module, number) | {"TMPDIR": str(temporary)})
    has_begun = "a broker in this process" in done.stdout
    assert has_begun == (module in {"seglog.producer", "seglog.core.explaining"})
    if has_begun or number == signal.SIGINT:
        assert (done.returncode, done.stderr) == (130, "sent\nseglog: interrupted\n")
    else:
        assert (done.returncode, done.stderr) == (-number, "sent\n"), "there is nothing to clean up yet"
    assert "The broker has stopped" not in done.stdout
    assert list(temporary.iterdir()) == []


def test_a_reader_that_has_enough_is_no_error(temporary: Path) -> None:
    ours, its = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [*COMMAND, "--keep"],
            env=clean_environment(TMPDIR=str(temporary)),
            stdout=its,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    finally:
        os.close(its)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(temporary.iterdir()) == []


def test_signals_wait_where_they_would_tear_something() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    reached = []
    endings = Endings()
    with endings.heard():
        signal.raise_signal(signal.SIGINT)
        reached.append("made")
        with pytest.raises(KeyboardInterrupt), endings.allowed():
            reached.append("not reached")
        for number in SIGNALS:
            signal.raise_signal(number)  # while it cleans up
    assert reached == ["made"]
    assert [signal.getsignal(number) for number in SIGNALS] == before
    endings = Endings()
    with endings.heard(), pytest.raises(KeyboardInterrupt), endings.allowed():
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        endings = Endings()
        with endings.heard(), endings.allowed():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


# --- What cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--listen", "--kafka"])
def test_a_port_that_is_taken_is_named_with_what_to_do(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = "{}:{}".format(*other.getsockname())
        assert main(["quickstart", flag, address]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"seglog: Cannot listen on {address} ({flag}): another program")
    assert shown.endswith(f"choose another by {flag}. Leave it out for a free port\n")


def test_one_port_is_not_for_both(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert main(["quickstart", "--listen", address, "--kafka", address]) == 2
    what = f"--listen and --kafka have the same address, {address}; choose another for one of them"
    assert capsys.readouterr() == ("", f"seglog: {what}, or leave it out for a free port\n")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("localhost", "must be HOST:PORT, for example 127.0.0.1:9192, not 'localhost'"),
        ("::1", "must be HOST:PORT, for example 127.0.0.1:9192, not '::1'"),
        (":9192", "':9192' is not an address; write HOST:PORT, for example localhost:9192"),
        ("127.0.0.1:99999", "'99999' is not a port; ports are numbers from 1 to 65535"),
        ("[::1", "must be HOST:PORT, for example 127.0.0.1:9192, not '[::1'"),
    ],
)
def test_an_address_that_is_none_is_named(address: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "--listen", address]) == 2
    assert capsys.readouterr().err == f"seglog: --listen: {sentence}\nseglog: see `seglog quickstart --help`\n"
