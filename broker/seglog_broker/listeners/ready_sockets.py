"""Serves all sockets that are readable, together: one task, one selector, plain functions.

A task switch and two system calls for each request of each connection cost more than most requests do. Here they are
paid once for all sockets that are readable together; and what these have received can be worked on together, between
the two halves of their turns. A connection's own task waits in ``serve`` meanwhile, and takes over when something has
to wait.
"""

import os
import select
import selectors
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

import trio

from seglog_broker.listeners.transport import Transport

ALONE_SECONDS: Final = 0.05
"""A connection is alone when no other has had a turn for so long."""

TURN_SECONDS: Final = 0.002
"""Sockets are served for this long before other tasks of the loop run."""

READY_MAX: Final = 256
"""Sockets that are looked up at a time; of thousands that their peers close at once that takes many milliseconds."""

POLL_SECONDS: Final = 0.000_3
"""The next request is polled for this long when nothing else is to be done: to sleep and be woken takes a processor
longer than most requests do, and a client with one request at a time sends the next one sooner."""

POLL_HITS_MIN: Final = 8
POLL_PAUSE_FACTOR: Final = 50
"""After a poll that found nothing, with fewer than POLL_HITS_MIN hits since the last such one, polling pauses for so
many times as long: it takes 2 % of a processor where it is of no use."""


class Next(Enum):
    """What a connection waits for after its turn."""

    READABLE = "more bytes"
    TURN = "its next turn: there is work left"
    TASK = "its own task"


class Served:
    """A connection whose turns are taken here. A turn is a bounded amount of work, without waiting."""

    def begin_turn(self) -> None:
        """Receive, and serve what is not done together with other connections."""
        raise NotImplementedError

    def end_turn(self) -> Next:
        """Send the replies. What was received is not used any more."""
        raise NotImplementedError


class Together:
    """What the connections of a listener do together in their turns."""

    @property
    def has_room(self) -> bool:
        """Whether another connection may begin its turn."""
        raise NotImplementedError

    def write(self) -> None:
        """Write what they have received. An error ends all that are in their turns."""
        raise NotImplementedError

    def clear(self) -> None:
        """All their turns have ended: what was received is not used any more."""
        raise NotImplementedError


class _Entry:
    """A connection in ``serve``; ``task`` is None when it has left."""

    __slots__ = ("error", "is_queued", "served", "task", "together", "transport")

    def __init__(self, transport: Transport, served: Served, together: Together) -> None:
        self.transport = transport
        self.served = served
        self.together = together
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self.error: BaseException | None = None  # for its task
        self.is_queued = False  # for its next turn; never twice


class _Runnable(trio.abc.Instrument):
    """The tasks that are to run: trio's own statistics leave out those that run in the same pass of its loop."""

    def __init__(self) -> None:
        self.tasks: set[trio.lowlevel.Task] = set()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.tasks.discard(task)


class ReadySockets:
    """Gives connections a turn when their sockets are readable, while ``run`` runs.

    Bytes that a connection leaves unread give it another turn.
    """

    def __init__(self, is_awaited: Callable[[], bool] = lambda: False) -> None:
        """``is_awaited`` tells whether tasks wait for the end of something outside the loop, such as an fsync."""
        self.turn_seconds = TURN_SECONDS
        self.ready_max = READY_MAX
        self.poll_seconds = POLL_SECONDS
        self.poll_pause_factor = POLL_PAUSE_FACTOR
        self._is_awaited = is_awaited
        self._may_poll_at = 0.0  # by time.perf_counter
        self._poll_hits = 0  # since the last time that none came
        self._runnable = _Runnable()
        self._selector = selectors.DefaultSelector()
        # The same under another descriptor, because a selector of the library always tells of all that are ready.
        self._epoll = select.epoll.fromfd(os.dup(self._selector.fileno())) if hasattr(select, "epoll") else None
        self._queued: deque[_Entry] = deque()
        self.now = 0.0
        """Trio's time at which the turns that are running began."""
        self._is_closed = False
        self._latest: _Entry | None = None  # the one that had the latest turn
        self._latest_since = 0.0  # since when no other had one

    async def serve(
        self, transport: Transport, served: Served, together: Together, *, begin: Next = Next.READABLE
    ) -> None:
        """Give ``served`` a turn when ``transport`` is readable, or it wants another; return when it wants its task.

        ``together`` is that of its listener. Raises what the turn raises, and OSError once ``run`` has ended. May be
        cancelled.
        """
        entry = _Entry(transport, served, together)
        while begin is Next.TURN:
            await trio.lowlevel.checkpoint()
            self.now = trio.current_time()
            self._begin_turn(entry)
            [begin] = self._end_turns([entry])
            self._latest = None  # not kept alive
        if begin is Next.READABLE:
            if self._is_closed:
                raise _closed()
            self._selector.register(transport, selectors.EVENT_READ, entry)

            def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
                self._remove(entry)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        error, entry.error = entry.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: a cycle

    @property
    def is_alone(self) -> bool:
        """Whether no other connection than that of the current turn has had one for ALONE_SECONDS."""
        return self.now - self._latest_since >= ALONE_SECONDS

    async def run(self) -> None:
        """Serve until cancelled."""
        queued = self._queued
        trio.lowlevel.add_instrument(self._runnable)
        try:
            while True:
                if queued:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(self._selector)
                self.now = trio.current_time()
                ends = time.perf_counter() + self.turn_seconds
                while (ready := self._ready()) or queued or (ready := self._poll()):
                    for entry in ready:
                        self._queue(entry)
                    self._serve_some(len(queued), ends)
                    if time.perf_counter() >= ends:
                        break
        finally:
            trio.lowlevel.remove_instrument(self._runnable)
            self._is_closed = True
            for key in list(self._selector.get_map().values()):
                key.data.error = _closed()
                trio.lowlevel.reschedule(self._remove(key.data))
            self._selector.close()
            if self._epoll is not None:
                self._epoll.close()

    def _ready(self) -> list[_Entry]:
        """The connections whose sockets are readable; READY_MAX at most, where the system can be asked for so many."""
        if self._epoll is None:
            return [key.data for key, _ in self._selector.select(0)]
        registered = self._selector.get_map()
        return [registered[descriptor].data for descriptor, _ in self._epoll.poll(0, self.ready_max)]

    def _poll(self) -> list[_Entry]:
        """The next sockets that are readable, if that is soon and nothing else is to be done; else none."""
        now = time.perf_counter()
        if self._runnable.tasks or now < self._may_poll_at or self._is_awaited():
            return []
        # Only of epoll is it known whether a task waits to write; elsewhere nothing was measured.
        waiting = trio.lowlevel.current_statistics().io_statistics
        if getattr(waiting, "tasks_waiting_write", None) != 0:
            return []
        ends = now + self.poll_seconds
        while now < ends:
            if ready := self._ready():
                self._poll_hits += 1
                return ready
            now = time.perf_counter()
        if self._poll_hits < POLL_HITS_MIN:
            self._may_poll_at = now + self.poll_pause_factor * self.poll_seconds
        self._poll_hits = 0
        return []

    def _serve_some(self, count: int, ends: float) -> None:
        """Give a turn to the first ``count`` in the queue; to fewer, but one, if that takes too long."""
        queued = self._queued
        while count:
            entries: list[_Entry] = []
            together: Together | None = None
            while count and (together is None or (queued[0].together is together and together.has_room)):
                count -= 1
                entry = queued.popleft()
                entry.is_queued = False
                if entry.task is not None:
                    entries.append(entry)
                    together = entry.together
                    self._begin_turn(entry)
                if time.perf_counter() >= ends:
                    break
            for entry, wanted in zip(entries, self._end_turns(entries), strict=True):
                if wanted is Next.TASK:
                    trio.lowlevel.reschedule(self._remove(entry))
                elif wanted is Next.TURN:
                    self._queue(entry)
            if time.perf_counter() >= ends:
                return

    def _queue(self, entry: _Entry) -> None:
        if not entry.is_queued:
            entry.is_queued = True
            self._queued.append(entry)

    def _begin_turn(self, entry: _Entry) -> None:
        if entry is not self._latest:
            self._latest, self._latest_since = entry, self.now
        try:
            entry.served.begin_turn()
        except BaseException as error:  # noqa: BLE001 - its own task raises it
            entry.error = error

    @staticmethod
    def _end_turns(entries: list[_Entry]) -> list[Next]:
        """End turns that were begun, all with the same ``together``."""
        if not entries:
            return []
        together = entries[0].together
        try:
            together.write()
        except BaseException as error:  # noqa: BLE001 - their own tasks raise it
            for entry in entries:
                entry.error = error
        wanted = []
        for entry in entries:
            following = Next.TASK
            try:
                following = entry.served.end_turn()
            except BaseException as error:  # noqa: BLE001 - its own task raises it
                entry.error = error
            wanted.append(following if entry.error is None else Next.TASK)
        together.clear()
        return wanted

    def _remove(self, entry: _Entry) -> trio.lowlevel.Task:
        if entry is self._latest:
            self._latest = None  # and not kept alive
        task, entry.task = entry.task, None
        assert task is not None
        self._selector.unregister(entry.transport)
        return task


def _closed() -> OSError:
    return OSError("connections are not served any more")
