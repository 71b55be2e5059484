"""Tasks in threads of this process: their results, the first error, and what is given up."""

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from seglog.cli.arguments import Options
from seglog_spark.jobs.here import Here
from seglog_spark.jobs.progress import Progress
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.manifest import ArchivedFile
from tests.spark.jobs.records import batches

RANGES = [OffsetRange("t", number, 0, 20) for number in range(6)]
Seen = Callable[[pa.RecordBatch], None]


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


def test_the_first_error_is_raised_and_the_others_are_given_up() -> None:
    begun, ended = threading.Barrier(2, timeout=60), list[str]()

    def task(r: OffsetRange, seen: Seen) -> list[ArchivedFile]:
        if r.partition == 0:
            begun.wait()
            raise ZeroDivisionError
        begun.wait()
        try:
            while True:
                for batch in batches(r):
                    seen(batch)
        except Exception as error:
            ended.append(type(error).__name__)
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 2)
        with pytest.raises(ZeroDivisionError):
            run(task)
    assert ended == ["_GivenUpError"]


def test_an_interrupt_while_it_waits_gives_all_up() -> None:
    ended = list[int]()

    def task(r: OffsetRange, seen: Seen) -> list[ArchivedFile]:
        try:
            while True:
                for batch in batches(r):
                    seen(batch)
        finally:
            ended.append(r.partition)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    def one_is_done(r: OffsetRange, seen: Seen) -> list[ArchivedFile]:
        return [archived(r)] if r.partition == 0 else task(r, seen)

    with pytest.raises(KeyboardInterrupt):
        run(one_is_done, interrupted)
    assert ended


def test_an_interrupt_before_all_threads_have_begun_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    class Thread(threading.Thread):
        def start(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("seglog_spark.jobs.here.threading.Thread", Thread)
    with pytest.raises(KeyboardInterrupt):
        run(lambda r, _: [archived(r)])
