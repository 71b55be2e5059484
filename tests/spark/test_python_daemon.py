"""A worker that Spark has closed ends without a traceback."""

import gc
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from seglog_spark.python_daemon import ending_quietly
from tests.processes import clean_environment

IDLE_FOR_TOO_LONG = """
import time
import seglog_spark

def plus_one(batches):
    for batch in batches:
        yield batch

spark = seglog_spark.session()
rows = spark.range(100).repartition(4)
print(rows.mapInArrow(plus_one, "id long").count(), flush=True)
time.sleep(75)  # Spark closes a worker that had nothing to do for a minute
print(rows.mapInArrow(plus_one, "id long").count(), flush=True)
spark.stop()
"""


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()  # as the tests' configuration leaves it


def test_garbage_is_not_looked_for_among_what_the_first_task_left() -> None:
    modules: list[object] = []
    work = ending_quietly(lambda _sock, _authenticated: len(modules))
    with socket.socket() as sock:
        work(sock, True)
        assert not any(found is modules for found in gc.get_objects())
        later: list[object] = []
        work(sock, True)
    assert any(found is later for found in gc.get_objects()), "what came later is collected as ever"


def test_a_closed_socket_ends_the_worker_and_anything_else_is_an_error() -> None:
    def closed(_sock: socket.socket, _authenticated: bool) -> int:
        raise BrokenPipeError

    def failed(_sock: socket.socket, _authenticated: bool) -> int:
        raise ConnectionResetError

    with socket.socket() as sock:
        assert ending_quietly(closed)(sock, True) == 1
        assert ending_quietly(lambda _sock, authenticated: 7 + authenticated)(sock, True) == 8
        with pytest.raises(ConnectionResetError):
            ending_quietly(failed)(sock, True)


@pytest.mark.soak
def test_workers_that_had_nothing_to_do_leave_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IDLE_FOR_TOO_LONG], env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["100", "100"]), done.stderr
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
