"""One Spark for all tests: a JVM takes longer to start than most of them take."""

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import seglog
from seglog.cli import main
from seglog.client import Client
from seglog_spark import JavaMissingError
from seglog_spark.java import find_java, java_from_pip, version_of
from seglog_spark.jobs import running as running_jobs
from seglog_spark.session import session
from tests.processes import Daemon, daemon
from tests.support import REPOSITORY, missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = Callable[..., tuple[int, str, str]]
Job = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session", autouse=True)
def pips_java() -> Iterator[None]:
    """Where pip has brought a Java, it is the one that every session and every driver takes."""
    with pytest.MonkeyPatch.context() as patch:
        home = java_from_pip()
        if home is not None:
            patch.setenv("JAVA_HOME", str(home))
        yield


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for all tests of this folder, each of which has topics of its own."""
    with daemon(tmp_path_factory.mktemp("spark") / "data") as started:
        yield started


@pytest.fixture
def client(running: Daemon) -> Iterator[Client]:
    with seglog.connect(running.address) as connected:
        yield connected


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    name: str = request.node.name
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:100]


def require_spark() -> None:
    """Skip, naming what is missing."""
    if importlib.util.find_spec("pyspark") is None:
        missing("pyspark: pip install 'seglog[spark]'")
    try:
        find_java(os.environ, version_of, java_from_pip)
    except JavaMissingError as error:
        missing(f"java: {error}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session with two cores, for all tests that need one.

    Its Java is for a minute of work: the better one of its two compilers would cost more than it gains.
    """
    require_spark()
    packages = [str(REPOSITORY / folder) for folder in ("protocol", "clients")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(packages))
        conf = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        started = session("seglog-tests", master="local[2]", conf=conf, log_level="OFF")
        yield started
        started.stop()


@pytest.fixture
def conf(spark: "SparkSession") -> Iterator[Callable[[str, str], None]]:
    """Set a key of the session until the test is over."""
    before: dict[str, str | None] = {}

    def put(key: str, value: str) -> None:
        before.setdefault(key, spark.conf.get(key, None))
        spark.conf.set(key, value)

    yield put
    for key, value in before.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)


@pytest.fixture
def command(
    spark: "SparkSession", running: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run ``seglog spark ...`` on the session that all tests share: exit code, stdout, stderr."""
    monkeypatch.setattr(running_jobs, "_spark", lambda _: nullcontext(spark))
    monkeypatch.setenv("SEGLOG_SERVER", running.address)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["spark", *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def job(command: Command) -> Job:
    """Run a job that has to succeed; its summary."""

    def run(*arguments: str) -> dict[str, Any]:
        code, out, err = command(*arguments, "--json")
        assert code == 0, err
        summary: dict[str, Any] = json.loads(out)
        return summary

    return run
