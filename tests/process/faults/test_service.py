"""`seglogd` as a service: hangups, reloads, messages to the service manager, exit codes."""

import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seglog
from seglog_broker.storage.directory.topic_admin import PendingCreation
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.processes import Lines, ended, start_daemon, watched

CLEAN = ".kafka_cleanshutdown"

ON_TERMINAL = (
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Becomes the command that follows, with stdin as its controlling terminal; for the leader of a session."""

BELOW_A_SHELL = (*ON_TERMINAL, "/bin/sh", "-c", '"$@" & wait', "sh")


def events(lines: Lines, last: str) -> list[str]:
    return [entry["event"] for entry in lines.until(last)]


@pytest.mark.parametrize("under", [ON_TERMINAL, BELOW_A_SHELL])
def test_a_terminal_that_is_closed_stops_the_broker_in_good_order(under: tuple[str, ...], tmp_path: Path) -> None:
    """Which hangup does what: ``tests/unit/broker/runtime/test_signals.py``."""
    outer, inner = pty.openpty()
    no_ballast = ("--set", "seglog.disk.ballast.bytes=0")  # else one may be made while the broker stops
    with watched(tmp_path / "data", *no_ballast, under=under, stdin=inner) as (process, lines, _):
        os.close(inner)
        os.close(outer)
        assert events(lines, "broker_stopped")[-2:] == ["broker_stopping", "broker_stopped"]
        assert process.stderr is not None
        while process.stderr.read(1 << 16):
            pass  # the end: the broker, which held the other end, has gone
        assert under is BELOW_A_SHELL or process.wait() == 0
    assert (tmp_path / "data" / CLEAN).exists()


def test_a_start_that_creates_many_partitions_can_be_stopped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    registry = TopicRegistry(PosixFileSystem(), str(data / "seglog-topics.json"))
    registry.topics["t"] = Topic("t", "IVT1Seu3QjacxS7oBTKhDQ", 10_000)
    registry.save()
    PendingCreation({"IVT1Seu3QjacxS7oBTKhDQ": 0}).save(PosixFileSystem(), str(data))
    process = start_daemon(data, subprocess.PIPE)
    assert process.stderr is not None
    with ended(process):
        lines = Lines(process.stderr.fileno())
        lines.until("broker_starting")
        while not (data / "t-5").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert events(lines, "broker_stopped") == ["loading_stopped", "broker_stopped"]
        assert process.wait() == 0
    assert len(list(data.glob("t-*"))) < 10_000
    assert (data / CLEAN).exists()


class ServiceManager:
    """The socket of a service manager, and the messages that arrive there."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(60)

    def told(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().splitlines())

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    made = ServiceManager(tmp_path)
    yield made
    made.close()


def test_a_service_manager_gets_messages_when_it_serves_reloads_and_stops(
    manager: ServiceManager, tmp_path: Path
) -> None:
    """And the level of the log changes with a reload."""
    file = tmp_path / "seglogd.toml"
    file.write_text("")
    notified = {"NOTIFY_SOCKET": manager.path}
    with watched(tmp_path / "data", "--config", str(file), variables=notified) as (process, lines, _):
        assert manager.told() == {"STATUS": f"Loading {tmp_path / 'data'}"}
        ready = manager.told()
        assert ready["READY"] == "1"
        with seglog.connect(ready["STATUS"].removeprefix("Serving ")) as client:
            assert client.topics() == []
        for level in ("error", "nonsense", "info"):
            file.write_text(f'"seglog.log.level" = "{level}"\n')
            process.send_signal(signal.SIGHUP)
            reloading = manager.told()
            assert reloading["RELOADING"] == "1"
            assert int(reloading["MONOTONIC_USEC"]) > 0
            assert manager.told() == ready
        assert events(lines, "configuration_reloaded") == [
            "configuration_not_reloaded",
            "configuration_changed",
            "configuration_reloaded",
        ]
        process.send_signal(signal.SIGTERM)
        assert manager.told()["STOPPING"] == "1"
        assert process.wait() == 0


def test_a_stop_that_is_not_clean_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with watched(tmp_path / "data") as (process, lines, _):
        (tmp_path / "data" / "recovery-point-offset-checkpoint.tmp").mkdir()
        process.send_signal(signal.SIGTERM)
        [*_, problem] = lines.until("stop_not_clean")
        assert "recovery-point-offset-checkpoint.tmp" in problem["problem"]
        assert process.wait() == 3
    assert not (tmp_path / "data" / CLEAN).exists()
