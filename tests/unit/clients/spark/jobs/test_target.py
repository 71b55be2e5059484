import pytest

from seglog.cli.exits import UsageError
from seglog_spark.jobs.progress import Progress
from seglog_spark.jobs.target import Pace, pinned
from seglog_spark.offsets import OffsetRange

RANGES = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 5)]


class FakeMarks:
    """What a marks topic knows of jobs."""

    def __init__(self) -> None:
        self.plans: dict[str, object] = {}
        self.done: set[str] = set()

    def plan(self, job: str) -> object:
        return self.plans.get(job)

    def note_plan(self, job: str, plan: object) -> None:
        self.plans[job] = plan

    def finished(self, job: str) -> object:
        return True if job in self.done else None


def test_a_job_that_is_run_again_reads_what_it_read_before(capsys: pytest.CaptureFixture[str]) -> None:
    marks, arguments, progress = FakeMarks(), {"replay": "t", "from": "-1h"}, Progress("replay", is_terminal=False)
    assert pinned(marks, "j", arguments, RANGES, progress) is None  # type: ignore[arg-type]
    marks.note_plan("j", {"arguments": arguments, "ranges": [list(r) for r in RANGES]})
    assert pinned(marks, "j", arguments, RANGES, progress) == (RANGES, False, 0)  # type: ignore[arg-type]
    longer = [RANGES[0]._replace(start=50, end=99), RANGES[1]._replace(end=8), OffsetRange("t", 2, 0, 1)]
    assert pinned(marks, "j", arguments, longer, progress) == (RANGES, False, 49 + 3 + 1)  # type: ignore[arg-type]
    assert "resuming job j, which did not finish" in capsys.readouterr().err
    marks.done.add("j")
    assert pinned(marks, "j", arguments, longer, progress) == (RANGES, True, 53)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=r"--job-id j was given to another job: replay t, from -1h; this one is compact t"
    ):
        pinned(marks, "j", {"compact": "t"}, RANGES, progress)  # type: ignore[arg-type]


def test_a_pace_is_kept_on_average_and_time_that_was_lost_is_not_made_up() -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(50, lambda: now[0], sleep)
    pace(100)  # at once, and the next are due two seconds later
    pace(25)
    pace(25)
    now[0] += 10  # the broker was away
    pace(50)
    pace(50)
    assert slept == [2.0, 0.5, 1.0]
