"""Writing of rows to topics: the work of a sink's task, on any machine that reaches the broker."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable

import pyarrow as pa

from seglog.client import Client
from seglog.core.errors import count_of
from seglog.core.timestamps import TimestampWarning
from seglog_spark.marks import Writing
from seglog_spark.options import WriteOptions
from seglog_spark.tasks import MarkedTask, Task, Written
from seglog_spark.transactional_tasks import TransactionalTask


def warn_of_expired(written: Iterable[Written]) -> None:
    """Issue a TimestampWarning per topic on the driver, because warnings of tasks are not shown."""
    total: Counter[str] = Counter()
    for task in written:
        total += task.expired_on_arrival
    for topic, count in sorted(total.items()):
        warnings.warn(
            f"{count_of(count, 'row')} for {topic} expired on arrival: by their timestamps they are older than the "
            "topic keeps (retention.ms), and will be deleted",
            TimestampWarning,
            stacklevel=2,
        )


def write_rows(
    client: Client,
    options: WriteOptions,
    batches: Iterable[pa.RecordBatch],
    writing: Writing | None,
    pace: Callable[[int], None] | None = None,
) -> Written:
    """Write all rows; with ``writing`` each of its rows once, however often this is called.

    ``pace`` is called before rows are sent, with their number, and returns when they may be sent; batches are then sent
    one by one.

    Raises OptionError for rows without a topic, ValueError and TypeError for invalid columns, OtherRowsError for other
    rows than were written before under the same ``writing``, and SeglogError when the broker refuses a batch or is away
    too long.
    """
    if writing is None:
        task = Task(client, options, pace)
    elif options.guarantee == "exactly-once":
        task = TransactionalTask(client, options, writing)
    else:
        task = MarkedTask(client, options, writing, pace)
    try:
        for batch in batches:
            task.take(batch)
        return task.finish()
    except BaseException as error:
        told = task.given_up(error)
        if told is error:
            raise
        raise told from error
