"""An error in one partition affects no other, is reported, and is no longer reported once the task succeeds."""

import errno

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_protocol.errors import PartitionReadOnlyError, StorageError
from tests.unit.broker.tasks.living_broker import delete, with_topic

ONLY = ()


class Work:
    """Work that raises the error that the test has set, and counts its calls."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.done: list[int] = []

    async def __call__(self, partition: Partition) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append(partition.number)
        if self.error is not None:
            raise self.error


async def two_partitions(broker: Broker) -> tuple[Partition, Partition]:
    await with_topic(broker, partitions=2)
    return broker.partitions["t", 0], broker.partitions["t", 1]


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EIO, "it broke"), StorageError("it broke"), PartitionReadOnlyError("it broke")],
    ids=["OSError", "StorageError", "read-only"],
)
async def test_a_disk_that_fails_marks_the_partition_until_the_task_succeeds_there(
    error: Exception, broker: Broker
) -> None:
    first, second = await two_partitions(broker)
    boundary, work = TaskBoundary("sweep"), Work(error)
    with capture_logs() as logged:
        assert not await boundary.run(first, work)
        assert not await boundary.run(first, work), "it is tried again"
    assert [entry["event"] for entry in logged] == ["task_postponed"], "but told once"
    assert (logged[0]["task"], logged[0]["topic"], logged[0]["partition"]) == ("sweep", "t", 0)
    assert list(first.problems) == ["sweep"]
    assert second.problems == {}
    assert any("t-0: sweep is held up" in problem and "it broke" in problem for problem in broker.hello().problems)
    with capture_logs() as logged:
        await boundary.run(first, Work(OSError(errno.ENOSPC, "another reason")))
        assert not await boundary.run(first, work)
    assert len(logged) == 2
    await TaskBoundary("other").run(first, Work(OSError("x")))
    work.error = None
    assert await boundary.run(first, work)
    assert first.problems == {"other": "x"}, "each task has its own"


async def test_a_bug_stops_its_task_for_its_partition(broker: Broker) -> None:
    """A bug stops the task for that partition and for no other and stops no other task."""
    first, second = await two_partitions(broker)
    boundary, work = TaskBoundary("sweep"), Work(ZeroDivisionError("a bug"))
    with capture_logs() as logged:
        assert not await boundary.run(first, work)
    assert [(entry["event"], entry["log_level"]) for entry in logged] == [("task_failed", "error")]
    assert logged[0]["exc_info"], "with its traceback"
    work.error = None
    assert not await boundary.run(first, work), "not even when it would succeed"
    assert await boundary.run(second, work)
    assert work.done == [0, 1]
    [problem] = broker.hello().problems
    assert "until the broker is restarted" in problem
    assert await TaskBoundary("other").run(first, work)


@pytest.mark.parametrize("error", [OSError("gone"), KeyError("gone")])
async def test_the_outcome_for_a_partition_that_was_deleted_meanwhile_is_not_reported(
    error: Exception, broker: Broker
) -> None:
    first, _ = await two_partitions(broker)
    boundary = TaskBoundary("sweep")

    async def deleted_meanwhile(_: Partition) -> None:
        await delete(broker)
        raise error

    with capture_logs() as logged:
        assert not await boundary.run(first, deleted_meanwhile)
        assert not await boundary.run(first, Work()), "and it is not begun again"
    assert [entry["event"] for entry in logged] == ["topic_deleted"]
    assert first.problems == {}


async def test_a_cancellation_is_no_failure(broker: Broker) -> None:
    first, _ = await two_partitions(broker)
    with trio.CancelScope() as scope:
        scope.cancel()
        await TaskBoundary("sweep").run(first, Work())
    assert scope.cancelled_caught
    assert first.problems == {}
