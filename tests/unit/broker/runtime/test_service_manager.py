"""Messages to systemd, over a socket as systemd makes it."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog_broker.runtime.service_manager import ServiceManager
from tests.support import each_case


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(10)
        yield path, sock


def test_each_message_is_one_datagram_of_assignments(listening: tuple[str, socket.socket]) -> None:
    path, sock = listening
    environ = {"NOTIFY_SOCKET": path, "HOME": "/"}
    manager = ServiceManager.from_environment(environ)
    assert environ == {"HOME": "/"}, "a child must not speak for the broker"
    manager.status("Loading /data")
    manager.ready("Serving 127.0.0.1:9192")
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    manager.reloading()
    manager.stopping()
    manager.close()
    told = [sock.recv(4096).decode().splitlines() for _ in range(4)]
    assert told[0] == ["STATUS=Loading /data"]
    assert told[1] == ["READY=1", "STATUS=Serving 127.0.0.1:9192"]
    assert told[2][0] == "RELOADING=1"
    assert before <= int(told[2][1].removeprefix("MONOTONIC_USEC="))
    assert told[3][0] == "STOPPING=1"


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="abstract names are Linux's")
def test_an_abstract_name_is_understood() -> None:
    name = f"seglog-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(10)
        manager = ServiceManager(f"@{name}")
        manager.ready("Serving")
        manager.close()
        assert sock.recv(4096).startswith(b"READY=1\n")


@each_case("address", [None, "", "/nowhere/notify", "vsock:2:1234"])
def test_without_a_service_manager_nothing_is_sent_and_nothing_fails(address: str | None) -> None:
    manager = ServiceManager(address)
    manager.ready("Serving")
    manager.stopping()
    manager.close()


def test_a_service_manager_that_does_not_read_delays_nothing(listening: tuple[str, socket.socket]) -> None:
    path, _ = listening
    manager = ServiceManager(path)
    for _ in range(10_000):  # far more than its queue takes; this returns, or the test never ends
        manager.status("x" * 100)
    manager.close()
