"""Spark for jobs: what it needs, its start, tasks on it."""

import importlib.util
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from seglog.cli.arguments import Options
from seglog.cli.exits import InputError
from seglog.cli.figures import bytes_text
from seglog.core.errors import count_of
from seglog_spark.java import find_java, java_from_pip, version_of
from seglog_spark.jobs.failures import WorkerLateError, is_spark_error, sentence_of, task_errors
from seglog_spark.jobs.progress import Measure, Progress
from seglog_spark.session import session

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_TRIES: Final = 3


def require_packages() -> None:
    """Raise InputError with what to install, before anything is begun."""
    for name in ("pyarrow", "pyspark"):
        if importlib.util.find_spec(name) is None:
            raise InputError(f"jobs run on Spark, and the package {name} is missing: pip install 'seglog[spark]'")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        find_java(os.environ, version_of, java_from_pip)


@contextmanager
def _spark(options: Options) -> Iterator[Any]:
    """A Spark session, stopped when the block ends."""
    with _quiet(options.spark_log) as said:
        try:
            spark = session(
                f"seglog {options.job}",
                master=options.master,
                conf={"spark.ui.enabled": "false"} | dict(options.conf),
                log_level="WARN" if options.spark_log else "OFF",
            )
        except Exception as error:
            if not is_spark_error(error):
                raise
            master = "" if options.master is None else f" with --master {options.master}"
            raise InputError(f"Spark does not start{master}: {sentence_of(error) or said()}") from error
    if not options.spark_log:
        logging.getLogger().addHandler(logging.NullHandler())  # py4j logs that an interrupt ended its reading
    # Spark's handler calls the JVM to cancel jobs while a reply of the JVM is being read. stop() cancels them, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        # If a SIGTERM went to all processes of a service, Java has ended already.
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            spark.stop()


@contextmanager
def _quiet(is_loud: bool) -> Iterator[Callable[[], str]]:
    """Redirect the stderr of processes started in this block to a file; yields a function for its last line.

    Spark's JVM prints half a dozen lines before its log level can be set.
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
                return next((line.strip() for line in reversed(file.readlines()) if line.strip()), "it gives no reason")

            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class Runner(ExitStack):
    """Spark for one job: started when it is first needed, stopped when the block ends."""

    def __init__(self, options: Options, progress: Progress) -> None:
        super().__init__()
        self._options = options
        self._progress = progress
        self._spark: Any = None
        self._counts: tuple[Any, ...] = ()  # records and bytes that ``run`` has counted, as Spark's accumulators
        writes_again = options.values.get("to_topic") is not None and options.job_id is None
        self._tries = 1 if writes_again else _TRIES

    def start(self) -> None:
        """Start Spark now, before anything is begun that would be left half done if Spark does not start."""
        _ = self.spark

    @property
    def spark(self) -> Any:
        """The Spark session."""
        if self._spark is None:
            self._spark = self.enter_context(_spark(self._options))
        return self._spark

    def do(self, step: Callable[[], ResultT], more: Callable[[], str] = str) -> ResultT:
        """The result of ``step``, with progress shown while it runs; raises the error of a failed task as itself.

        ``more`` returns the job's own words about its progress, in place of what Spark counts. Where Spark gives up a
        Python worker that started late, the step is done again, unless that could write rows twice.
        """
        for tries_left in reversed(range(self._tries)):
            try:
                with self._progress.watching(lambda: more() or self.passed()), task_errors():
                    return step()
            except WorkerLateError as error:
                if not tries_left:
                    raise
                self._progress.say(f"{error}; trying again")
        raise AssertionError("the last try returns or raises")

    def passed(self) -> str:
        """Records and bytes that have gone through the stages at work; empty before Spark has counted any.

        Of a source in Python Spark counts records alone.
        """
        records, size = (counted.value for counted in self._counts) if self._counts else (0, 0)
        active = self.spark.sparkContext._jsc.sc().statusStore().activeStages()  # noqa: SLF001 - PySpark has tasks only
        for number in range(active.size()):
            stage = active.apply(number)
            records, size = records + stage.inputRecords(), size + stage.inputBytes()
        return ", ".join(([count_of(records, "record")] if records else []) + ([bytes_text(size)] if size else []))

    def run(
        self,
        items: Sequence[ItemT],
        task: Callable[[ItemT], ResultT],
        more: Callable[[], str] = str,
        *,
        measure: Measure[ResultT] = lambda _: (0, 0),
    ) -> list[ResultT]:
        """The results of ``task`` for all items, in their order; each item is a Spark task."""
        context = self.spark.sparkContext

        def step() -> list[ResultT]:
            self._counts = context.accumulator(0), context.accumulator(0)
            counted = partial(_counted, task, measure, self._counts)
            found: list[ResultT] = context.parallelize(list(items), len(items)).mapPartitions(counted).collect()
            return found

        return self.do(step, more)


def _counted(
    task: Callable[[ItemT], ResultT], measure: Measure[ResultT], counts: tuple[Any, ...], items: Iterator[ItemT]
) -> Iterator[ResultT]:
    """The results of ``task``, counted; the driver sees what a task has counted when it is done."""
    for item in items:
        result = task(item)
        for count, more in zip(counts, measure(result), strict=True):
            count.add(more)
        yield result
