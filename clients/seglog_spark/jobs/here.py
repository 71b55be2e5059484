"""``seglog archive``: the job without Spark and without Java."""

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Final

from seglog.cli.arguments import Options
from seglog.cli.figures import bytes_text
from seglog.core.errors import count_of
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
        is_over, lock = threading.Event(), threading.Lock()
        records = files = size = 0

        def seen(more_records: int, more_files: int) -> None:
            nonlocal records, files
            if is_over.is_set():
                raise _GivenUpError
            with lock:
                records, files = records + more_records, files + more_files

        def shown() -> str:
            counts = [count_of(records, "record")] if records else []
            counts += [count_of(files, "file")] if files else []
            return ", ".join(counts + ([bytes_text(size)] if size else []))

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
            with self._progress.watching(shown):
                for thread in threads:
                    thread.start()
                while len(found) < len(items):
                    number, result = done.get()
                    if isinstance(result, BaseException):
                        raise result
                    found[number] = result
                    size += measure(result)[1]
        finally:
            is_over.set()
            for thread in threads:
                with suppress(RuntimeError):  # not started: an interrupt came first
                    thread.join(_END_SECONDS)
        return [found[number] for number in range(len(items))]
