"""Serves all sockets that are readable, together: one task, one selector, plain functions.

A task switch and two system calls for each request of each connection cost more than most requests do. Here they are
paid once for all sockets that are readable together; and what these have received can be worked on together, between
the two halves of their turns. A connection's own task waits meanwhile, and takes over when something has to wait:
``socket_loop`` has the waiting, of these tasks and of the one that serves all.
"""

import contextlib
import select
import selectors
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import trio
from mypy_extensions import mypyc_attr

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


_READABLE: Final = getattr(select, "EPOLLIN", 0)


class Next(Enum):
    """What a connection waits for after its turn."""

    READABLE = "more bytes"
    TURN = "its next turn: there is work left"
    TASK = "its own task"


@mypyc_attr(allow_interpreted_subclasses=True)
class Served:
    """A connection whose turns are taken here. A turn is a bounded amount of work, without waiting."""

    def begin_turn(self) -> None:
        """Receive, and serve what is not done together with other connections."""
        raise NotImplementedError

    def end_turn(self) -> Next:
        """Send the replies. What was received is not used any more."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
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


class Entry:
    """A connection that takes turns; ``task`` is its own, which waits meanwhile, and None when it has left."""

    __slots__ = ("descriptor", "error", "is_queued", "served", "task", "together", "transport")

    def __init__(self, transport: Transport, served: Served, together: Together, task: trio.lowlevel.Task) -> None:
        self.transport = transport
        self.descriptor = -1
        self.served = served
        self.together = together
        self.task: trio.lowlevel.Task | None = task
        self.error: BaseException | None = None
        """For its task."""
        self.is_queued = False
        """For its next turn; never twice."""


class ReadySockets:
    """Gives connections a turn when their sockets are readable.

    Bytes that a connection leaves unread give it another turn.
    """

    def __init__(self, is_awaited: Callable[[], bool] = lambda: False) -> None:
        """``is_awaited`` tells whether tasks wait for something outside the loop: an fsync, or a peer that reads."""
        self.turn_seconds = TURN_SECONDS
        self.ready_max = READY_MAX
        self.poll_seconds = POLL_SECONDS
        self.poll_pause_factor = POLL_PAUSE_FACTOR
        self.is_awaited = is_awaited
        self.runnable: set[trio.lowlevel.Task] = set()
        """The tasks that are to run: then nothing is polled."""
        self.now = 0.0
        """Trio's time at which the turns that are running began."""
        self.began = 0.0
        """By ``time.perf_counter``: when the turn that is running began."""
        self.is_closed = False
        self._may_poll_at = 0.0  # by time.perf_counter
        self._poll_hits = 0  # since the last time that none came
        self._entries: dict[int, Entry] = {}  # by descriptor
        # A selector of the library always tells of all that are ready, which may be thousands.
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._selector = selectors.DefaultSelector() if self._epoll is None else None
        self._queued: deque[Entry] = deque()
        self._latest = -1  # the descriptor of the connection that had the latest turn
        self._latest_since = 0.0  # since when no other had one

    @property
    def is_alone(self) -> bool:
        """Whether no other connection than that of the current turn has had one for ALONE_SECONDS."""
        return self.now - self._latest_since >= ALONE_SECONDS

    @property
    def has_queued(self) -> bool:
        """Whether a connection waits for a turn that it may have at once."""
        return bool(self._queued)

    def is_busy(self) -> bool:
        """Whether a connection has a turn to come, or another task than the one that asks is to run."""
        return bool(self._queued or self.runnable)

    def fileno(self) -> int:
        """The descriptor that is readable when a connection is."""
        if self._epoll is not None:
            return self._epoll.fileno()
        assert self._selector is not None
        selector: Any = self._selector  # each that the system may give has one
        descriptor: int = selector.fileno()
        return descriptor

    def add(self, entry: Entry) -> None:
        """Give a connection turns from now on. Raises OSError once this is closed."""
        if self.is_closed:
            raise _closed()
        entry.descriptor = entry.transport.fileno()
        if self._epoll is not None:
            self._epoll.register(entry.descriptor, _READABLE)
        elif self._selector is not None:
            self._selector.register(entry.descriptor, selectors.EVENT_READ)
        self._entries[entry.descriptor] = entry

    def remove(self, entry: Entry) -> trio.lowlevel.Task:
        """Give a connection no more turns. Returns its task, which is to run again."""
        task = entry.task
        entry.task = None
        assert task is not None
        del self._entries[entry.descriptor]
        if self._epoll is not None:
            with contextlib.suppress(OSError):  # it is closed
                self._epoll.unregister(entry.descriptor)
        elif self._selector is not None:
            self._selector.unregister(entry.descriptor)
        return task

    def take_turn(self, entry: Entry) -> Next:
        """Give a connection that was not added a turn."""
        self.now = trio.current_time()
        self.began = time.perf_counter()
        self._begin_turn(entry)
        [wanted] = self._end_turns([entry])
        return wanted

    def serve(self) -> None:
        """Give turns to all whose sockets are readable, and to those that come soon, for ``turn_seconds`` at most."""
        self.now = trio.current_time()
        self.began = time.perf_counter()
        ends = self.began + self.turn_seconds
        queued = self._queued
        while True:
            ready = self._ready()
            if not ready and not queued:
                ready = self._poll()
                if not ready:
                    return
            for entry in ready:
                self._queue(entry)
            self._serve_some(len(queued), ends)
            self.began = time.perf_counter()
            if self.began >= ends:
                return

    def close(self) -> None:
        """End: the tasks of all connections get an OSError."""
        self.is_closed = True
        for entry in list(self._entries.values()):
            entry.error = _closed()
            trio.lowlevel.reschedule(self.remove(entry))
        if self._epoll is not None:
            self._epoll.close()
        elif self._selector is not None:
            self._selector.close()

    def _ready(self) -> list[Entry]:
        """The connections whose sockets are readable; READY_MAX at most, where the system can be asked for so many."""
        entries = self._entries
        if self._epoll is not None:
            return [entries[descriptor] for descriptor, _ in self._epoll.poll(0, self.ready_max)]
        assert self._selector is not None
        return [entries[key.fd] for key, _ in self._selector.select(0)]

    def _poll(self) -> list[Entry]:
        """The next sockets that are readable, if that is soon and nothing else is to be done; else none."""
        now = time.perf_counter()
        # Only epoll was measured.
        if self._epoll is None or self.runnable or now < self._may_poll_at or self.is_awaited():
            return []
        ends = now + self.poll_seconds
        while now < ends:
            ready = self._ready()
            if ready:
                self._poll_hits += 1
                self.began = now
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
            entries: list[Entry] = []
            together: Together | None = None
            while count and (together is None or (queued[0].together is together and together.has_room)):
                count -= 1
                entry = queued.popleft()
                entry.is_queued = False
                if entry.task is not None:
                    entries.append(entry)
                    together = entry.together
                    self._begin_turn(entry)
                    self.began = time.perf_counter()
                if self.began >= ends:
                    break
            for entry, wanted in zip(entries, self._end_turns(entries)):
                if wanted is Next.TASK:
                    trio.lowlevel.reschedule(self.remove(entry))
                elif wanted is Next.TURN:
                    self._queue(entry)
            self.began = time.perf_counter()
            if self.began >= ends:
                return

    def _queue(self, entry: Entry) -> None:
        if not entry.is_queued:
            entry.is_queued = True
            self._queued.append(entry)

    def _begin_turn(self, entry: Entry) -> None:
        descriptor = entry.transport.fileno()
        if descriptor != self._latest:
            self._latest, self._latest_since = descriptor, self.now
        try:
            entry.served.begin_turn()
        except BaseException as error:  # noqa: BLE001 - its own task raises it
            entry.error = error

    @staticmethod
    def _end_turns(entries: list[Entry]) -> list[Next]:
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


def _closed() -> OSError:
    return OSError("connections are not served any more")
