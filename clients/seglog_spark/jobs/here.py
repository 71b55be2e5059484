"""``seglog archive``: the job without Spark and without Java."""

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Final

import pyarrow as pa

from seglog.cli.arguments import Options
from seglog.cli.figures import bytes_text
from seglog.core.errors import count_of
from seglog_spark.jobs import archiving
from seglog_spark.jobs.archiving import ArchiveTask
from seglog_spark.jobs.progress import Measure, Progress
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.manifest import ArchivedFile

_THREADS_MAX: Final = 8
_END_SECONDS: Final = 5.0
"""For a thread to see that its work is given up, which it does between two batches."""


class _GivenUpError(Exception):
    """Raised in threads whose work nobody waits for."""


class Here(ExitStack):
    """Makes files in threads of this process, one for each core: most of the work is outside of Python's lock.

    They end with the process. When it is killed, no task outlives it that could write into the next run's files.
    """

    def __init__(self, _options: Options, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def start(self) -> None:
        """Nothing has to be started."""

    def run(
        self, items: Sequence[OffsetRange], task: ArchiveTask, *, measure: Measure[list[ArchivedFile]]
    ) -> list[list[ArchivedFile]]:
        """Implements ``Executor``. The first error ends it; what is under way then is given up."""
        waiting, done = iter(enumerate(items)), SimpleQueue[tuple[int, list[ArchivedFile] | BaseException]]()
        is_over = threading.Event()
        rows: list[int] = []
        sizes: list[int] = []

        def seen(batch: pa.RecordBatch) -> None:
            if is_over.is_set():
                raise _GivenUpError
            rows.append(batch.num_rows)

        def work() -> None:
            for number, item in waiting:  # each goes to one thread
                if is_over.is_set():
                    return
                try:
                    done.put((number, task(item, seen)))
                except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                    done.put((number, error))

        count = min(len(items), os.cpu_count() or 1, _THREADS_MAX)
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        found: dict[int, list[ArchivedFile]] = {}
        try:
            with self._progress.watching(lambda: _progress(sum(rows), sum(sizes))):
                for thread in threads:
                    thread.start()
                while len(found) < len(items):
                    number, result = done.get()
                    if isinstance(result, BaseException):
                        raise result
                    found[number] = result
                    sizes.append(measure(result)[1])
        finally:
            is_over.set()
            for thread in threads:
                with suppress(RuntimeError):  # not started: an interrupt came first
                    thread.join(_END_SECONDS)
        return [found[number] for number in range(len(items))]


def _progress(records: int, size: int) -> str:
    return ", ".join(([count_of(records, "record")] if records else []) + ([bytes_text(size)] if size else []))


def run(options: Options) -> int:
    """Run the job; with ``--follow`` until it is interrupted."""
    return archiving.run(options, Here)
