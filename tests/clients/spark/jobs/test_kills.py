"""Jobs whose driver is killed between two instructions, and that are then run again."""

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import seglog
from seglog.client import Client
from tests.clients.spark.conftest import require_spark
from tests.clients.spark.drivers import killed_in_the_end
from tests.clients.spark.jobs.test_jobs import content, in_files, produce, records, with_offsets
from tests.processes import Daemon, clean_environment, seglog_command

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def run(running: Daemon, log: Path, *arguments: str, until: Callable[[], bool] | None = None) -> None:
    """Run a job to its end, or kill it with its JVM and workers as soon as ``until`` is true."""
    with log.open("ab") as said:
        started = subprocess.Popen(
            [*seglog_command(running.address, "spark"), *arguments],
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
                assert driver.wait() == 0, log.read_text()[-4000:]


def test_an_archive_is_exact_when_its_runs_are_killed(running: Daemon, topic: str, tmp_path: Path) -> None:
    require_spark()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    out, log = tmp_path / "archive", tmp_path / "job.log"
    arguments = ("archive", "--topic", topic, "--out", str(out), "--target-file-mb", "1", "--master", "local[2]")

    enough = choose.randrange(1, 6)

    def has_files() -> bool:
        return sum(1 for _ in out.glob("*/*.parquet")) >= enough

    with seglog.connect(running.address) as client:
        produce(client, topic, 24_000)
        run(running, log, *arguments, until=(out / "_manifest.json").exists)
        run(running, log, *arguments, until=lambda: any(out.glob("*/.*.tmp")))
        produce(client, topic, 3_000, start=24_000)  # plans made from now on would be others
        run(running, log, *arguments, until=has_files)
        run(running, log, *arguments)
        assert in_files(out) == with_offsets(records(client, topic))
    assert not any(out.rglob("*.tmp"))


def test_a_replay_under_an_id_is_exact_when_its_runs_are_killed(
    running: Daemon, client: Client, topic: str, tmp_path: Path
) -> None:
    require_spark()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    target, log = f"{topic}-target", tmp_path / "job.log"
    produce(client, topic, 6_000)
    there = records(client, topic)
    arguments = ("replay", "--topic", topic, "--to-topic", target, "--job-id", "killed", "--master", "local[2]")

    def has(count: int) -> bool:
        names = {found.name for found in client.topics()}
        return target in names and sum(place.latest for place in client.offsets(target)) >= count

    for count in sorted(choose.randrange(1, 5_000) for _ in range(3)):
        run(running, log, *arguments, "--rate", "4000", until=lambda count=count: has(count))  # type: ignore[misc]
        produce(client, topic, 10, start=6_000 + count)  # which are not for this job
    run(running, log, *arguments)
    replayed = content(records(client, target))
    assert replayed == content(there)
