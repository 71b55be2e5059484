"""Rounds of a job, its failures, its pace, and its report."""

import errno
import os
import re
import signal
from datetime import UTC
from pathlib import Path
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import DeltaError

from seglog.cli.exits import NOT_REACHABLE, REFUSED, InputError, UsageError, exit_code_of
from seglog.cli.tables import aligned
from seglog.cli.terminal import handled
from seglog_protocol.errors import (
    BrokerStoppingError,
    ClientTimeoutError,
    ConnectionLostError,
    NotReachableError,
    UnknownTopicError,
)
from seglog_spark.java import JavaMissingError
from seglog_spark.jobs.archiving import AGAIN_SECONDS, follow, passes
from seglog_spark.jobs.failures import LibraryError, as_command_errors, failure_in, sentence_of, task_errors
from seglog_spark.jobs.progress import Progress
from seglog_spark.jobs.report import ReportRow, by_partition, merged, table, write_parquet
from seglog_spark.jobs.target import Pace, pinned
from seglog_spark.marks import OtherRowsError
from seglog_spark.offsets import OffsetRange
from seglog_spark.options import OptionError
from seglog_spark.planning import GOING_ON, DataLossError


def followed(*rounds: float | Exception, seconds: float = 60.0) -> tuple[list[float], list[str]]:
    """When rounds began that took so long, or failed at once, and what was said; then comes an interrupt."""
    began, said, coming = list[float](), list[str](), iter(rounds)
    time = [0.0]  # which stands still but for sleep, and for rounds that say how long they take

    def one_round() -> None:
        began.append(sum(time))
        outcome = next(coming, None)
        if outcome is None:
            raise KeyboardInterrupt
        if isinstance(outcome, Exception):
            raise outcome
        time.append(outcome)

    follow(one_round, seconds, said.append, now=lambda: sum(time), sleep=time.append)
    return began, [re.sub(r"since 20\S+ \S+,", "since then,", line) for line in said]


def test_rounds_begin_when_their_time_has_come_or_the_last_one_is_done() -> None:
    assert followed() == ([0], [])
    assert followed(0, 10, 59.5, 60, 150, 1) == ([0, 60, 120, 180, 240, 390, 450], [])


def test_a_temporary_error_is_reported_once_and_waited_out() -> None:
    away, full = ConnectionLostError("the broker is away."), LibraryError("s3://b/f in 5 s\n \x1b[31m-> refused")
    began, said = followed(0, away, away, full, 0, 0, away, seconds=3600)
    again = 3600 + AGAIN_SECONDS
    assert began == [0, 3600, again, again + AGAIN_SECONDS, again + 2 * AGAIN_SECONDS, *(began[5:])]
    assert began[5:] == [began[4] + 3600, began[4] + 7200, began[4] + 7200 + AGAIN_SECONDS]
    assert said == [
        "the broker is away; since then, trying again until it succeeds",
        "s3://b/f in 5 s refused; since then, trying again until it succeeds",
        "it works again",
        "the broker is away; since then, trying again until it succeeds",
    ]


def test_an_error_that_stays_ends_it() -> None:
    with pytest.raises(DataLossError, match="gone"):
        followed(0, DataLossError("gone"))
    with pytest.raises(ZeroDivisionError):
        follow(lambda: 1 // 0, 60, print)


def test_what_passes_is_absence_and_trouble_and_no_wrong_path() -> None:
    passing = (BrokerStoppingError(""), ClientTimeoutError(""), ConnectionLostError(""), NotReachableError(""))
    assert all(map(passes, passing))
    assert not any(map(passes, (UnknownTopicError(""), DataLossError(""), FileNotFoundError(""), PermissionError(""))))


def test_a_termination_is_an_interrupt_in_its_block_and_nowhere_else() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with handled(signal.default_int_handler, signal.SIGTERM), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_between_rounds_ends_it() -> None:
    one_round = Mock()
    follow(one_round, 60, print, sleep=Mock(side_effect=KeyboardInterrupt))
    one_round.assert_called_once()


TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "workers/worker.py", line 4327, in invoke_udf
    run_process()
KeyError: 'partition'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "reading.py", line 5, in read
    raise {}
{}
"""


def test_what_a_task_raised_is_the_last_error_of_its_traceback() -> None:
    lost = failure_in(TRACEBACK.format("DataLossError", "seglog_spark.planning.DataLossError: offsets of a-0: gone"))
    assert isinstance(lost, DataLossError)
    assert str(lost) == "offsets of a-0: gone"
    assert exit_code_of(lost) == REFUSED
    others = failure_in(TRACEBACK.format("x", "seglog_spark.marks.OtherRowsError: the job j wrote other rows"))
    assert isinstance(others, OtherRowsError)
    assert exit_code_of(others) == REFUSED
    away = failure_in(TRACEBACK.format("x", "seglog_protocol.errors.NotReachableError: nobody answers"))
    assert isinstance(away, NotReachableError)
    assert exit_code_of(away) == NOT_REACHABLE
    other = TRACEBACK.format("x", "OSError: [Errno 28] No space left on device")
    assert failure_in(other) is None
    assert sentence_of(Exception(other)) == "OSError: [Errno 28] No space left on device"
    assert failure_in("no error") is None
    assert sentence_of(Exception("\n a line\nmore")) == "a line"


def test_errors_of_jobs_are_those_that_the_command_line_knows() -> None:
    told = (
        (OptionError("no"), UsageError, "no"),
        (JavaMissingError("no Java"), InputError, "no Java"),
        (OSError(errno.ENOSPC, "full"), InputError, "no space left: see the disks of the archive, and of .*TMPDIR"),
        (DeltaError("bad\nmore"), LibraryError, "the table, or its catalog: bad"),
        (DataLossError(f"gone. {GOING_ON}"), DataLossError, "gone. To go on without them, add --accept-loss"),
    )
    for error, kind, sentence in told:
        with pytest.raises(kind, match=sentence), as_command_errors():
            raise error


def test_what_comes_up_while_an_interrupt_is_under_way_is_the_interrupt() -> None:
    of_py4j: type[Exception] = type("Py4JNetworkError", (Exception,), {"__module__": "py4j.protocol"})

    def ask() -> None:
        raise of_py4j("Answer from Java side is empty")

    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            try:
                ask()
            except of_py4j as error:
                raise of_py4j("Error while receiving") from error

    with pytest.raises(KeyboardInterrupt), task_errors():
        interrupted()
    with pytest.raises(InputError, match="is empty"), task_errors():
        ask()


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


HOUR = 3_600_000
START = 1_546_300_800_000
ROWS = [
    ReportRow(0, START, 10, 1000, 0, 9, START + 5, START + 7, 5, 1),
    ReportRow(0, START + HOUR, 2, 40, 10, 12, START + HOUR, START + HOUR, 0, 0),
    ReportRow(1, None, 3, 30, 0, 2, None, None, 3, 3),
]


def test_rows_add_up() -> None:
    assert merged(ROWS) == ReportRow(None, None, 15, 1070, 0, 12, START + 5, START + HOUR, 8, 4)
    assert by_partition(ROWS) == {
        0: ReportRow(0, None, 12, 1040, 0, 12, START + 5, START + HOUR, 5, 1),
        1: ReportRow(1, None, 3, 30, 0, 2, None, None, 3, 3),
    }
    assert by_partition([ReportRow(None, START, 1, 1, 0, 0, START, START, 0, 0)]) == {}


def test_a_table_has_the_columns_that_were_asked_for() -> None:
    lines = [*aligned(*table(ROWS, ("hour", "partition"), UTC))]
    assert lines[0].split()[:4] == ["HOUR", "PARTITION", "RECORDS", "BYTES"]
    assert lines[1].split()[:4] == ["2019-01-01T00", "0", "10", "1,000"]
    assert "50.0%" in lines[1]
    assert lines[3].startswith("-  ")
    by_year = [*aligned(*table([merged(ROWS)], ("year",), UTC))]
    assert "OFFSET" not in by_year[0]


def test_parquet_has_times_as_times_and_what_json_has(tmp_path: Path) -> None:
    path = tmp_path / "report.parquet"
    write_parquet(path, ROWS, ("partition", "hour"))
    found = pq.read_table(path)
    assert found.column("period").to_pylist()[2] is None
    assert found.column("period").cast("int64").to_pylist() == [START, START + HOUR, None]
    assert found.schema.names == list(ROWS[0].to_json(("partition", "hour")))
    assert "partition" not in ROWS[0].to_json(("hour",))
    assert "period" not in ROWS[0].to_json(("partition",))
    write_parquet(path, [], ("partition", "hour"))
    assert pq.read_table(path).num_rows == 0
