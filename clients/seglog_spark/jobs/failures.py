"""The error of a failed task: Spark passes it on as the text of a traceback."""

import errno
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import seglog_protocol.errors
from seglog.cli.exits import InputError, UsageError
from seglog_protocol.errors import SeglogError
from seglog_spark.java import JavaMissingError
from seglog_spark.marks import OtherRowsError
from seglog_spark.options import OptionError
from seglog_spark.planning import GOING_ON, DataLossError

_RAISED: Final = re.compile(
    r"^\s*(?:[\w.]+Exception: )?(?:[\w.]+\.)?(\w+(?:Error|Exception|Failed)): (.+)$", re.MULTILINE
)

_LATE: Final = "Python worker failed to connect back"
"""What Spark says when a Python worker took longer than the ten seconds that it has to start."""

_OURS: Final = {kind.__name__: kind for kind in (DataLossError, OtherRowsError)}


_LIBRARIES: Final = {"_internal", "deltalake", "pyiceberg", "sqlalchemy"}
"""Of tables; delta-rs names its errors after a module of its own, ``_internal``."""


class WorkerLateError(InputError):
    """Spark gave up a Python worker that had not started in time: the same may succeed on a less busy machine."""


class LibraryError(InputError):
    """A table, or its catalog, as its library says: the same may succeed later, as when a store is away."""


@contextmanager
def as_command_errors() -> Iterator[None]:
    """Raise errors of jobs as those that the command line reports: UsageError, SeglogError, InputError, OSError."""
    try:
        yield
    except OptionError as error:
        raise UsageError(str(error)) from error
    except JavaMissingError as error:
        raise InputError(str(error)) from error
    except DataLossError as error:
        raise DataLossError(error.message.replace(GOING_ON, "To go on without them, add --accept-loss")) from error
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        place = tempfile.gettempdir()
        raise InputError(f"no space left: see the disks of the archive, and of {place} (TMPDIR)") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _LIBRARIES:
            raise
        raise LibraryError(f"the table, or its catalog: {sentence_of(error) or type(error).__name__}") from error


@contextmanager
def task_errors() -> Iterator[None]:
    """Raise an error of a task as itself: Spark passes it on as text. An interrupt stays a KeyboardInterrupt."""
    try:
        yield
    except Exception as error:
        if not is_spark_error(error):
            raise
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        raise failure_in(str(error)) or _error_of_spark(error) from error


def _error_of_spark(error: Exception) -> InputError | OSError:
    text = str(error)
    if _LATE in text and not any(name.endswith("Error") for name, _ in _RAISED.findall(text)):
        return WorkerLateError("a Python worker did not start within ten seconds, which is all that Spark gives it")
    said = sentence_of(error)
    return OSError(said.removeprefix("OSError: ")) if said.startswith("OSError: ") else InputError(said or text)


def _was_interrupted(error: BaseException) -> bool:
    """Whether it was raised during an interrupt: PySpark calls the JVM even then."""
    before = error.__context__
    return before is not None and (isinstance(before, KeyboardInterrupt) or _was_interrupted(before))


def failure_in(text: str) -> SeglogError | None:
    """The seglog error at the end of a traceback; None when that ends with another one."""
    raised = _RAISED.findall(text)
    if not raised:
        return None
    name, message = raised[-1]
    kind = _OURS.get(name) or getattr(seglog_protocol.errors, name, None)
    return kind(message) if isinstance(kind, type) and issubclass(kind, SeglogError) else None


def sentence_of(error: Exception) -> str:
    """The one line of a long error text that says what happened; empty if there is none."""
    raised = _RAISED.findall(str(error))
    if raised:
        return ": ".join(raised[-1])
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def is_spark_error(error: Exception) -> bool:
    """Whether Spark raised it: then its text holds the real error."""
    return type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}
