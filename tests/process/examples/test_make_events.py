"""The generator of events that the README begins with."""

import hashlib
import subprocess
import sys

from tests.support import REPOSITORY

_COMMAND = (sys.executable, "-W", "error", str(REPOSITORY / "examples" / "make_events.py"))


def _output(*arguments: str) -> bytes:
    done = subprocess.run([*_COMMAND, *arguments], capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout


def test_the_same_count_and_seed_give_the_same_bytes_on_every_python() -> None:
    found = _output("--count", "2000", "--seed", "7")
    assert found == _output("--count", "2000", "--seed", "7")
    assert found != _output("--count", "2000", "--seed", "8")
    assert hashlib.sha256(found).hexdigest() == "3c3476f050acc6dc6c8d3bb44a3f542e69a0b2429380cec3d34be7820c1ed449"


def test_a_reader_that_has_enough_ends_it_quietly() -> None:
    with subprocess.Popen(
        [*_COMMAND, "--count", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as generator:
        assert generator.stdout is not None
        assert generator.stderr is not None
        assert generator.stdout.readline().startswith(b'{"ts":')
        generator.stdout.close()
        assert generator.stderr.read() == b""
        assert generator.wait() == 0
