"""The task that serves all sockets, and those of the connections that wait for their turns (``ReadySockets``)."""

import trio

from seglog_broker.listeners.ready_sockets import Entry, Next, ReadySockets, Served, Together
from seglog_broker.listeners.transport import Transport


class _Runnable(trio.abc.Instrument):
    """Keeps the set of tasks that are to run: trio's own statistics leave out those that run in the same pass."""

    def __init__(self, tasks: set[trio.lowlevel.Task]) -> None:
        self._tasks = tasks

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self._tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._tasks.discard(task)


async def run(ready: ReadySockets) -> None:
    """Serve until cancelled."""
    runnable = _Runnable(ready.runnable)
    trio.lowlevel.add_instrument(runnable)
    try:
        while True:
            if ready.has_queued:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(ready)
            ready.serve()
    finally:
        trio.lowlevel.remove_instrument(runnable)
        ready.close()


async def take_turns(
    ready: ReadySockets, transport: Transport, served: Served, together: Together, *, begin: Next = Next.READABLE
) -> None:
    """Give ``served`` a turn when ``transport`` is readable, or it wants another; return when it wants its task.

    ``together`` is that of its listener. Raises what the turn raises, and OSError once ``run`` has ended. May be
    cancelled.
    """
    entry = Entry(transport, served, together, trio.lowlevel.current_task())
    while begin is Next.TURN:
        await trio.lowlevel.checkpoint()
        begin = ready.take_turn(entry)
    if begin is Next.READABLE:
        ready.add(entry)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            ready.remove(entry)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
    error, entry.error = entry.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame: a cycle
