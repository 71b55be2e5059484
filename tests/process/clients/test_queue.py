"""Workers of queues as processes: that of docs/QUEUES.md, one that dies, and a broker that is killed."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pytest

import seglog
from tests.processes import PATIENCE_SECONDS, Daemon, clean_environment
from tests.support import REPOSITORY

PAGE: Final = (REPOSITORY / "docs" / "QUEUES.md").read_text(encoding="utf-8")

HOLDER: Final = """
with seglog.connect("localhost:9192") as client:
    with client.queue("jobs", group="workers", start="earliest") as queue:
        job = queue.get()
        print(job.offset, job.attempt, flush=True)
        input()  # a handler that does not come to its end
"""


@contextmanager
def worker_of(folder: Path, program: str, address: str) -> Iterator[subprocess.Popen[str]]:
    file = folder / "worker.py"
    file.write_text("import seglog\n" + program.replace("localhost:9192", address), encoding="utf-8")
    command = [sys.executable, "-u", str(file)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, env=clean_environment(), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(stream: IO[str] | None, count: int) -> list[str]:
    assert stream is not None
    return [stream.readline().strip() for _ in range(count)]


def fill(daemon: Daemon, *texts: str) -> None:
    with seglog.connect(daemon.address) as client:
        client.create_topic("jobs", 1, exist_ok=True)
        with client.producer("jobs") as producer:
            for text in texts:
                producer.send(text, key="key")


def left(daemon: Daemon, seconds: float) -> list[tuple[int, int]]:
    """Offsets and attempts of the jobs that are not done, which are taken."""
    with seglog.connect(daemon.address) as client, client.queue("jobs", group="workers") as queue:
        found = []
        while (job := queue.get(seconds)) is not None:
            found.append((job.offset, job.attempt))
            job.accept()
            seconds = 1.0
        return found


def test_the_worker_of_the_page_does_jobs_until_sigterm(running: Daemon, tmp_path: Path) -> None:
    program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    fill(running, "a", "b", "c")
    with worker_of(tmp_path, program, running.address) as worker:
        words = re.findall("b'[a-z]+'|1", " ".join(lines(worker.stdout, 3)))  # threads print into each other's lines
        assert sorted(words) == ["1"] * 3 + ["b'a'", "b'b'", "b'c'"] + ["b'key'"] * 3
        worker.send_signal(signal.SIGTERM)
        _, told = worker.communicate(timeout=PATIENCE_SECONDS)
    assert (worker.returncode, told) == (0, "")
    assert left(running, 2.0) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_job_of_a_worker_that_dies_is_another_ones(running: Daemon, tmp_path: Path, number: signal.Signals) -> None:
    fill(running, "a")
    with worker_of(tmp_path, HOLDER, running.address) as worker:
        assert lines(worker.stdout, 1) == ["0 1"]
        worker.send_signal(number)
        worker.wait(PATIENCE_SECONDS)
        assert left(running, PATIENCE_SECONDS) == [(0, 2)]


def test_what_was_flushed_survives_a_kill_of_the_broker(running: Daemon) -> None:
    fill(running, *map(str, range(10)))
    with (
        seglog.connect(running.address) as client,
        client.queue("jobs", group="workers", start="earliest") as queue,
    ):
        for _ in range(5):
            job = queue.get()
            assert job is not None
            job.accept()
        queue.flush()
        held = queue.get()
        running.kill()
        running.start()
        again = queue.get()
        assert held is not None
        assert again is not None
        assert (held.offset, again.offset, again.attempt) == (5, 5, 1), "deliveries before a kill are not counted"
        again.release()
    assert [offset for offset, _ in left(running, PATIENCE_SECONDS)] == [5, 6, 7, 8, 9]
