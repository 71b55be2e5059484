"""What waits for records: the one task of the purgatory, and fetches that have a task of their own."""

import trio

from seglog_broker.partitions.fetch_purgatory import FetchPurgatory, Waiter


async def run_purgatory(
    purgatory: FetchPurgatory, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Retry waiters that were woken or whose deadline is reached, until cancelled."""
    has_more = False
    try:
        while True:
            if has_more:
                await trio.lowlevel.checkpoint()
            else:
                with purgatory.begin_sleep():
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    await wait_woken(purgatory.alarm)
            has_more = purgatory.retry_due(trio.current_time())
    finally:
        purgatory.close()


async def wait_woken(waiter: Waiter) -> None:
    """Return when ``waiter`` was woken since the last call, or ended. One task at a time."""

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        waiter.rise()
        return trio.lowlevel.Abort.SUCCEEDED

    if waiter.sleep(trio.lowlevel.current_task()):
        await trio.lowlevel.wait_task_rescheduled(abort)
    waiter.rise()
