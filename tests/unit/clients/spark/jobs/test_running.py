"""Steps of a job, on a Spark that is a double: what is tried again, and what is said of the progress."""

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from seglog.cli.arguments import Options
from seglog_spark.jobs.failures import WorkerLateError
from seglog_spark.jobs.progress import Progress
from seglog_spark.jobs.running import Runner

LATE = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times: "
    "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat Spark\n"
    "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back\n\tat x"
)
SparkError: type[Exception] = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})


def runner(*stages: SimpleNamespace, **options: str | None) -> Runner:
    """Of a job with these options; the stages are at work."""
    made = Runner(Options(lambda _: 0, "", json=False, connect_timeout=1, values=options), Progress("report"))
    active = SimpleNamespace(size=lambda: len(stages), apply=stages.__getitem__)
    jvm = SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: SimpleNamespace(activeStages=lambda: active)))
    made._spark = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=jvm))
    return made


class Step:
    """Fails with each of these, then returns how often it was called."""

    def __init__(self, *failures: str) -> None:
        self.calls = 0
        self._failures: Iterator[str] = iter(failures)

    def __call__(self) -> int:
        self.calls += 1
        failure = next(self._failures, None)
        if failure is not None:
            raise SparkError(failure)
        return self.calls


def test_a_worker_that_starts_late_is_tried_again_and_in_the_end_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner().do(Step(LATE, LATE)) == 3
    assert capsys.readouterr().err.count("within ten seconds, which is all that Spark gives it; trying again\n") == 2
    late = Step(LATE, LATE, LATE)
    with pytest.raises(WorkerLateError, match="did not start within ten seconds"):
        runner().do(late)
    assert late.calls == 3


@pytest.mark.parametrize(("id_", "calls"), [(None, 1), ("nightly", 2)])
def test_what_could_write_rows_twice_is_not_tried_again(id_: str | None, calls: int) -> None:
    step = Step(LATE)
    writing = runner(to_topic="t", job_id=id_)
    with pytest.raises(WorkerLateError) if id_ is None else nullcontext():
        writing.do(step)
    assert step.calls == calls


def test_another_error_is_said_first_and_ends_it() -> None:
    step = Step(f"{LATE}\nTraceback\nOSError: [Errno 28] No space left on device")
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device$"):
        runner().do(step)
    assert step.calls == 1


def test_progress_is_records_and_bytes() -> None:
    def stage(records: int, size: int) -> Any:
        return SimpleNamespace(inputRecords=lambda: records, inputBytes=lambda: size)

    assert runner().passed() == runner(stage(0, 0)).passed() == ""
    assert runner(stage(1000, 0), stage(234, 0)).passed() == "1,234 records"
    assert runner(stage(1, 2_500_000)).passed() == "1 record, 2.5 MB"
