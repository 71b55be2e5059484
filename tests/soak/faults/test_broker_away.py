"""The command line while its broker is away: it reports at once which broker it waits for, and at the end the cause."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.processes import clean_environment, daemon, seglog, seglog_command, wait_until


@contextmanager
def command(server: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        seglog_command(server, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):  # what was still to be flushed
                stream.close()


def line_of(stream: IO[bytes] | None) -> str:
    assert stream is not None
    return stream.readline().decode().rstrip()


def test_a_broker_killed_during_a_produce_that_does_not_come_back(tmp_path: Path) -> None:
    with daemon(tmp_path / "data") as broker:
        assert seglog(broker.address, "topic", "create", "t").returncode == 0
        with command(broker.address, "produce", "t", "--delivery-timeout", "3") as producing:
            assert producing.stdin is not None
            producing.stdin.write(b"a\n" * 10)
            producing.stdin.flush()
            wait_until(lambda: seglog(broker.address, "consume", "t").stdout == b"a\n" * 10, "the lines")
            broker.kill()
            producing.stdin.write(b"a\n" * 90)
            producing.stdin.close()
            assert line_of(producing.stderr) == f"seglog: waiting for {broker.address}: Connection refused"
            # Records may be read before their ack comes, and sent before the end of the connection is seen.
            refused = re.fullmatch(
                r"seglog: not acknowledged: (90|100) records to t; the last cause: the record was (?:not sent|sent, "
                rf"but not acknowledged) within 3 s: no broker answers at {broker.address}: Connection refused",
                line_of(producing.stderr),
            )
            assert refused is not None
            assert line_of(producing.stderr) == f"seglog: acknowledged: {100 - int(refused[1])} of 100 records"
            assert producing.wait() == 3


def test_a_follower_says_when_the_broker_is_back(tmp_path: Path) -> None:
    with daemon(tmp_path / "data") as broker:
        assert seglog(broker.address, "produce", "t", stdin=b"x\n").returncode == 0
        with command(broker.address, "consume", "t", "--from", "earliest", "--follow") as following:
            assert line_of(following.stdout) == "x"
            broker.kill()
            assert line_of(following.stderr) == f"seglog: waiting for {broker.address}: Connection refused"
            broker.start()
            assert line_of(following.stderr).startswith(f"seglog: {broker.address} is back after ")
            assert seglog(broker.address, "produce", "t", stdin=b"y\n").returncode == 0
            assert line_of(following.stdout) == "y"
