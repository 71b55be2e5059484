"""Servers that scripts start: what a script is asked, and why a peer is left out."""

import os
import stat
import time
from pathlib import Path

import pytest

from benchmarks.harness import Bench, BenchmarkError
from benchmarks.peers.cases import NATIVE
from benchmarks.peers.results import BARE, KAFKA, Measure
from benchmarks.peers.run import in_turns
from benchmarks.peers.servers import PeerAbsentError, peer_server
from tests.support import REPOSITORY

SLEEPER = """#!/bin/sh
echo "$@" >> "$0.asked"
case $1 in
  start)
    mkdir -p "$2"
    echo "version: 7.5" > "$2/server.log"
    sleep 600 > /dev/null 2>&1 < /dev/null &
    echo $! > "$2/pid" ;;
  stop)
    kill "$(cat "$2/pid")" ;;
esac
"""


def script(directory: Path, name: str, text: str) -> Path:
    path = directory / name / name
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def is_running(pid: int) -> bool:
    """A process that has ended and was not awaited by whoever has it now counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def has_ended(pid: int) -> bool:
    """Whether it ends, which a killed process does soon, but not at once."""
    for _ in range(1_000):
        if not is_running(pid):
            return True
        time.sleep(0.01)
    return False


def test_a_server_is_set_up_started_with_its_settings_and_stopped(tmp_path: Path) -> None:
    asked = script(tmp_path, "sleeper", SLEEPER).with_suffix(".asked")
    data = tmp_path / "data"
    with peer_server(tmp_path, "sleeper", data, ["a.key=1", "b=2"], needs=("sh",)) as server:
        pid = server.pid
        assert is_running(pid)
        assert server.search_log(r"version: (\S+)") == "7.5"
        assert server.search_log("no such (line)") == "unknown"
    assert has_ended(pid)
    assert asked.read_text().splitlines() == ["setup", f"start {data} {server.port} a.key=1 b=2", f"stop {data}"]


def test_a_server_that_does_not_stop_when_asked_is_killed(tmp_path: Path) -> None:
    script(tmp_path, "sleeper", SLEEPER.replace('kill "$(cat "$2/pid")"', "exit 1"))
    with peer_server(tmp_path, "sleeper", tmp_path / "data") as server:
        pid = server.pid
        assert is_running(pid)
    while is_running(pid):
        os.sched_yield()


@pytest.mark.parametrize(
    ("text", "needs", "reason"),
    [
        (None, (), "kafka/kafka is missing"),
        (SLEEPER, ("no-such-program",), "the program no-such-program is missing"),
        ("#!/bin/sh\necho no network >&2\nexit 3\n", (), "kafka setup ended with 3: no network"),
        ('#!/bin/sh\n[ "$1" != start ] || { echo too old >&2; exit 1; }\n', (), "kafka start ended with 1: too old"),
    ],
)
def test_a_peer_that_cannot_be_started_is_absent_and_the_reason_is_said(
    tmp_path: Path, text: str | None, needs: tuple[str, ...], reason: str
) -> None:
    if text is not None:
        script(tmp_path, "kafka", text)
    with (
        pytest.raises(PeerAbsentError, match=reason),
        peer_server(tmp_path, "kafka", tmp_path / "data", needs=needs),
    ):
        pass


def test_a_peer_that_fails_amid_a_case_is_left_out() -> None:
    """With a note and a problem."""
    bench = Bench(3, quick=True, directory=REPOSITORY, group="small")
    turns = []

    def side(name: str, *, fails: bool = False) -> Measure:
        turns.append(name)
        if fails and turns.count(name) == 2:
            raise BenchmarkError("it hung up")
        return Measure(len(turns))

    measured, notes = in_turns(
        bench, {NATIVE: lambda: side("s"), KAFKA: lambda: side("k", fails=True), BARE: lambda: side("b")}
    )
    assert turns == ["s", "k", "b", "k", "b", "s", "b", "s"]
    assert {name: len(values) for name, values in measured.items()} == {NATIVE: 3, BARE: 3}
    assert notes == ["Kafka could not be measured: it hung up"]
    assert bench.problems == ["small: Kafka could not be measured: it hung up"]


def test_an_error_of_seglog_ends_a_case() -> None:
    def fail() -> Measure:
        raise BenchmarkError("the daemon hung up")

    with pytest.raises(BenchmarkError, match="the daemon hung up"):
        in_turns(Bench(2, quick=True, directory=REPOSITORY), {NATIVE: fail})
