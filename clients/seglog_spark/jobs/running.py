"""What all jobs do alike: look what is there, find Spark, run tasks, say what came of it."""

import importlib.util
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from seglog.cli.arguments import Options
from seglog.cli.common import print_json
from seglog.cli.exits import InputError, UsageError
from seglog.client import Client
from seglog.formatting import count_of
from seglog_spark.catalog import PATIENCE_SECONDS, connect
from seglog_spark.java import find_java, java_from_pip, version_of
from seglog_spark.jobs.failures import is_sparks, sentence_of, sparks_failures
from seglog_spark.jobs.progress import Progress
from seglog_spark.session import session

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def require_packages() -> None:
    """InputError with what to install, said before anything is begun."""
    for name in ("pyarrow", "pyspark"):
        if importlib.util.find_spec(name) is None:
            raise InputError(f"jobs run on Spark, and the package {name} is missing: pip install 'seglog[spark]'")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        find_java(os.environ, version_of, java_from_pip)


def open_client(options: Options, patience: float = PATIENCE_SECONDS) -> Client:
    """A client that waits ``patience`` seconds for its broker, once that has answered."""
    try:
        with connect(options.server, options.connect_timeout):
            return connect(options.server, patience)
    except ValueError as error:
        raise UsageError(str(error)) from error


@contextmanager
def _spark(options: Options) -> Iterator[Any]:
    """Spark's session, ended when the block is left."""
    with _quiet(options.spark_log) as said:
        try:
            spark = session(
                f"seglog {options.job}",
                master=options.master,
                conf={"spark.ui.enabled": "false"} | dict(options.conf),
                log_level="WARN" if options.spark_log else "OFF",
            )
        except Exception as error:
            if not is_sparks(error):
                raise
            master = "" if options.master is None else f" with --master {options.master}"
            raise InputError(f"Spark does not start{master}: {sentence_of(error) or said()}") from error
    if not options.spark_log:
        logging.getLogger().addHandler(logging.NullHandler())  # py4j logs how an interrupt breaks off its reading
    # Spark's handler asks the JVM to cancel its jobs while an answer of the JVM is being read; stop() does that too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        # Where a SIGTERM went to all of a service's processes, Java has ended by itself.
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            spark.stop()


@contextmanager
def _quiet(is_loud: bool) -> Iterator[Callable[[], str]]:
    """What processes that are started in this block say on stderr goes to a file; the block can ask for its last line.

    Spark's JVM greets with half a dozen lines before it can be told not to.
    """
    if is_loud or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield lambda: "see above"
        return
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:

            def said() -> str:
                file.seek(0)
                return next(
                    (line.strip() for line in reversed(file.readlines()) if line.strip()), "it does not say why"
                )

            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class Runner:
    """Spark for one job: started when there is something to do, ended with the block."""

    def __init__(self, options: Options, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._open = ExitStack()
        self._spark: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def start(self) -> None:
        """Start Spark now: before anything is begun that a Spark that does not start would leave half done."""
        _ = self.spark

    @property
    def spark(self) -> Any:
        """The session."""
        if self._spark is None:
            self._spark = self._open.enter_context(_spark(self._options))
        return self._spark

    @contextmanager
    def watched(self, more: Callable[[], str] = str) -> Iterator[None]:
        """While Spark works: progress is shown, and what fails in a task is raised as itself.

        ``more`` says what the job itself knows of its progress.
        """
        tracker = self.spark.sparkContext.statusTracker()

        def look() -> str:
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            tasks = [f"{stage.numCompletedTasks:,} of {count_of(stage.numTasks, 'task')}" for stage in stages if stage]
            return ", ".join(filter(None, [*tasks, more()]))

        with self._progress.watching(look), sparks_failures():
            yield

    def run(
        self, items: Sequence[ItemT], task: Callable[[ItemT], ResultT], more: Callable[[], str] = str
    ) -> list[ResultT]:
        """``task`` of every item, each in a task of Spark's; in the order of ``items``."""

        def run_some(some: Iterator[ItemT]) -> Iterator[ResultT]:
            return map(task, some)

        with self.watched(more):
            spread = self.spark.sparkContext.parallelize(list(items), len(items))
            found: list[ResultT] = spread.mapPartitions(run_some).collect()
        return found


def folder_of(text: str, option: str) -> Path:
    """A folder that tasks see too; UsageError for an address of something else."""
    if "://" in text:
        raise UsageError(f"{option} {text}: write a folder, on a cluster one that all machines see; not an address")
    return Path(text).absolute()


# --- What came of it --------------------------------------------------------------------------------------------------


def tell(options: Options, sentence: str, summary: Mapping[str, Any]) -> None:
    """The result: for people a sentence, with ``--json`` all of it."""
    if options.json:
        print_json({"job": options.job, **summary})
    else:
        print(sentence)


def size_of(size: int) -> str:
    """Bytes for people: ``512 B``, ``1.4 MB``."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.3g} {unit}"
