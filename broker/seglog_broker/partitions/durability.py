"""What waits until records survive a power cut."""

from collections.abc import Callable
from typing import TypeVar

from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.begun import by_task
from seglog_protocol.errors import SeglogError

AnswerT = TypeVar("AnswerT")


async def wait_durable(partition: Partition, offset: int) -> None:
    """Return when every record of ``partition`` below ``offset`` survives a power cut.

    If it is cancelled, a flush that has begun still ends and is recorded. Raises PartitionReadOnlyError when the disk
    failed, UnknownTopicError when the topic was deleted meanwhile.
    """
    while partition.log.durable_end_offset < offset:
        flushed = partition.flush_to_await(offset)
        if flushed is not None:
            await flushed.wait()
        else:
            await partition.commits.wait_next(partition)


async def when_durable(
    ends: dict[Partition, int], fail: Callable[[Partition, SeglogError], None], answer: Callable[[], AnswerT]
) -> AnswerT:
    """``answer()``, when each partition is durable below its offset, or ``fail`` has got its error.

    Partitions that are done are removed from ``ends``. Any number of tasks may wait.
    """
    if ends:
        await by_task()
    while ends:
        partition, offset = next(iter(ends.items()))
        try:
            await wait_durable(partition, offset)
        except SeglogError as error:
            fail(partition, error)
        ends.pop(partition, None)
    return answer()
