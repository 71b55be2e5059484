"""Standard error that is not read: the broker serves all the same, and later logs how many lines are missing."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import seglog
from tests.processes import Lines, clean_environment, ended, finished, port_of, start_daemon

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sizes of pipes and terminals are Linux's")

LINES_PER_PIPE = 400
"""More of the lines that ``provoke`` has logged than a pipe or a terminal holds."""


EVENT = "topic_altered"


def provoke(port: int, numbers: range) -> list[str]:
    """Cause a log line for each number, one after the other; returns the values named in them."""
    with seglog.connect(f"127.0.0.1:{port}") as client:
        client.create_topic("altered", 1, exist_ok=True)
        for number in numbers:
            client.alter_topic("altered", {"retention.bytes": number})
    return [str(number) for number in numbers]


def produce_and_consume(port: int) -> None:
    with seglog.connect(f"127.0.0.1:{port}") as client:
        client.create_topic("t", 1, exist_ok=True)
        with client.producer("t") as producer:
            for number in range(100):
                producer.send(f"{number}")
        with client.consumer("t") as consumer:
            assert sum(1 for _ in consumer) >= 100
        client.delete_topic("t")


def test_a_terminal_under_ctrl_s_delays_nothing(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    process = start_daemon(tmp_path / "data", inner)
    with ended(process):
        lines = Lines(outer)
        port = port_of(lines.until("broker_ready")[-1])
        termios.tcflow(inner, termios.TCOOFF)  # what Ctrl-S does
        values = provoke(port, range(LINES_PER_PIPE))
        produce_and_consume(port)
        assert not select.select([outer], [], [], 0)[0]
        termios.tcflow(inner, termios.TCOON)  # Ctrl-Q
        found = lines.until("topic_deleted")
        assert [entry["config"]["retention.bytes"] for entry in found if entry["event"] == EVENT] == values
        termios.tcflow(inner, termios.TCOOFF)
        provoke(port, range(LINES_PER_PIPE))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    os.close(inner)
    os.close(outer)


def test_a_traceback_comes_out_whole_before_the_process_ends(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from seglog_broker import __main__ as daemon, server\n"
        "async def serve(*_, **__): raise ZeroDivisionError('the very reason')\n"
        "server.serve = serve\n"
        f"sys.exit(daemon.main(['--data', {str(tmp_path / 'data')!r}]))\n"
    )
    done = finished([sys.executable, "-c", code])
    assert done.returncode == 1
    assert "broker_crashed" in done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError: the very reason")


def test_messages_of_python_itself_go_through_the_queue(tmp_path: Path) -> None:
    """Otherwise a warning, or an exception of a thread, would block the broker on a pipe that is not read."""
    code = (
        "import os, sys, threading, trio, warnings\n"
        "from seglog_broker import __main__ as daemon, server\n"
        "async def serve(*_, **__):\n"
        "    for number in range(2000): warnings.warn(f'{number} ' + 'x' * 99)\n"
        "    thread = threading.Thread(target=lambda: 1 / 0)\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "    os.write(1, b'served')\n"
        "server.serve = serve\n"
        "warnings.simplefilter('always')\n"
        f"sys.exit(daemon.main(['--data', {str(tmp_path / 'data')!r}]))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(6) == b"served"
        said = process.stderr.read().decode()
        assert process.wait() == 0
    assert said.count("UserWarning") == 2000
    assert "ZeroDivisionError" in said
