"""Deadlines and shields of asyncio's loop: their own cancellation is told from that of others, and none is lost."""

import asyncio
import time
from math import inf

import pytest

from seglog.asyncio.loop import AsyncioLoop, Deadline
from tests.unit.clients.asyncio.conftest import Run

pytestmark = pytest.mark.filterwarnings("error")


def cancellations() -> int:
    """How often the current task was cancelled, and not uncancelled."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def test_a_block_is_left_at_its_deadline_and_the_task_goes_on(run: Run) -> None:
    async def main() -> None:
        with Deadline(time.monotonic() + 0.01) as scope:
            await asyncio.Event().wait()
        assert scope.cancelled_caught
        assert cancellations() == 0
        with Deadline(0.0) as scope:
            pass  # it does not wait
        assert not scope.cancelled_caught
        with Deadline(inf) as scope:
            await asyncio.sleep(0)
        assert not scope.cancelled_caught
        for _ in range(3):
            await asyncio.sleep(0)  # nothing comes afterwards
        assert cancellations() == 0

    run(main())


def test_a_cancellation_by_others_passes_also_where_the_deadline_has_passed_as_well(run: Run) -> None:
    async def wait() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        with Deadline(0.0):
            await asyncio.Event().wait()
        pytest.fail("it went on")

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.wait([task])
        assert task.cancelled()

    run(main())


def test_the_inner_of_two_deadlines_does_not_take_the_cancellation_of_the_outer_one(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with asyncio.timeout(0):
                with Deadline(0.0):
                    await asyncio.Event().wait()
                pytest.fail("it went on")
        with Deadline(0.0) as outer:
            with Deadline(inf) as inner:
                await asyncio.Event().wait()
            pytest.fail("it went on")
        assert (outer.cancelled_caught, inner.cancelled_caught) == (True, False)
        assert cancellations() == 0

    run(main())


def test_an_error_at_the_deadline_is_raised(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError), Deadline(0.0):  # noqa: PT012
            try:
                await asyncio.Event().wait()
            finally:
                raise ZeroDivisionError
        assert cancellations() == 0

    run(main())


def test_shielded_work_ends_before_the_cancellation_is_raised(run: Run) -> None:
    steps: list[str] = []

    async def main() -> None:
        loop = AsyncioLoop()
        may_end = asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            steps.append("worked")

        async def shield() -> None:
            try:
                await loop.shielded(loop.now() + 60, work)
            finally:
                steps.append("left")

        task = asyncio.create_task(shield())
        for _ in range(5):
            await asyncio.sleep(0)
            task.cancel()
        assert steps == []
        may_end.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert steps == ["worked", "left"]
        may_end.clear()
        assert not await loop.shielded(loop.now() + 0.01, work)

    run(main())
