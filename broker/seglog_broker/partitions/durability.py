"""What waits until records survive a power cut."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from seglog_broker.partitions.commit_round import Flushable, Round
from seglog_broker.partitions.group_commit import GroupCommit
from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.begun import by_task
from seglog_broker.storage.io.flushes import Flush
from seglog_protocol.errors import SeglogError

AnswerT = TypeVar("AnswerT")


class FlushSignal:
    """Signals that a partition has ``flush.messages`` unsynced records."""

    def __init__(self) -> None:
        self._is_set = trio.Event()

    def set(self) -> None:
        """Wake the flush task, now or when it next waits."""
        self._is_set.set()

    def clear(self) -> None:
        """Forget earlier signals. The task calls this before it checks the partitions."""
        self._is_set = trio.Event()

    async def wait(self) -> None:
        """Return when a signal is set."""
        await self._is_set.wait()


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
            await _wait_next(partition)


async def _wait_next(partition: Partition) -> None:
    """Return when the next round, which includes ``partition``, has ended.

    Raises a retriable StorageError if the partition's files could not be synced for now. Whether they were synced
    is recorded in the partition. A waiting task can be cancelled at once, the leader only after the round.
    """
    joined = partition.commits.want(partition)
    if joined.has_leader:
        await joined.ended.wait()
    else:
        joined.has_leader = True
        await _lead(partition.commits, joined)
    failure = joined.failures.get(partition)
    if failure is not None:
        raise partition.with_partition(failure)


def begin_soon(commits: GroupCommit, start_soon: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
    """Have a task lead the next round, if there is something to sync and the round has no leader yet.

    Whoever then listens for its end needs no task.
    """
    this = commits.next
    if this.partitions and not this.has_leader:
        start_soon(partial(_lead, commits, this))
        this.has_leader = True


async def _lead(commits: GroupCommit, this: Round) -> None:
    """Run a round when the one under way has ended. Not to be cancelled.

    An fsync whose outcome is not noted would leave pages that are neither dirty nor on disk. And others wait for
    this round, whatever becomes of who leads it.
    """
    with trio.CancelScope(shield=True):
        if commits.under_way is not None:
            await commits.under_way.ended.wait()
        await trio.lowlevel.checkpoint()  # appends that are ready now join this round
        flushes: list[tuple[Flushable, Flush]] = []
        errors: list[OSError | None] | None = None
        try:
            commits.begin(this, flushes)
            if flushes:
                wanted, began = [flush for _, flush in flushes], trio.current_time()
                errors = commits.sync_if_idle(this, wanted, began)
                if errors is None:
                    errors = commits.note_synced(await commits.offload.commit(commits.fs, wanted), began)
        finally:
            commits.end(this, flushes, errors)


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
