"""Foreign clients: each is installed from its registry, in a folder of its own, and runs as a process.

What is installed stays in ``build/interop`` until its pins change. Where a toolchain is absent, or a registry cannot be
reached, the test is skipped by name.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.foreign_programs import AbsentError, installed, run, skipped_where_absent, tools
from tests.support import REPOSITORY

CLIENTS: Final = Path(__file__).with_name("clients")

FRAMEWORKS: Final = ("faust", "quix")
"""Those of Python, each pinned in a file of its own: they want different versions of the clients below them."""

_CODECS: Final = "none gzip snappy lz4 zstd"
KAFKA_CLIENTS: Final = {
    **dict.fromkeys(("kafka-python", "confluent-kafka", "aiokafka", "java", "franz-go"), _CODECS),
    "kafkajs": "none gzip snappy",  # others are bindings to be compiled
}
"""Clients of Kafka that log in, and the codecs of each."""

_SECONDS: Final = 240
"""For all steps of a program, of which each ends by itself within 60."""


def steps_told(
    command: Sequence[str], folder: Path, server: str, topic: str, library: str, steps: str, **environment: str
) -> dict[str, str]:
    """What was wrong by step of a client's program, "" for nothing, and "-" where the client has nothing of the kind.

    ===========  =========================================================================
    admin        creates the topic
    produce      three records by each of CODECS (by default "none"), each acknowledged
    group        RECORDS (3) are read as a member of a group of the topic's name; a commit
    transaction  three transactions of a record each, of which the second is aborted
    ===========  =========================================================================

    ``environment`` has what is in capitals above, and how to connect: PROTOCOL as Kafka names it; AUTHORITY, KEY and
    CHAIN (files as PEM); MECHANISM, USER, PASSWORD, and for OAUTHBEARER TOKEN, or for how many seconds one LIVES where
    the client makes it. What is absent has no entry. A program finds each name behind INTEROP_.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SEGLOG_", "PYTEST_"))}
    told = {f"INTEROP_{name}": value for name, value in environment.items()} | {"INTEROP_STEPS": steps}
    try:
        done = subprocess.run(
            (*command, server, topic, library),
            cwd=folder,
            env=kept | told | {"KAFKAJS_NO_PARTITIONER_WARNING": "1"},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        printed, ending = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        printed, ending = (error.stdout or b"").decode(), f"no end in {_SECONDS} s"
    found = dict(line.split("\t", 1) for line in printed.splitlines() if "\t" in line)
    return {step: found.get(step, " ".join(ending.split())[-200:] or "not reached") for step in steps.split()}


# --- How each is installed --------------------------------------------------------------------------------------------


class _Installation(NamedTuple):
    """What a client needs on the machine, the files that say what it is, and how a folder is filled with it."""

    tools: Sequence[str]
    files: Sequence[Path]
    make: Callable[[Path], None]


def _python(pins: Path) -> _Installation:
    def make(folder: Path) -> None:
        run(sys.executable, "-m", "venv", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--requirement", pins)

    return _Installation((), [pins], make)


def _maven(pom: Path, *sources: Path, plugins: str = "") -> _Installation:
    """The jars of a pom, and classes compiled with them; jars named as ``plugins`` are in a folder of that name."""

    def make(folder: Path) -> None:
        run("mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={folder}")
        if sources:
            run("javac", "-Xlint:-unchecked", "-cp", f"{folder}/*", "-d", folder, *sources)
        if plugins:
            (folder / "plugins").mkdir()
            for jar in folder.glob(plugins):
                shutil.move(jar, folder / "plugins")

    return _Installation(("mvn", "java", "javac") if sources else ("mvn",), [pom, *sources], make)


def _go(modules: Path) -> _Installation:
    def make(folder: Path) -> None:
        programs = ("./copier", "./franz", "./member")
        run("go", "build", "-o", f"{folder}/", *programs, cwd=modules, GOTOOLCHAIN="local")

    return _Installation(("go",), sorted(path for path in modules.rglob("*") if path.is_file()), make)


def _npm(pins: Path) -> _Installation:
    def make(folder: Path) -> None:
        shutil.copy(pins, folder)
        run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", cwd=folder)

    return _Installation(("npm", "node"), [pins], make)


_INSTALLATIONS: Final[Mapping[str, _Installation]] = {
    "python": _python(CLIENTS / "requirements.txt"),
    **{name: _python(CLIENTS / f"requirements-{name}.txt") for name in FRAMEWORKS},
    "java": _maven(CLIENTS / "pom.xml", *sorted(CLIENTS.glob("*.java"))),
    # Kafka Connect with its connectors for files, MirrorMaker and Kafka Streams
    "frameworks": _maven(
        CLIENTS / "frameworks" / "pom.xml", CLIENTS / "frameworks" / "StreamsCopier.java", plugins="connect-file-*.jar"
    ),
    "flink": _maven(CLIENTS / "flink" / "pom.xml", CLIENTS / "flink" / "FlinkCopier.java"),
    "go": _go(CLIENTS / "go"),
    "npm": _npm(CLIENTS / "package.json"),
    "spark": _maven(CLIENTS / "spark.xml"),
}


@functools.cache
def _tried(name: str) -> Path | AbsentError:
    wanted = _INSTALLATIONS[name]
    try:
        tools(*wanted.tools)
        return installed(name, [Path(__file__), *wanted.files], wanted.make)
    except AbsentError as error:
        return error


def folder_of(name: str) -> Path:
    """The folder of an installation, tried once in a run. Raises AbsentError."""
    found = _tried(name)
    if isinstance(found, AbsentError):
        raise found
    return found


# --- The command of each ----------------------------------------------------------------------------------------------


def environment_of(name: str = "python") -> Path:
    """The Python of an environment with all clients in Python, or with one of `FRAMEWORKS`. Raises AbsentError."""
    return folder_of(name) / "bin" / "python"


def java_program(name: str, installation: str = "java") -> list[str]:
    """The command of a class in an installation, without its arguments. Raises AbsentError."""
    folder = folder_of(installation)
    return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{folder}:{folder}/*", name]


def go_program(name: str) -> list[str]:
    """The command of a program in Go, without its arguments. Raises AbsentError."""
    return [str(folder_of("go") / name)]


def spark_with_connector() -> tuple[Path, Path]:
    """The Python that has PySpark, and the folder with the jars of Spark's Kafka connector. Raises AbsentError."""
    python = REPOSITORY / ".venv-spark" / "bin" / "python"
    if not python.exists():
        raise AbsentError(f"no {python.relative_to(REPOSITORY)}, which make spark makes")
    return python, folder_of("spark")


def client_steps(name: str, server: str, topic: str, steps: str, **environment: str) -> dict[str, str]:
    """``steps_told`` of one of `KAFKA_CLIENTS`, as it is pinned. Skips the test where it cannot be had."""
    with skipped_where_absent(name):
        match name:
            case "java":
                command, folder = java_program("Steps"), folder_of("java")
            case "franz-go":
                command, folder = go_program("franz"), folder_of("go")
            case "kafkajs":
                command, folder = ["node", str(CLIENTS / "versions" / "steps.js")], folder_of("npm")
            case _:
                command, folder = [str(environment_of()), str(CLIENTS / "versions" / "steps.py")], folder_of("python")
    return steps_told(command, folder, server, topic, name, steps, **environment)
