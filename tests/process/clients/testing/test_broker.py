"""``seglog.testing.Broker`` and processes: a daemon that is killed, children that are forked, interpreters that end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from seglog.testing import Broker, BrokerStoppedError, NotPossibleError
from tests.processes import wait_until
from tests.unit.clients.testing.test_broker import values


def test_a_daemon_starts_while_the_log_of_the_one_that_was_killed_has_no_end_yet() -> None:
    def end_log(pid: int, log: int) -> None:
        while not broker.is_running or broker.pid == pid:
            time.sleep(0.001)
        os.close(log)

    with Broker(process=True) as broker:
        killed = broker.pid
        log = os.open(f"/proc/{killed}/fd/2", os.O_WRONLY)
        os.kill(killed, signal.SIGKILL)
        while broker.is_running:
            time.sleep(0.01)
        thread = threading.Thread(target=end_log, args=(killed, log))
        thread.start()
        broker.start()
        thread.join()
        broker.client.ping()


def test_a_daemon_can_be_killed() -> None:
    with Broker(process=True) as broker:
        broker.produce("t", b"one", ack="disk")
        os.kill(broker.pid, signal.SIGKILL)
        while broker.is_running:
            time.sleep(0.01)
        broker.start()
        assert values(broker) == [b"one"]
        broker.crash()
        broker.start()
        assert values(broker) == [b"one"]
        assert "partition_recovered" in [line["event"] for line in broker.log]
        with pytest.raises(NotPossibleError, match="process=True"):
            broker.slow_disk(1)
        broker.heal()
        assert broker.pending_faults == []
        with (
            pytest.raises(BrokerStoppedError, match=r"Broker\(listen=…\)"),
            Broker(process=True, listen=broker.address),
        ):
            raise AssertionError


def test_the_interpreter_ends_with_one_left_open() -> None:
    program = (
        "import gc; before = gc.get_freeze_count(); "  # of 3.12 it is some hundred at the start
        "from seglog.testing import Broker; broker = Broker(); broker.start(); "
        "broker.produce('t', b'one'); print(broker.directory, gc.get_freeze_count() - before)"
    )
    command = [sys.executable, "-W", "always", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    directory, frozen = done.stdout.split()
    assert "was not closed" in done.stderr
    assert not Path(directory).exists()
    assert frozen == "0"


def test_a_forked_child_is_told_and_leaves_the_broker_alone() -> None:
    with Broker() as broker:
        broker.produce("t", b"one")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                try:
                    broker.produce("t", b"two")
                except BrokerStoppedError as error:
                    os.write(writing, str(error).encode())
                broker.close()
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as said:
            assert b"not to its child" in said.read()
        assert values(broker) == [b"one"]


def test_a_child_that_lives_on_does_not_keep_a_stopped_broker_open() -> None:
    host = "127.0.0.2"  # where no other test may get the port meanwhile
    with Broker(listen=f"{host}:0") as broker:
        broker.produce("t", b"one")
        waiting, going = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(going)
            os.read(waiting, 1)
            os._exit(0)
        os.close(waiting)
        broker.stop()
        try:
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((host, int(broker.address.rpartition(":")[2])))
        finally:
            os.close(going)
            os.waitpid(child, 0)


@pytest.mark.parametrize("options", ["", "process=True"])
def test_a_process_that_is_terminated_leaves_no_directory(options: str) -> None:
    program = (
        f"from seglog.testing import Broker\nwith Broker({options}) as b:\n print(b.directory, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        assert directory.is_dir()
        process.terminate()
    wait_until(lambda: not directory.parent.exists(), "the end of its directory")
