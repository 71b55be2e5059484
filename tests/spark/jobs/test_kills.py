"""Compactions whose driver is killed between two instructions, and that are then run again."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.client import Client
from seglog_spark.tasks import REQUEST_BYTES
from tests.processes import Daemon, clean_environment, seglog_command
from tests.spark.conftest import require_spark
from tests.spark.drivers import GIVEN_UP_MAX, SHORT_LIVED, dice, is_passing, killed_in_the_end
from tests.spark.jobs.test_jobs import content, in_files, plain_latest, produce, records, with_offsets

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


SOON_OVER = [f"--conf={key}={value}" for key, value in SHORT_LIVED.items()]


def run(running: Daemon, log: Path, *arguments: str, until: Callable[[], bool] | None = None) -> None:
    """Run a job to its end, or kill it with its JVM and workers as soon as ``until`` is true.

    What passes is waited out, as whoever runs a job would do.
    """
    given_up = 0
    while code := _run(running, log, *arguments, until=until):
        given_up += 1
        assert given_up <= GIVEN_UP_MAX, log.read_text()[-4000:]
        assert is_passing(log.read_text()), f"exit code {code}: {log.read_text()[-4000:]}"


def _run(running: Daemon, log: Path, *arguments: str, until: Callable[[], bool] | None = None) -> int:
    with log.open("ab") as said:
        started = subprocess.Popen(
            [*seglog_command(running.address, "spark"), *arguments, *SOON_OVER],
            env=clean_environment(),
            start_new_session=True,
            stdout=said,
            stderr=said,
        )
        with killed_in_the_end(started) as driver:
            while until is not None and driver.poll() is None and not until():
                try:
                    driver.wait(0.01)
                except subprocess.TimeoutExpired:
                    continue
            if until is None:
                return driver.wait()
    return 0


def reached(client: Client, topic: str, count: int) -> Callable[[], bool]:
    """Whether a topic that a job makes has so many records."""

    def look() -> bool:
        names = {found.name for found in client.topics()}
        return topic in names and sum(place.latest for place in client.offsets(topic)) >= count

    return look


@pytest.mark.parametrize("to", ["files", "topic"])
def test_killed_compactions_equal_a_plain_dict(
    running: Daemon, client: Client, topic: str, to: str, tmp_path: Path
) -> None:
    """A compaction to files, or to a topic under an id, equals a plain dict when its runs are killed."""
    require_spark()
    target, out, log = f"{topic}-target", tmp_path / "compacted", tmp_path / "job.log"
    produce(client, topic, 14_000, keys=20_000, value_bytes_max=3_000)
    left = plain_latest(records(client, topic), keep_null=True, delete_tombstones=False, before=1 << 60)
    assert all(sum(len(r.value or b"") for r in left[p]) > REQUEST_BYTES for p in range(3)), "more than one request"
    place = ("--out", str(out)) if to == "files" else ("--to-topic", target, "--job-id", "killed-compaction")
    arguments = ("compact", "--topic", topic, *place, "--master", "local[2]")
    kills = [reached(client, target, count) for count in (1, dice().randrange(1, sum(map(len, left.values()))))]
    if to == "files":
        kills = [lambda: any(out.glob("*/.*.tmp")), lambda: any(out.glob("*/*.parquet"))]
    for at_work in kills:
        run(running, log, *arguments, until=at_work)
        produce(client, topic, 10, start=14_000)  # which are not for this job
    run(running, log, *arguments)
    if to == "files":
        assert in_files(out) == with_offsets(left)
        assert not any(out.rglob("*.tmp"))
    else:
        assert content(records(client, target)) == content(left)
