"""Serves all sockets that are readable, one after the other: one task, one selector, plain functions.

A task switch and two system calls for each request of each connection cost more than most requests do. Here they are
paid once for all sockets that are readable together. A connection's own task waits in ``serve`` meanwhile, and takes
over when something has to wait.
"""

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

import outcome
import trio

TURN_SECONDS: Final = 0.002
"""Sockets are served for this long before other tasks of the loop run."""


class Next(Enum):
    """What a connection waits for after its turn."""

    READABLE = "more bytes"
    TURN = "its next turn: there is work left"
    TASK = "its own task"


Turn = Callable[[], Next]
"""One turn of a connection: a bounded amount of work, without waiting."""


class _Entry:
    """A connection in ``serve``; ``task`` is None when it has left."""

    __slots__ = ("is_queued", "sock", "task", "turn")

    def __init__(self, sock: socket.socket, turn: Turn) -> None:
        self.sock = sock
        self.turn = turn
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self.is_queued = False  # for its next turn


class ReadySockets:
    """Calls a function for each readable socket while ``run`` runs. What it leaves unread is served again."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._queued: deque[_Entry] = deque()
        self.now = 0.0
        """Trio's time at which the turns that are running began."""

    async def serve(self, sock: socket.socket, turn: Turn, *, begin: Next = Next.READABLE) -> None:
        """Call ``turn`` whenever ``sock`` is readable, or it wants another turn; return when it wants its task.

        Raises what ``turn`` raises. May be cancelled.
        """
        while begin is Next.TURN:
            await trio.lowlevel.checkpoint()
            self.now = trio.current_time()
            begin = turn()
        if begin is Next.TASK:
            return
        entry = _Entry(sock, turn)
        self._selector.register(sock, selectors.EVENT_READ, entry)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._remove(entry)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def run(self) -> None:
        """Serve until cancelled."""
        select, clock, queued = self._selector.select, time.perf_counter, self._queued
        try:
            while True:
                if queued:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(self._selector)
                turn_ends = clock() + TURN_SECONDS
                self.now = trio.current_time()
                while (ready := select(0)) or queued:
                    for key, _ in ready:
                        if not key.data.is_queued:
                            queued.append(key.data)
                    for _ in range(len(queued)):
                        self._serve_one(queued.popleft())
                        if clock() >= turn_ends:
                            await trio.lowlevel.checkpoint()
                            turn_ends = clock() + TURN_SECONDS
                            self.now = trio.current_time()
        finally:
            self._selector.close()

    def _serve_one(self, entry: _Entry) -> None:
        entry.is_queued = False
        if entry.task is None:
            return
        try:
            wanted = entry.turn()
        except BaseException as error:  # noqa: BLE001 - its own task raises it
            trio.lowlevel.reschedule(self._remove(entry), outcome.Error(error))
            return
        if wanted is Next.TASK:
            trio.lowlevel.reschedule(self._remove(entry))
        elif wanted is Next.TURN:
            entry.is_queued = True
            self._queued.append(entry)

    def _remove(self, entry: _Entry) -> trio.lowlevel.Task:
        task, entry.task = entry.task, None
        assert task is not None
        self._selector.unregister(entry.sock)
        return task
