import pytest

from seglog.cli.exits import NOT_REACHABLE, REFUSED, InputError, UsageError, exit_code_of
from seglog_protocol.errors import NotReachableError
from seglog_spark.java import JavaMissingError
from seglog_spark.jobs.failures import as_command_errors, failure_in, sentence_of, task_errors
from seglog_spark.marks import OtherRowsError
from seglog_spark.options import OptionError
from seglog_spark.planning import GOING_ON, DataLossError

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
