"""The generator of events that the README begins with."""

import hashlib
import itertools
import json
import subprocess
import sys
from datetime import UTC, datetime

from examples.make_events import YEAR_START_MS, make_events
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


def test_every_line_is_an_object_with_a_timestamp_and_a_path() -> None:
    lines = _output("--count", "500").splitlines()
    assert len(lines) == 500
    for line in lines:
        event = json.loads(line)
        assert type(event["ts"]) is int
        assert type(event["path"]) is str
        assert set(event) == {"ts", "path", "author", "added", "deleted", "message"}


def test_events_cover_the_year_and_some_are_out_of_order() -> None:
    for count in (100, 5000):
        times = [event["ts"] for event in make_events(count, 7)]
        assert all(type(time) is int for time in times)
        numbers = [int(time) for time in times]
        year_end = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000)
        assert YEAR_START_MS <= min(numbers) <= max(numbers) < year_end
        months = {datetime.fromtimestamp(number / 1000, UTC).month for number in numbers}
        assert months == set(range(1, 13))
        backwards = sum(later < earlier for earlier, later in itertools.pairwise(numbers))
        assert 0 < backwards < count / 5


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
