"""Tasks in threads of this process: their results, the first error, and what is given up."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from seglog.cli.arguments import Options
from seglog_spark.jobs.here import Here
from seglog_spark.jobs.progress import Progress
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.manifest import ArchivedFile
from tests.spark.jobs.records import batches

RANGES = [OffsetRange("t", number, 0, 20) for number in range(6)]
Seen = Callable[[int, int], None]


def run(
    task: Callable[[OffsetRange, Seen], list[ArchivedFile]], measure: Callable[[Any], Any] = lambda _: (0, 0)
) -> Any:
    options = Options(lambda _: 0, "", json=False, connect_timeout=1, values={})
    with Here(options, Progress("archive", is_terminal=False)) as here:
        here.start()
        return here.run(RANGES, task, measure=measure)  # type: ignore[arg-type]


def archived(r: OffsetRange) -> ArchivedFile:
    return ArchivedFile(f"{r.partition}", r.partition, r.start, r.end, r.size, 10, None, None, 0, ())


def test_results_are_in_the_order_of_the_ranges() -> None:
    assert run(lambda r, _: [archived(r)]) == [[archived(r)] for r in RANGES]


def test_progress_tells_records_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[Callable[[], str]]()

    def task(r: OffsetRange, seen: Seen) -> list[ArchivedFile]:
        seen(5, 1)
        return [archived(r)]

    def watching(_: Progress, look: Callable[[], str]) -> AbstractContextManager[None]:
        looks.append(look)
        return nullcontext()

    monkeypatch.setattr(Progress, "watching", watching)
    run(task, lambda _: (0, 10))
    assert looks[0]() == "30 records, 6 files, 60 B"


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_the_first_error_or_an_interrupt_gives_up_the_others(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    begun, ended = threading.Barrier(2, timeout=60), set[str]()

    def task(r: OffsetRange, seen: Seen) -> list[ArchivedFile]:
        if r.partition < 2:  # one for each thread
            begun.wait()
        if r.partition == 0:
            return [archived(r)] if error is KeyboardInterrupt else [archived(r)] * (1 // 0)
        try:
            while True:
                for batch in batches(r):
                    seen(batch.num_rows, 0)
        except Exception as found:
            ended.add(type(found).__name__)
            raise

    def measured(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(error):
        run(task, measured)
    assert ended == {"_GivenUpError"}


def test_an_interrupt_before_all_threads_have_begun_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    class Thread(threading.Thread):
        def start(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("seglog_spark.jobs.here.threading.Thread", Thread)
    with pytest.raises(KeyboardInterrupt):
        run(lambda r, _: [archived(r)])
