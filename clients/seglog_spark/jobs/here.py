"""``seglog archive``: the job without Spark and without Java."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from seglog.cli.arguments import Options
from seglog.cli.figures import bytes_text
from seglog.core.errors import count_of
from seglog_spark.jobs import archiving
from seglog_spark.jobs.progress import Measure, Progress

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Here(ExitStack):
    """Makes files in this process."""

    def __init__(self, _options: Options, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def start(self) -> None:
        """Nothing has to be started."""

    def run(
        self, items: Sequence[ItemT], task: Callable[[ItemT], ResultT], *, measure: Measure[ResultT]
    ) -> list[ResultT]:
        """The results of ``task`` for all items, in their order."""
        records = size = 0
        found: list[ResultT] = []
        with self._progress.watching(lambda: f"{count_of(records, 'record')}, {bytes_text(size)}" if found else ""):
            for item in items:
                found.append(task(item))
                records, size = (a + b for a, b in zip((records, size), measure(found[-1]), strict=True))
        return found


def run(options: Options) -> int:
    """Run the job; with ``--follow`` until it is interrupted."""
    return archiving.run(options, Here)
