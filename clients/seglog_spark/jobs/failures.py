"""What went wrong, in a sentence: Spark hands on what a task raised as a traceback in text."""

import re
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

_OURS: Final = {kind.__name__: kind for kind in (DataLossError, OtherRowsError)}


@contextmanager
def told_in_a_sentence() -> Iterator[None]:
    """Errors of jobs as the command line knows them: UsageError, SeglogError, InputError, OSError."""
    try:
        yield
    except OptionError as error:
        raise UsageError(str(error)) from error
    except JavaMissingError as error:
        raise InputError(str(error)) from error
    except DataLossError as error:
        raise DataLossError(error.message.replace(GOING_ON, "To go on without them, add --accept-loss")) from error


@contextmanager
def sparks_failures() -> Iterator[None]:
    """What failed in a task, as itself: Spark hands on its traceback as text. An interrupt stays one."""
    try:
        yield
    except Exception as error:
        if not is_sparks(error):
            raise
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        raise failure_in(str(error)) or InputError(sentence_of(error) or str(error)) from error


def _was_interrupted(error: BaseException) -> bool:
    """Whether it came up while an interrupt was under way: even then PySpark asks the JVM for things."""
    before = error.__context__
    return before is not None and (isinstance(before, KeyboardInterrupt) or _was_interrupted(before))


def failure_in(text: str) -> SeglogError | None:
    """The error of ours that a traceback ends with; None when it ends with another one."""
    raised = _RAISED.findall(text)
    if not raised:
        return None
    name, message = raised[-1]
    kind = _OURS.get(name) or getattr(seglog_protocol.errors, name, None)
    return kind(message) if isinstance(kind, type) and issubclass(kind, SeglogError) else None


def sentence_of(error: Exception) -> str:
    """The line of a long text that says what happened; nothing if there is none."""
    raised = _RAISED.findall(str(error))
    if raised:
        return ": ".join(raised[-1])
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def is_sparks(error: Exception) -> bool:
    """Whether it comes from Spark, which then knows more about it."""
    return type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}
